//! Starting other programs: shown before they run, an error that names them when they fail.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The root of the work tree.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The cargo that runs this task, or the one on the path.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs `command` to its end with its output shown; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = show(command);
    eprintln!("+ {shown}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed: {status}");
    }
    Ok(())
}

/// Standard output of `command`; an exit code other than 0 is an error that carries standard error.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let shown = show(command);
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))?;
    if !out.status.success() {
        bail!("`{shown}` failed: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    String::from_utf8(out.stdout).with_context(|| format!("`{shown}` printed something that is not UTF-8"))
}

/// True if `command` can be started and exits with 0, its output thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command as one would type it, with the variables that it sets.
fn show(command: &Command) -> String {
    let variables = command
        .get_envs()
        .filter_map(|(key, value)| Some(format!("{}={:?}", key.to_string_lossy(), value?.to_string_lossy())));
    let program = Path::new(command.get_program()).file_name().unwrap_or(OsStr::new("?"));
    let words = std::iter::once(program).chain(command.get_args()).map(|w| w.to_string_lossy().into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}
