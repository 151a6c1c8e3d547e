//! How a failure reaches the person: one line on standard error with its causes, and the exit code.

use std::io::ErrorKind;
use std::process::ExitCode;

/// A command that cannot be meant as typed: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A [`Usage`] error.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// Ctrl-C ended the work, and what there was of it has been shown: exit code 130, as shells have it.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Prints the error with its causes and gives the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // Whoever read our output has gone (`plumb ls | head`): nothing to tell them.
    let gone = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    if gone.into_iter().any(|cause| cause.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    if error.is::<Interrupted>() {
        return ExitCode::from(130);
    }
    eprintln!("plumb: {error:#}");
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}
