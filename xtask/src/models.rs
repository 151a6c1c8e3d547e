//! `cargo xtask models`: the models that the tests need, through `plumb pull`, which knows where they come from and
//! their hashes. A file whose hash was checked before is not read again.

use std::env::consts::EXE_SUFFIX;
use std::process::Command;

use anyhow::Context;

use crate::command::{cargo, run as start};

/// Which models.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Names that `plumb pull` knows; all of its known models if none is given
    names: Vec<String>,
}

/// Fetches what all tests need, with the program that a build of the whole workspace has left beside this one. Building it
/// by itself would compile its dependencies twice: the tests' own ask for more of their features.
pub(crate) fn run_built() -> anyhow::Result<()> {
    let own = std::env::current_exe().context("where this program lies")?;
    start(Command::new(own.with_file_name(format!("plumb{EXE_SUFFIX}"))).args(["pull", "--all"]))
}

/// Fetches what is missing into the models folder (`$PLUMB_MODELS`, else `models` in plumb's cache).
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "plumb", "--", "pull"]);
    if args.names.is_empty() {
        command.arg("--all");
    }
    start(command.args(&args.names))
}
