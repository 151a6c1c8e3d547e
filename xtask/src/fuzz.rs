//! `cargo xtask fuzz`: each fuzz target of `fuzz/Cargo.toml` for a given time, on the installed toolchain.
//!
//! Coverage flags are unstable, so the compiler is told to act as a nightly one; no sanitizer is used, which needs
//! nothing but a C++ compiler for libFuzzer.

use std::path::Path;

use anyhow::{Context, bail};
use toml::{Table, Value};

use crate::command::{cargo, root, run as start, succeeds};

/// Which targets, and for how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names of targets; all if none is given
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

impl Args {
    /// Every target for `seconds` each.
    pub(crate) fn all(seconds: u32) -> Args {
        Args { targets: Vec::new(), seconds }
    }
}

/// Runs the targets one after the other; a crash is an error and leaves its input under `fuzz/artifacts`.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let manifest = root().join("fuzz/Cargo.toml");
    let text = std::fs::read_to_string(&manifest).with_context(|| manifest.display().to_string())?;
    let known = targets(&text)?;
    if let Some(name) = args.targets.iter().find(|name| !known.contains(name)) {
        bail!("no fuzz target {name}; there are: {}", known.join(", "));
    }
    if !succeeds(cargo().args(["fuzz", "--version"])) {
        start(cargo().args(["install", "--locked", "cargo-fuzz"]))?;
    }
    for target in if args.targets.is_empty() { &known } else { &args.targets } {
        // New inputs go to the corpus, which git ignores; seeds are committed.
        let (corpus, seeds) = (format!("fuzz/corpus/{target}"), format!("fuzz/seeds/{target}"));
        std::fs::create_dir_all(root().join(&corpus)).with_context(|| corpus.clone())?;
        let mut command = cargo();
        command.env("RUSTC_BOOTSTRAP", "1").args(["fuzz", "run", "-s", "none", target, &corpus]);
        if Path::new(&root().join(&seeds)).is_dir() {
            command.arg(&seeds);
        }
        start(command.args(["--", &format!("-max_total_time={}", args.seconds), "-rss_limit_mb=4096"]))?;
    }
    Ok(())
}

/// Names of the binaries in the fuzz crate's manifest.
fn targets(manifest: &str) -> anyhow::Result<Vec<String>> {
    let manifest: Table = manifest.parse().context("fuzz/Cargo.toml")?;
    let bins = manifest.get("bin").and_then(Value::as_array).context("fuzz/Cargo.toml: no [[bin]]")?;
    let name = |bin: &Value| bin.get("name").and_then(Value::as_str).map(str::to_owned);
    bins.iter().map(|bin| name(bin).context("fuzz/Cargo.toml: a [[bin]] without a name")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_binary_of_the_fuzz_crate_is_a_target() {
        let manifest =
            "[package]\nname = \"f\"\n[[bin]]\nname = \"gguf\"\npath = \"a.rs\"\n[[bin]]\nname = \"plumb\"";
        assert_eq!(super::targets(manifest).unwrap(), ["gguf", "plumb"]);
    }

    #[test]
    fn a_fuzz_crate_without_targets_is_an_error() {
        assert!(super::targets("[package]\nname = \"f\"").is_err());
    }
}
