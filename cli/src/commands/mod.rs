//! The subcommands: each module declares its flags (a field is a flag, its help and its completion) and what it does.

mod completions;
mod pull;
mod synth;

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
    Pull(pull::Args),
    Synth(synth::Args),
    Completions(completions::Args),
}

impl Command {
    /// Does what was asked.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Pull(args) => pull::run(&args),
            Command::Synth(args) => synth::run(&args),
            Command::Completions(args) => completions::run(&args),
        }
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
