//! `cargo xtask ci`: every check, in the order in which they fail fastest. The README's test command.
//!
//! On a fresh machine it needs Rust and Python; models and cargo-fuzz are fetched on the way.

use std::time::Instant;

use anyhow::{Context, bail};

use crate::command::{cargo, run as start, succeeds};
use crate::{fuzz, models, tidy};

/// Which checks to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these steps out
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    skip: Vec<String>,
    /// Seconds for each fuzz target
    #[arg(long, default_value_t = 60)]
    fuzz_seconds: u32,
}

struct Step {
    name: &'static str,
    run: fn(&Args) -> anyhow::Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "tidy", run: |_| tidy::run() },
    Step { name: "format", run: |_| start(cargo().args(["fmt", "--all", "--check"])) },
    Step { name: "lints", run: |_| start(cargo().args(CLIPPY)) },
    Step { name: "docs", run: |_| start(cargo().env("RUSTDOCFLAGS", "-D warnings").args(DOCS)) },
    Step { name: "build", run: |_| start(cargo().args(["test", "--workspace", "--no-run"])) },
    Step { name: "models", run: |_| models::run_built() },
    Step { name: "tests", run: |_| tests() },
    Step { name: "doc tests", run: |_| start(cargo().args(["test", "--workspace", "--doc"])) },
    Step { name: "fuzz", run: |args| fuzz::run(&fuzz::Args::all(args.fuzz_seconds)) },
];

const CLIPPY: &[&str] = &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
const DOCS: &[&str] = &["doc", "--workspace", "--no-deps", "--document-private-items"];

/// Runs the steps one after the other and stops at the first that fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(name) = args.only.iter().chain(&args.skip).find(|name| STEPS.iter().all(|s| s.name != **name))
    {
        let names: Vec<_> = STEPS.iter().map(|s| s.name).collect();
        bail!("no step {name:?}; there are: {}", names.join(", "));
    }
    let wanted = |step: &&Step| {
        let named = |list: &[String]| list.iter().any(|name| name == step.name);
        (args.only.is_empty() || named(&args.only)) && !named(&args.skip)
    };
    let mut times = Vec::new();
    for step in STEPS.iter().filter(wanted) {
        let start = Instant::now();
        (step.run)(args).with_context(|| format!("step {}", step.name))?;
        times.push(format!("{} {:.0} s", step.name, start.elapsed().as_secs_f64()));
    }
    println!("ci: passed ({})", times.join(", "));
    Ok(())
}

/// Every test of the workspace, through nextest where it is installed.
fn tests() -> anyhow::Result<()> {
    if succeeds(cargo().args(["nextest", "--version"])) {
        start(cargo().args(["nextest", "run", "--workspace", "--no-fail-fast"]))
    } else {
        start(cargo().args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]))
    }
}
