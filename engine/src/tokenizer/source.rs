//! What a tokenizer is made of, as data: taken from GGUF metadata or from a Hugging Face folder, checked, completed with
//! what the formats leave implicit (default ids, the end-of-generation set, the merges of a score vocabulary), and
//! serialisable, so that a prepared weight file can carry it.
//!
//! It does not tokenize.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tensor::files::Metadata;

use super::packed::{self, Texts};
use super::{json, merges, pre};
use crate::{Error, Result};

/// Everything [`Tokenizer::build`](super::Tokenizer::build) needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TokenizerSource {
    /// A vocabulary with merges, from GGUF metadata.
    Vocabulary(Box<Vocabulary>),
    /// A tokenizer.json, kept as it is.
    Json(Box<JsonTokenizer>),
}

/// How a vocabulary writes text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Style {
    /// Tokens are bytes in the GPT-2 alphabet; text is first cut into words.
    ByteLevel {
        /// The pre-tokenizer's name (`tokenizer.ggml.pre`).
        pre: String,
    },
    /// Tokens are text with `▁` for a space, other bytes have tokens of their own (SentencePiece BPE).
    Spaced {
        /// A space is put before the text, and before text that follows a special token.
        add_space_prefix: bool,
        /// Lines are merged apart from each other, and runs of line breaks that are a token are that token.
        by_line: bool,
    },
}

/// A BPE vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// How it writes text.
    pub style: Style,
    /// Token texts by id, as the file has them; an empty one is a hole.
    pub tokens: Texts,
    /// What merges, best first, flattened: left, right and resulting id, left, right, … Neighbouring merges with one result
    /// are equals.
    #[serde(with = "packed")]
    pub merges: Vec<u32>,
    /// Tokens that only a prompt's author may write, never its text: markers of turns, ends, padding.
    #[serde(with = "packed")]
    pub control: Vec<u32>,
    /// Tokens that are found in text before anything else.
    #[serde(with = "packed")]
    pub user_defined: Vec<u32>,
    /// Tokens for one raw byte, `<0x00>` to `<0xFF>`.
    #[serde(with = "packed")]
    pub byte: Vec<u32>,
    /// Words that have the text of another family's marker: read whole where markers are tokens, and not searched for
    /// where they are not (as llama.cpp reads them).
    pub look_alikes: Vec<u32>,
    /// Tokens that swallow the white space after them when they are read from text.
    pub strips_right: Vec<u32>,
    /// The token for what has none.
    pub unknown: Option<u32>,
    /// Ids with a role.
    pub roles: Roles,
}

/// A Hugging Face tokenizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JsonTokenizer {
    /// The content of tokenizer.json.
    pub json: String,
    /// Ids with a role.
    pub roles: Roles,
}

/// Ids that the engine must know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The token that ends a text.
    pub eos: Option<u32>,
    /// A text is tokenized with the beginning token before it.
    pub add_bos: bool,
    /// The model was trained on texts with the ending token after them.
    pub add_eos: bool,
    /// All tokens that end a generation, ascending.
    pub end_of_generation: Vec<u32>,
}

/// Texts of tokens that end a generation in the published model families, whatever their file says of them.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<end_of_utterance>",
    "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];
/// An end marker, too, but only where the file declares it to be a control token: elsewhere it is mark-up (struck text).
const END_TEXT_IF_CONTROL: &str = "</s>";
/// Texts of other markers that files have been seen to declare as ordinary text: around code to be filled in.
const MARKER_TEXTS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<\u{FF5C}fim\u{2581}begin\u{FF5C}>",
    "<PRE>",
    "\u{2581}<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<\u{FF5C}fim\u{2581}hole\u{FF5C}>",
    "<SUF>",
    "\u{2581}<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<\u{FF5C}fim\u{2581}end\u{FF5C}>",
    "<MID>",
    "\u{2581}<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// `tokenizer.ggml.token_type` values.
mod token_type {
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    pub(super) const BYTE: i64 = 6;
}

const MODELS: &str = "gpt2, llama, gemma4";

fn malformed(what: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
    tensor::Error::malformed(what, expected, found).into()
}

