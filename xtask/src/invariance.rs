//! `cargo xtask invariance`: the tests that every batch, chunking, prefix, thread count and kernel table gives the same
//! bits, optimised; with `--full` those that are too long for every day.
//!
//! It knows no model and no setting: the engine's tests do.

use crate::command::{cargo, run as start};

/// How much.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Everything at length, on the golden and the real models: hours on a small machine
    #[arg(long)]
    full: bool,
    /// Only tests whose name contains this
    name: Option<String>,
}

/// Runs the tests one binary after the other.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut command = cargo();
    command.args([
        "test",
        "--release",
        "--package",
        "plumb-engine",
        "--test",
        "invariance",
        "--test",
        "real_models",
    ]);
    command.args(&args.name).arg("--");
    if args.full {
        // One at a time: each takes every CPU, and memory for a whole model.
        command.args(["--include-ignored", "--nocapture", "--test-threads", "1"]);
    }
    start(&mut command)
}
