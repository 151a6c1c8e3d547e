//! From what was typed to the tokens that the model continues: through its chat template, or as plain text.

use anyhow::Context;
use engine::template::{ChatTemplate, Message};
use engine::tokenizer::{Special, Tokenizer};
use serde_json::Map;

use super::Args;
use super::session::Opening;
use crate::failure::usage;
use crate::progress::note;

/// How prompts are made.
pub(super) struct Prompter {
    /// `None` completes text.
    template: Option<ChatTemplate>,
    system: Option<String>,
}

impl Prompter {
    /// As the flags say and the model can.
    pub(super) fn new(args: &Args, opening: &Opening) -> anyhow::Result<Prompter> {
        if args.raw {
            return Ok(Prompter { template: None, system: None });
        }
        let source = match &args.template {
            Some(file) => Some(std::fs::read_to_string(file).with_context(|| file.display().to_string())?),
            None => opening.bundle.chat_template.clone(),
        };
        let Some(source) = source else {
            if args.system.is_some() {
                return Err(usage(format!(
                    "{} has no chat template that could hold a system message; --template FILE gives one",
                    opening.bundle.name
                )));
            }
            note(format!("{} has no chat template: it completes the prompt as text", opening.bundle.name));
            return Ok(Prompter { template: None, system: None });
        };
        let tokenizer = &opening.tokenizer;
        let (bos, eos) = (tokenizer.bos_text().unwrap_or_default(), tokenizer.eos_text().unwrap_or_default());
        let template = Some(ChatTemplate::new(source, &bos, &eos)?);
        Ok(Prompter { template, system: args.system.clone() })
    }

    /// True if there is a template to chat with.
    pub(super) fn can_chat(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a lone prompt.
    pub(super) fn first(&self, text: &str, tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
        if self.template.is_none() {
            return Ok(tokenizer.encode(text, Special::AsTokens, true)?);
        }
        let mut conversation = self.begin();
        // The line break that ends a file or an echo is no part of what the user says.
        conversation.push(Message::new("user", text.trim_end_matches(['\n', '\r'])));
        Ok(tokenizer.encode_chat(&self.render(&conversation)?)?)
    }

    /// A conversation's first messages.
    pub(super) fn begin(&self) -> Vec<Message> {
        self.system.iter().map(|text| Message::new("system", text.as_str())).collect()
    }

    /// The text that the model continues with its answer.
    pub(super) fn render(&self, conversation: &[Message]) -> anyhow::Result<String> {
        let template = self.template.as_ref().context("no chat template")?;
        Ok(template.render(conversation, true, &Map::new())?)
    }
}