impl TokenizerSource {
    /// The tokenizer that GGUF metadata describe.
    ///
    /// Unknown tokenizer models and pre-tokenizers are errors that list the known ones: a wrong one would only be seen as
    /// a model that answers badly.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        Vocabulary::from_gguf(metadata).map(|v| TokenizerSource::Vocabulary(Box::new(v)))
    }

    /// The tokenizer of a Hugging Face folder: the content of tokenizer.json, of tokenizer_config.json where there is one
    /// (it names the beginning and ending tokens), and of generation_config.json and config.json as far as they are there
    /// (they list ids that end a generation).
    pub fn from_json(
        tokenizer: impl Into<String>,
        tokenizer_config: Option<&serde_json::Value>,
        configs: &[&serde_json::Value],
    ) -> Result<Self> {
        let json = tokenizer.into();
        let roles = json::roles(&json, tokenizer_config, configs)?;
        Ok(TokenizerSource::Json(Box::new(JsonTokenizer { json, roles })))
    }

    /// Ids with a role.
    pub fn roles(&self) -> &Roles {
        match self {
            TokenizerSource::Vocabulary(v) => &v.roles,
            TokenizerSource::Json(j) => &j.roles,
        }
    }
}

impl Vocabulary {
    fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let model_key = "tokenizer.ggml.model";
        let model = metadata.require(model_key, metadata.str(model_key)?)?;
        let pre = metadata.str("tokenizer.ggml.pre")?.unwrap_or("default");
        let tokens_key = "tokenizer.ggml.tokens";
        let tokens = metadata.require(tokens_key, metadata.strs(tokens_key)?)?;
        if tokens.len() >= packed::LIMIT || tokens.is_empty() {
            return Err(malformed(tokens_key, "between 1 and 2^24 - 1 texts", tokens.len().to_string()));
        }
        let ids = ids_by_text(tokens)?;
        let types = metadata.ints("tokenizer.ggml.token_type")?.unwrap_or_default();
        if !types.is_empty() && types.len() < tokens.len() {
            return Err(malformed(
                "tokenizer.ggml.token_type",
                format!("{} values, one per token", tokens.len()),
                types.len().to_string(),
            ));
        }
        let of_type = |wanted: i64| -> Vec<u32> {
            (0u32..).zip(&types).take(tokens.len()).filter(|(_, t)| **t == wanted).map(|(id, _)| id).collect()
        };
        let (style, default_bos, default_eos, default_unknown) = match model {
            "gpt2" if !pre::known(pre) => {
                return Err(tensor::Error::unsupported(
                    format!("pre-tokenizer {pre:?} (tokenizer.ggml.pre)"),
                    format!("the known ones are {}", pre::names().join(", ")),
                )
                .into());
            }
            "gpt2" => (Style::ByteLevel { pre: pre.to_string() }, None, None, None),
            "gemma4" => (Style::Spaced { add_space_prefix: false, by_line: true }, None, None, None),
            "llama" => {
                let add_space_prefix = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                (Style::Spaced { add_space_prefix, by_line: false }, Some(1), Some(2), Some(0))
            }
            other => {
                return Err(tensor::Error::unsupported(
                    format!("tokenizer model {other:?} (tokenizer.ggml.model)"),
                    format!("the known ones are {MODELS}"),
                )
                .into());
            }
        };
        let id_or = |key: &str, default: Option<u32>| -> Result<Option<u32>> {
            let in_range = |id: &u32| (*id as usize) < tokens.len();
            match metadata.u32(key)? {
                None => Ok(default.filter(in_range)),
                Some(id) if in_range(&id) => Ok(Some(id)),
                Some(id) => Err(malformed(key, format!("an id below {}", tokens.len()), id.to_string())),
            }
        };
        let bos = id_or("tokenizer.ggml.bos_token_id", default_bos)?;
        let eos = id_or("tokenizer.ggml.eos_token_id", default_eos)?;
        let unknown = id_or("tokenizer.ggml.unknown_token_id", default_unknown)?;
        let add_bos_default = match &style {
            Style::ByteLevel { pre } => pre::adds_bos(pre),
            Style::Spaced { .. } => true,
        };
        let add_bos =
            metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos_default) && bos.is_some();
        let add_eos = metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false) && eos.is_some();

        let byte = of_type(token_type::BYTE);
        let mut control: HashSet<u32> = of_type(token_type::CONTROL).into_iter().collect();
        control.extend(of_type(token_type::UNKNOWN));
        let mut user_defined: HashSet<u32> = of_type(token_type::USER_DEFINED).into_iter().collect();
        let id_of = |text: &str| ids.get(text).copied();
        let mut ends = ends_by_text(id_of, |id| control.contains(&id));
        ends.extend(eos);
        for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
            ends.extend(id_or(key, None)?);
        }
        // Files often declare a family's markers to be ordinary text.
        control.extend(ends.iter().copied().chain(MARKER_TEXTS.iter().filter_map(|text| id_of(text))));
        let look_alikes = sorted(id_of(END_TEXT_IF_CONTROL).filter(|id| !control.contains(id)));
        // A dialect in which <|end|> closes a message and only <|return|> or <|call|> the turn.
        let has = |text: &str| ids.contains_key(text);
        if let Some(end) = ids.get("<|end|>")
            && ((has("<|return|>") && has("<|call|>"))
                || ((has("<|call|>") || has("<|calls|>")) && has("<|flush|>")))
            && Some(*end) != eos
        {
            ends.remove(end);
            control.remove(end);
            user_defined.insert(*end);
        }
        user_defined.retain(|id| !control.contains(id) && !look_alikes.contains(id));

        let merges = if model == "llama" {
            let scores =
                metadata.require("tokenizer.ggml.scores", metadata.floats("tokenizer.ggml.scores")?)?;
            if scores.len() < tokens.len() {
                return Err(malformed(
                    "tokenizer.ggml.scores",
                    format!("{} values, one per token", tokens.len()),
                    scores.len().to_string(),
                ));
            }
            let mut plain = ids.clone();
            plain.retain(|_, id| {
                !control.contains(id) && !user_defined.contains(id) && !look_alikes.contains(id)
            });
            for id in &byte {
                plain.remove(tokens[*id as usize].as_str());
            }
            merges::from_scores(&plain, scores)
        } else {
            let key = "tokenizer.ggml.merges";
            merges::from_texts(metadata.require(key, metadata.strs(key)?)?, &ids)?
        };

        // Phi-3 swallows white space after its markers; its GGUF files cannot say so.
        let name = metadata.str("general.name")?.unwrap_or("").to_ascii_lowercase();
        let strips_right = if name.contains("phi-3") || name.contains("phi3") {
            let keeps = ["<unk>", "<s>", "<|endoftext|>"];
            let text = |id: &u32| tokens[*id as usize].as_str();
            sorted(control.union(&user_defined).copied().filter(|id| !keeps.contains(&text(id))))
        } else {
            Vec::new()
        };
        let (control, user_defined) = (sorted(control), sorted(user_defined));
        let roles = Roles { bos, eos, add_bos, add_eos, end_of_generation: sorted(ends) };
        Ok(Vocabulary {
            style,
            tokens: Texts::new(tokens)
                .ok_or_else(|| malformed(tokens_key, "at most 4 GiB of texts", "more than that"))?,
            merges,
            control,
            user_defined,
            byte,
            look_alikes,
            strips_right,
            unknown,
            roles,
        })
    }
}

pub(super) fn sorted(ids: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut ids: Vec<u32> = ids.into_iter().collect();
    ids.sort_unstable();
    ids
}

/// Ids of the non-empty token texts, which must differ.
fn ids_by_text(tokens: &[String]) -> Result<HashMap<&str, u32>> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, text) in (0u32..).zip(tokens) {
        if text.is_empty() {
            continue;
        }
        if let Some(first) = ids.insert(text.as_str(), id) {
            return Err(malformed(
                "tokenizer.ggml.tokens",
                "texts that differ",
                format!("{text:?} as tokens {first} and {id}"),
            ));
        }
    }
    Ok(ids)
}

/// Ids of the well-known end texts that the vocabulary has.
pub(super) fn ends_by_text(
    id_of: impl Fn(&str) -> Option<u32>,
    is_control: impl Fn(u32) -> bool,
) -> HashSet<u32> {
    let sure = END_TEXTS.iter().filter_map(|text| id_of(text));
    let declared = id_of(END_TEXT_IF_CONTROL).filter(|id| is_control(*id));
    sure.chain(declared).collect()
}
