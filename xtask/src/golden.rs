//! `cargo xtask golden`: runs the Python scripts that make the golden values, in an environment of their own.
//!
//! It knows neither what a golden value is nor how one is made: a script named `make_*.py` somewhere under `golden/` makes
//! some, writes them beside itself and notes the versions it used. Packages come from `golden/requirements.txt`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::command::{root, run as start};

/// Which scripts.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names as in make_NAME.py; all if none is given
    names: Vec<String>,
}

/// Runs the scripts one after the other.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let golden = root().join("golden");
    let mut scripts = Vec::new();
    find(&golden, &mut scripts)?;
    scripts.sort();
    let names: Vec<&str> = scripts.iter().filter_map(|path| name(path)).collect();
    if let Some(unknown) = args.names.iter().find(|wanted| !names.contains(&wanted.as_str())) {
        bail!("no golden script {unknown}; there are: {}", names.join(", "));
    }
    let python = environment(&golden)?;
    for script in &scripts {
        let wanted = name(script).is_some_and(|name| args.names.iter().any(|wanted| wanted == name));
        if args.names.is_empty() || wanted {
            start(Command::new(&python).arg(script).current_dir(root()))?;
        }
    }
    Ok(())
}

/// The NAME of `make_NAME.py`.
fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_prefix("make_")?.strip_suffix(".py")
}

fn find(folder: &Path, scripts: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, scripts)?;
        } else if name(&path).is_some() {
            scripts.push(path);
        }
    }
    Ok(())
}

/// The Python of a virtual environment under the target folder that has the packages.
fn environment(golden: &Path) -> anyhow::Result<PathBuf> {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = folder.join("golden-venv");
    let python = folder.join("bin/python");
    if !python.exists() {
        start(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let requirements = golden.join("requirements.txt");
    if requirements.exists() {
        start(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))?;
    }
    Ok(python)
}
