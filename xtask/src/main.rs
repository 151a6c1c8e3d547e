//! `cargo xtask`: the tasks of plumb's developers. Each task is one module; none of them is needed to use plumb.
//!
//! It does not know how anything is built or computed: it reads the tree, and starts cargo, the `plumb` binary and
//! the Python scripts that make the golden values.

mod accuracy;
mod ci;
mod command;
mod fuzz;
mod golden;
mod invariance;
mod models;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development tasks of plumb")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that CI runs: models, format, lints, docs, tidy, tests, fuzzing
    Ci(ci::Args),
    /// Check the tree against the rules of ARCHITECTURE.md and STYLE.md
    Tidy,
    /// Fetch the models that the tests need
    Models(models::Args),
    /// Run each fuzz target for a while
    Fuzz(fuzz::Args),
    /// Compare the real models with the oracles over the whole text, and write docs/accuracy.md
    Accuracy(accuracy::Args),
    /// Check that every way of running a model gives the same bits
    Invariance(invariance::Args),
    /// Make the golden values again with the Python scripts under golden/
    Golden(golden::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Ci(args) => ci::run(&args),
        Task::Tidy => tidy::run(),
        Task::Models(args) => models::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Accuracy(args) => accuracy::run(&args),
        Task::Invariance(args) => invariance::run(&args),
        Task::Golden(args) => golden::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
