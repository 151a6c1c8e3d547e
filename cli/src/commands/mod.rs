//! The subcommands: each module declares its flags (a field is a flag, its help and its completion) and what it does.

mod completions;
mod fit;
mod inspect;
mod kv;
mod lab;
mod packs;
mod probe;
mod pull;
mod quality;
mod record;
mod roofline;
mod run;
mod synth;
mod tokenize;

use clap::{Parser, Subcommand};

/// Run language models on your own machine, and see how fast they should be
#[derive(Parser)]
#[command(name = "plumb", version, arg_required_else_help = true, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Every subcommand.
#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Args>),
    Pull(pull::Args),
    Inspect(inspect::Args),
    Tokenize(tokenize::Args),
    Pack(packs::PackArgs),
    Verify(packs::VerifyArgs),
    Ls(packs::LsArgs),
    Rm(packs::RmArgs),
    Synth(synth::Args),
    Ab(Box<lab::ab::Args>),
    Bench(Box<lab::bench::Args>),
    Traps(lab::traps::Args),
    Results(lab::results::Args),
    Probe(probe::Args),
    Roofline(roofline::Args),
    Fit(fit::Args),
    Quality(quality::Args),
    Completions(completions::Args),
}

impl Command {
    /// Does what was asked.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Run(args) => run::run(&args),
            Command::Pull(args) => pull::run(&args),
            Command::Inspect(args) => inspect::run(&args),
            Command::Tokenize(args) => tokenize::run(&args),
            Command::Pack(args) => packs::pack(&args),
            Command::Verify(args) => packs::verify(&args),
            Command::Ls(args) => packs::ls(&args),
            Command::Rm(args) => packs::rm(&args),
            Command::Synth(args) => synth::run(&args),
            Command::Ab(args) => lab::ab::run(&args),
            Command::Bench(args) => lab::bench::run(&args),
            Command::Traps(args) => lab::traps::run(&args),
            Command::Results(args) => lab::results::run(&args),
            Command::Probe(args) => probe::run(&args),
            Command::Roofline(args) => roofline::run(&args),
            Command::Fit(args) => fit::run(&args),
            Command::Quality(args) => quality::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
    }
}

/// A whole number above 0.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1, found 0".into()),
        Ok(n) => Ok(n),
        Err(_) => Err(format!("expected a whole number, found {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        super::Cli::command().debug_assert();
    }
}
