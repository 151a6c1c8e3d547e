//! A conversation on a terminal: what was said stays, and so do its keys and values.

use std::path::Path;

use anyhow::Context;
use engine::template::Message;
use engine::tokenizer::Special;
use engine::{Feed, FinishReason, LogitRows};
use rustyline::error::ReadlineError;
use serde::{Deserialize, Serialize};

use super::prompt::Prompter;
use super::session::{Answer, Session};
use super::{Args, end_line, report, show};
use crate::failure::usage;
use crate::places::Places;
use crate::progress::note;

const HELP: &str = "\
/help    this
/stats   what the last answer took
/reset   begin a new conversation
/save F  keep the conversation, with its keys and values, in a file
/load F  go on with one that was kept
/quit    leave (or Ctrl-D)
Ctrl-C ends an answer. A line that ends with \\ goes on in the next.";

/// What was said, as messages and as the tokens that the model has seen.
#[derive(Default, Serialize, Deserialize)]
struct Conversation {
    messages: Vec<Message>,
    /// What `tokens` are, in text.
    text: String,
    tokens: Vec<u32>,
}

/// Chats until the person leaves.
pub(super) fn run(
    mut session: Session,
    prompter: Prompter,
    args: &Args,
    places: &Places,
) -> anyhow::Result<()> {
    if args.json {
        return Err(usage("--json needs a prompt"));
    }
    if !prompter.can_chat() {
        return Err(usage(format!(
            "{} cannot chat without a chat template: give a prompt to complete, or --template FILE",
            session.bundle.name
        )));
    }
    note(format!(
        "{}, {} tokens of context. /help tells more.",
        session.bundle.name,
        session.model.context()
    ));
    let mut editor = rustyline::DefaultEditor::new()?;
    // A history that cannot be kept is no reason not to chat.
    let _ = editor.load_history(&places.history);
    let mut conversation = Conversation { messages: prompter.begin(), ..Conversation::default() };
    let mut last: Option<Answer> = None;
    while let Some(line) = read(&mut editor)? {
        match line.trim() {
            "" => {}
            "/help" => note(HELP),
            "/quit" | "/exit" => break,
            "/reset" => {
                conversation = Conversation { messages: prompter.begin(), ..Conversation::default() };
                session.model.forget_prefixes();
                note("a new conversation");
            }
            "/stats" => match &last {
                Some(answer) => report::print(&session, answer),
                None => note("there was no answer yet"),
            },
            command if let Some(file) = argument(command, "/save") => {
                if let Err(error) = save(&mut session, &conversation, file) {
                    note(format!("plumb: {error:#}"));
                }
            }
            command if let Some(file) = argument(command, "/load") => match load(&mut session, file) {
                Ok(loaded) => conversation = loaded,
                Err(error) => note(format!("plumb: {error:#}")),
            },
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                note(format!("{command}: no such command; /help lists them"));
            }
            text => match turn(&mut session, &prompter, &mut conversation, text) {
                Ok(answer) => {
                    if args.stats {
                        report::print(&session, &answer);
                    }
                    last = Some(answer);
                }
                // The conversation is as it was before, so the person can go on.
                Err(error) => note(format!("plumb: {error:#}")),
            },
        }
        let _ = std::fs::create_dir_all(places.history.parent().unwrap_or(&places.history));
        let _ = editor.save_history(&places.history);
    }
    Ok(())
}

/// The file that a command names; `None` for another command, or one without a file.
fn argument<'a>(line: &'a str, command: &str) -> Option<&'a Path> {
    let rest = line.strip_prefix(command)?;
    let file = rest.trim_start();
    (rest.len() > file.len() && !file.is_empty()).then(|| Path::new(file))
}

/// Keeps the conversation and what the cache holds of it.
fn save(session: &mut Session, conversation: &Conversation, file: &Path) -> anyhow::Result<()> {
    let tokens = match &conversation.tokens[..] {
        [] => session.tokenizer.encode_chat(&conversation.text)?,
        tokens => tokens.to_vec(),
    };
    // A sequence takes over all but the last of the tokens it is made for.
    let mut sequence = session.model.sequence(&[&tokens[..], &[0]].concat());
    if sequence.len() < tokens.len() {
        let rest = &tokens[sequence.len()..];
        let feed = Feed { sequence: &mut sequence, tokens: rest, logits: LogitRows::None };
        session.model.step(&mut [feed], &mut [])?;
    }
    let conversation = serde_json::to_string(conversation)?;
    let model = session.weights.content().to_string();
    let bytes = session.model.save(&sequence, file, &model, &conversation)?;
    note(format!("{} tokens, {:.1} MB in {}", tokens.len(), bytes as f64 / 1e6, file.display()));
    Ok(())
}

/// The conversation that a file holds; its keys and values are kept as a prefix, which the next turn takes over.
fn load(session: &mut Session, file: &Path) -> anyhow::Result<Conversation> {
    let model = session.weights.content().to_string();
    session.model.forget_prefixes();
    let (sequence, text) = session.model.load_sequence(file, &model)?;
    let conversation: Conversation =
        serde_json::from_str(&text).with_context(|| format!("{}: the conversation", file.display()))?;
    note(format!("{} tokens from {}", sequence.len(), file.display()));
    Ok(conversation)
}

/// What the person types; `None` when they leave.
fn read(editor: &mut rustyline::DefaultEditor) -> anyhow::Result<Option<String>> {
    let mut text = String::new();
    loop {
        let line = match editor.readline(if text.is_empty() { "> " } else { ". " }) {
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Interrupted) => {
                note("Ctrl-D leaves");
                return Ok(Some(String::new()));
            }
            Err(error) => return Err(error.into()),
        };
        match line.strip_suffix('\\') {
            Some(begun) => {
                text.push_str(begun);
                text.push('\n');
            }
            None => {
                text.push_str(&line);
                let _ = editor.add_history_entry(&text);
                return Ok(Some(text));
            }
        }
    }
}

/// One turn. After an error the conversation is as it was.
fn turn(
    session: &mut Session,
    prompter: &Prompter,
    conversation: &mut Conversation,
    text: &str,
) -> anyhow::Result<Answer> {
    let mut messages = conversation.messages.clone();
    messages.push(Message::new("user", text));
    let rendered = prompter.render(&messages)?;
    let prompt = match rendered.strip_prefix(&conversation.text) {
        // What the model itself drew stays the tokens it drew, which its text need not give back.
        Some(new) if !conversation.tokens.is_empty() => {
            let mut tokens = conversation.tokens.clone();
            tokens.extend(session.tokenizer.encode(new, Special::AsTokens, false)?);
            tokens
        }
        _ => session.tokenizer.encode_chat(&rendered)?,
    };
    let answer = session.answer(&prompt, &mut show)?;
    end_line(&answer)?;
    messages.push(Message::new("assistant", answer.text.as_str()));
    conversation.messages = messages;
    conversation.text = rendered + &answer.text;
    conversation.tokens.clear();
    // The tokens of a stop string were drawn and are not in the text.
    if answer.finished.reason != FinishReason::Stop {
        conversation.tokens.extend(prompt.iter().chain(&answer.finished.tokens));
    }
    Ok(answer)
}
