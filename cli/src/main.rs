//! The binary `plumb`: what is typed becomes calls of the libraries, what they give becomes text.
//!
//! This is the only crate that names a backend. Results go to standard output, progress and notes to standard error;
//! the exit code is 0, 1 for a failure, 2 for a command that cannot be meant, 130 for an answer that Ctrl-C ended.

mod commands;
mod failure;
mod interrupt;
mod models;
mod opening;
mod places;
mod progress;
mod synth;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
