//! `cargo xtask models`: the models that the tests need, through `plumb pull`, which knows where they come from and
//! their hashes. A file whose hash was checked before is not read again.

use crate::command::{cargo, run as start};

/// Which models.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Names that `plumb pull` knows; all of its known models if none is given
    names: Vec<String>,
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
