//! A model's chat template: from a conversation to the text that the model was trained to continue. Rendered as the
//! Hugging Face ecosystem renders it (Jinja with `trim_blocks` and `lstrip_blocks`, and the functions that templates may
//! call there).
//!
//! It knows no tokenizer; [`Tokenizer::encode_chat`](crate::tokenizer::Tokenizer::encode_chat) turns the text into ids.

mod python;

use std::borrow::Cow;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::{Error, Result};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, …: as the template names them.
    pub role: String,
    /// Text, or what else the template understands (a list of parts; null beside tool calls).
    #[serde(default)]
    pub content: serde_json::Value,
    /// Further fields that a template may read: `tool_calls`, `name`, `reasoning_content`, …
    #[serde(flatten)]
    pub more: Map<String, serde_json::Value>,
}

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into().into(), more: Map::new() }
    }
}

/// What stops a template that would never end: far more than any conversation needs.
const FUEL: u64 = 1 << 24;
const NAME: &str = "chat template";

/// A parsed template with the model's beginning and ending texts.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Carries what a template said to `raise_exception` through the template engine's errors.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl ChatTemplate {
    /// Parses a template. `bos` and `eos` are the texts of the beginning and ending tokens, empty where a model has none.
    pub fn new(source: impl Into<String>, bos: &str, eos: &str) -> Result<Self> {
        let source = source.into();
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::Template(describe(&e)))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(python::method);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", python::tojson);
        environment.add_test("iterable", python::is_iterable);
        environment.add_function("raise_exception", |message: Value| -> Result<Value, minijinja::Error> {
            let said = Raised(message.to_string());
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(said))
        });
        environment.add_function("strftime_now", |format: &str| {
            python::strftime(format, &jiff::ZonedDateTime::now())
                .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
        });
        environment
            .add_template_owned(NAME, without_generation_blocks(&source))
            .map_err(|e| Error::Template(describe(&e)))?;
        Ok(ChatTemplate { environment, source, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The template's text as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation. With `add_generation_prompt` the text ends where the model's answer begins. `extra` are
    /// further variables (`tools`, `documents`, `enable_thinking`, …) and win over those set here.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: &Map<String, serde_json::Value>,
    ) -> Result<String> {
        let given = [
            ("messages", Value::from(Serde(messages.iter().map(with_reasoning).collect::<Vec<_>>()))),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ];
        let given = given.into_iter().map(|(name, value)| (name.to_owned(), value));
        let extra = extra.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value))));
        let variables: std::collections::BTreeMap<String, Value> = given.chain(extra).collect();
        let template = self.environment.get_template(NAME).map_err(|e| Error::Template(describe(&e)))?;
        template.render(variables).map_err(|error| {
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(inner) = cause {
                if let Some(Raised(said)) = inner.downcast_ref::<Raised>() {
                    return Error::TemplateRefused(said.clone());
                }
                cause = inner.source();
            }
            Error::Template(describe(&error))
        })
    }
}

/// Names under which templates look for what the model thought before it answered, in the order of preference.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The message with its reasoning under the names that templates read, as transformers hands it to them.
fn with_reasoning(message: &Message) -> Cow<'_, Message> {
    let Some(reasoning) = REASONING.iter().filter_map(|name| message.more.get(*name)).find(|r| !r.is_null())
    else {
        return Cow::Borrowed(message);
    };
    let mut named = message.clone();
    named.more.entry("thinking").or_insert_with(|| reasoning.clone());
    named.more.insert("reasoning_content".to_owned(), reasoning.clone());
    Cow::Owned(named)
}

/// An error of the template engine in one line, with its causes.
fn describe(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

/// `{% generation %}` marks the model's own words for training; here it is a block that does nothing. White-space control
/// of the tags is kept.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + len + 2];
        let inner = tag[2..tag.len() - 2].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replacement = match inner {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        out.push_str(&rest[..start]);
        match replacement {
            Some(word) => out.push_str(&tag.replacen(inner, word, 1)),
            None => out.push_str(tag),
        }
        rest = &rest[start + tag.len()..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        assert_eq!(
            without_generation_blocks(
                "a {%- generation %}x{% endgeneration -%} b {% if generation %}{% endif %}"
            ),
            "a {%- if true %}x{% endif -%} b {% if generation %}{% endif %}"
        );
        assert_eq!(without_generation_blocks("{% generation"), "{% generation");
    }
}
