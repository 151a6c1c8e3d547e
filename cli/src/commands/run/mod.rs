//! `plumb run`: one answer, or a conversation on a terminal.

mod chat;
mod prompt;
mod report;
mod sampling;
mod session;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use engine::FingerprintScope;

use crate::failure::{Interrupted, usage};
use crate::interrupt::Interrupt;
use crate::models::{self, catalogue};
use crate::places::Places;
use crate::progress::note;
use prompt::Prompter;
use session::Answer;

/// Answer a prompt, or chat
///
/// With a prompt (the argument, --file, or standard input that is not a terminal) it answers and exits; without one, on a
/// terminal, it chats. Ctrl-C ends the answer.
///
/// A model with a chat template gets the prompt as a user's message. One without completes it as text, and says so.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A file, a folder, a known name, or OWNER/REPO of the hub [default: smollm2-135m]
    model: Option<String>,
    /// What to answer
    prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Complete the prompt as text, without the chat template; special tokens may be written in it
    #[arg(long, conflicts_with_all = ["system", "template"])]
    raw: bool,
    /// The system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// A chat template (Jinja) in place of the model's own
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// End the answer after so many tokens
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1024, value_parser = super::at_least_one)]
    max_tokens: usize,
    /// Go on when the model ends its answer
    #[arg(long)]
    ignore_eos: bool,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Tokens that prompt and answer may take together [default: 4096, or more if prompt and --max-tokens need it; at most
    /// the model's own]
    #[arg(short, long, value_name = "N", value_parser = super::at_least_one)]
    ctx: Option<usize>,
    /// Threads of a step [default: the CPUs that this process may use]
    #[arg(short, long, value_name = "N", value_parser = super::at_least_one)]
    threads: Option<usize>,
    /// Where the weights lie: in a mapping that all processes share, or in this process's own memory, which huge pages back
    /// on every file system
    #[arg(long, value_enum, default_value_t)]
    weights: Weights,
    /// Print a hash over the bits of the logits from which tokens were drawn, or of all positions
    #[arg(long, value_enum, value_name = "OF", num_args = 0..=1, require_equals = true, default_missing_value = "drawn")]
    fingerprint: Option<Hashed>,
    /// Print one JSON object at the end, and nothing else
    #[arg(long)]
    json: bool,
    /// Say at the end what it took
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    kv: super::kv::KvFlags,
    #[command(flatten)]
    sampling: sampling::Flags,
}

/// Where weights lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Weights {
    #[default]
    Shared,
    Private,
}

/// Which logits are hashed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Hashed {
    Drawn,
    All,
}

impl Args {
    /// Model and prompt as they are meant: a lone argument that names no model and has white space is a prompt.
    fn meant(&self) -> (&str, Option<&str>) {
        match (self.model.as_deref(), self.prompt.as_deref()) {
            (Some(text), None)
                if text.contains(char::is_whitespace) && !std::path::Path::new(text).exists() =>
            {
                (catalogue::DEFAULT, Some(text))
            }
            (model, prompt) => (model.unwrap_or(catalogue::DEFAULT), prompt),
        }
    }

    /// The prompt's text; `None` for a conversation.
    fn prompt(&self, argument: Option<&str>) -> anyhow::Result<Option<String>> {
        let text = if let Some(text) = argument {
            text.to_owned()
        } else if let Some(file) = &self.file {
            std::fs::read_to_string(file).with_context(|| file.display().to_string())?
        } else if std::io::stdin().is_terminal() {
            return Ok(None);
        } else {
            std::io::read_to_string(std::io::stdin()).context("standard input")?
        };
        if text.is_empty() {
            return Err(usage("the prompt is empty"));
        }
        Ok(Some(text))
    }

    fn fingerprint(&self) -> FingerprintScope {
        match self.fingerprint {
            None => FingerprintScope::None,
            Some(Hashed::Drawn) => FingerprintScope::Drawn,
            Some(Hashed::All) => FingerprintScope::All,
        }
    }
}

/// Answers or chats.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (name, argument) = args.meant();
    let text = args.prompt(argument)?;
    let places = Places::from_env()?;
    let path = models::resolve(name, &places)?;
    let interrupt = Interrupt::install()?;
    let opening = session::Opening::start(&path, &places, args)?;
    let prompter = Prompter::new(args, &opening)?;
    let Some(text) = text else {
        let session = opening.load(args, 0, interrupt)?;
        return chat::run(session, prompter, args, &places);
    };
    let prompt = prompter.first(&text, &opening.tokenizer)?;
    let mut session = opening.load(args, prompt.len(), interrupt)?;
    let answer = if args.json {
        session.answer(&prompt, &mut |_| Ok(()))?
    } else {
        session.answer(&prompt, &mut show)?
    };
    if args.json {
        let line = serde_json::to_string(&report::Report::of(&session, &answer))?;
        writeln!(std::io::stdout(), "{line}").context("standard output")?;
    } else {
        end_line(&answer)?;
    }
    if args.stats {
        report::print(&session, &answer);
    }
    if answer.is_interrupted() { Err(Interrupted.into()) } else { Ok(()) }
}

/// Writes a piece of an answer where it can be seen at once.
fn show(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")
}

/// Ends an answer's last line, and says why it ended where that is not the model's doing.
fn end_line(answer: &Answer) -> anyhow::Result<()> {
    if !answer.text.ends_with('\n') {
        show("\n")?;
    }
    if let Some(why) = answer.why_cut() {
        note(why);
    }
    if let Some(fingerprint) = &answer.finished.fingerprint {
        note(format!("fingerprint {fingerprint}"));
    }
    Ok(())
}
