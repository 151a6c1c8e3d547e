//! A tokenizer.json, run by the `tokenizers` crate as it is.
//!
//! Of the file itself it reads only what the crate does not tell: how pieces are written.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde_json::Value;

use super::Special;
use super::bytes::from_alphabet;
use super::source::{Roles, ends_by_text, sorted};
use crate::{Error, Result};

/// How pieces are written, from the file's decoder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// The GPT-2 alphabet.
    ByteLevel,
    /// `▁` for a space, `<0x..>` for bytes.
    Spaced { adds_space: bool },
}

pub(super) struct JsonTokenizerReady {
    tokenizer: tokenizers::Tokenizer,
    /// The same, with markers as text; made when first asked for.
    markers_as_text: OnceLock<Box<tokenizers::Tokenizer>>,
    writing: Writing,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Tokenizer(error.to_string())
}

impl JsonTokenizerReady {
    pub(super) fn build(json: &str) -> Result<Self> {
        let file: Value = serde_json::from_str(json).map_err(|e| failed(format!("tokenizer.json: {e}")))?;
        let writing = writing(&file)?;
        let mut tokenizer: tokenizers::Tokenizer =
            json.parse().map_err(|e| failed(format!("tokenizer.json: {e}")))?;
        // A file may carry its training run's limits; a prompt is never cut or padded silently.
        tokenizer.with_truncation(None).map_err(failed)?;
        tokenizer.with_padding(None);
        Ok(JsonTokenizerReady { tokenizer, markers_as_text: OnceLock::new(), writing })
    }

    pub(super) fn encode(&self, text: &str, special: Special, add_special: bool) -> Result<Vec<u32>> {
        let tokenizer = match special {
            Special::AsTokens => &self.tokenizer,
            Special::AsText => self.markers_as_text.get_or_init(|| {
                let mut tokenizer = self.tokenizer.clone();
                tokenizer.set_encode_special_tokens(true);
                Box::new(tokenizer)
            }),
        };
        Ok(tokenizer.encode_fast(text, add_special).map_err(failed)?.get_ids().to_vec())
    }

    pub(super) fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        let added = self.tokenizer.get_added_vocabulary();
        let token = match (added.get_added_tokens_decoder().get(&id), added.simple_id_to_token(id)) {
            // An added token that the normalizer changes is written as the vocabulary writes.
            (Some(token), Some(written)) if token.content != written => written,
            (Some(token), _) => return Cow::Borrowed(token.content.as_bytes()),
            (None, _) => match self.tokenizer.id_to_token(id) {
                Some(token) => token,
                None => return Cow::Borrowed(&[]),
            },
        };
        Cow::Owned(match self.writing {
            Writing::ByteLevel => from_alphabet(&token),
            Writing::Spaced { .. } => match byte_token(&token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        })
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    pub(super) fn vocab_size(&self) -> usize {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let beyond = added.keys().max().map_or(0, |id| *id as usize + 1);
        self.tokenizer.get_vocab_size(true).max(beyond)
    }

    pub(super) fn adds_space(&self) -> bool {
        self.writing == Writing::Spaced { adds_space: true }
    }
}

fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// The decoder's steps: itself, or those of a sequence.
fn decoders(file: &Value) -> Vec<&Value> {
    let decoder = &file["decoder"];
    match decoder["decoders"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![decoder],
    }
}

fn writing(file: &Value) -> Result<Writing> {
    let steps = decoders(file);
    let has = |kind: &str| steps.iter().any(|step| step["type"] == kind);
    if has("ByteLevel") {
        return Ok(Writing::ByteLevel);
    }
    if has("Metaspace") || has("ByteFallback") || has("Replace") {
        let adds_space = steps.iter().any(|step| match step["type"].as_str() {
            Some("Strip") => step["content"] == " " && step["start"].as_u64().unwrap_or(0) > 0,
            Some("Metaspace") => {
                step["prepend_scheme"].as_str().is_some_and(|scheme| scheme != "never")
                    || step["add_prefix_space"] == true
            }
            _ => false,
        });
        return Ok(Writing::Spaced { adds_space });
    }
    let kinds: Vec<_> = steps.iter().map(|step| step["type"].as_str().unwrap_or("none")).collect();
    Err(tensor::Error::unsupported(
        format!("tokenizer.json with decoder {}", kinds.join(" + ")),
        "a generating model's pieces are byte-level or have \u{2581} for spaces",
    )
    .into())
}

/// The ids with a role, from the files of a Hugging Face folder.
pub(super) fn roles(
    tokenizer: &str,
    tokenizer_config: Option<&str>,
    generation_config: Option<&str>,
) -> Result<Roles> {
    let parse = |name: &str, text: &str| -> Result<Value> {
        serde_json::from_str(text).map_err(|e| failed(format!("{name}: {e}")))
    };
    let optional = |name: &str, text: Option<&str>| text.map_or(Ok(Value::Null), |text| parse(name, text));
    let file = parse("tokenizer.json", tokenizer)?;
    let config = optional("tokenizer_config.json", tokenizer_config)?;
    let generation = optional("generation_config.json", generation_config)?;

    let as_id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let added = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let entry = |text: &str| added.iter().find(|token| token["content"] == text);
    let id_of = |text: &str| match entry(text) {
        Some(token) => as_id(&token["id"]),
        None => as_id(&file["model"]["vocab"][text]),
    };
    let special =
        |id: u32| added.iter().any(|token| as_id(&token["id"]) == Some(id) && token["special"] == true);
    // A token is named by its text, or by an object that has it.
    let named = |key: &str| {
        let value = &config[key];
        value.as_str().or_else(|| value["content"].as_str()).and_then(id_of)
    };
    let bos = named("bos_token").or_else(|| as_id(&generation["bos_token_id"]));
    let stops: Vec<u32> = match &generation["eos_token_id"] {
        Value::Array(ids) => ids.iter().filter_map(as_id).collect(),
        id => as_id(id).into_iter().collect(),
    };
    let eos = named("eos_token").or_else(|| stops.first().copied());
    let mut ends = ends_by_text(id_of, special);
    ends.extend(stops.into_iter().chain(eos));
    let adds = |id: Option<u32>| id.is_some_and(|id| added_around(&file["post_processor"], id));
    Ok(Roles { bos, eos, add_bos: adds(bos), add_eos: adds(eos), end_of_generation: sorted(ends) })
}

/// True if a post-processor, or a step of it, puts the token around a text.
fn added_around(processor: &Value, id: u32) -> bool {
    let template = processor["single"].as_array().map(Vec::as_slice).unwrap_or_default();
    let in_template = template.iter().filter_map(|part| part["SpecialToken"]["id"].as_str()).any(|name| {
        let ids = processor["special_tokens"][name]["ids"].as_array();
        ids.is_some_and(|ids| ids.iter().any(|known| known.as_u64() == Some(id.into())))
    });
    let steps = processor["processors"].as_array().map(Vec::as_slice).unwrap_or_default();
    in_template || steps.iter().any(|step| added_around(step, id))
}
