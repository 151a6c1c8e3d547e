//! `plumb completions SHELL`: what the shell needs to complete plumb's commands and flags.

use clap::CommandFactory;
use clap_complete::Shell;

/// Print completions for a shell
///
/// For bash: plumb completions bash > ~/.local/share/bash-completion/completions/plumb
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    clap_complete::generate(args.shell, &mut super::Cli::command(), "plumb", &mut std::io::stdout());
    Ok(())
}
