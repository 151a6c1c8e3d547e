//! A vocabulary with merges, ready to tokenize: the `tokenizers` crate's BPE model, and around it how the vocabulary
//! writes text.
//!
//! It does not know where the vocabulary came from.

use std::borrow::Cow;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::Special;
use super::added::{Added, Part};
use super::bytes::{from_alphabet, to_alphabet};
use super::pre::PreTokenizer;
use super::source::{Style, Vocabulary, ids_by_text};
use crate::{Error, Result};

/// The character that stands for a space.
const SPACE: char = '\u{2581}';

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Byte(u8),
    UserDefined,
    Control,
}

pub(super) struct VocabularyTokenizer {
    bpe: BPE,
    style: ReadyStyle,
    tokens: Vec<String>,
    kinds: Vec<Kind>,
    /// Found in any text.
    user_defined: Added,
    /// Found where markers are tokens.
    all: Added,
}

enum ReadyStyle {
    ByteLevel(PreTokenizer),
    Spaced { add_space_prefix: bool, by_line: bool },
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Tokenizer(error.to_string())
}

impl VocabularyTokenizer {
    pub(super) fn build(source: &Vocabulary) -> Result<Self> {
        let tokens = &source.tokens;
        let out_of_range = |what: &str, id: u32| {
            let expected = format!("ids below {}", tokens.len());
            Error::from(tensor::Error::malformed(format!("tokenizer {what}"), expected, id.to_string()))
        };
        let check = |what: &str, ids: &[u32]| match ids.iter().find(|id| **id as usize >= tokens.len()) {
            Some(id) => Err(out_of_range(what, *id)),
            None => Ok(()),
        };
        check("merges", &source.merges)?;
        check("control tokens", &source.control)?;
        check("user-defined tokens", &source.user_defined)?;
        check("byte tokens", &source.byte)?;
        check("look-alikes", &source.look_alikes)?;
        check("unknown token", source.unknown.as_slice())?;
        if !source.merges.len().is_multiple_of(2) {
            let found = source.merges.len().to_string();
            return Err(tensor::Error::malformed("tokenizer merges", "pairs of ids", found).into());
        }
        ids_by_text(tokens)?;

        let mut kinds = vec![Kind::Text; tokens.len()];
        for id in &source.byte {
            let text = &tokens[*id as usize];
            let value = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
            let value = value.and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or_else(|| {
                tensor::Error::malformed(format!("byte token {id}"), "<0x00> to <0xFF>", format!("{text:?}"))
            })?;
            kinds[*id as usize] = Kind::Byte(value);
        }
        source.user_defined.iter().for_each(|id| kinds[*id as usize] = Kind::UserDefined);
        source.control.iter().for_each(|id| kinds[*id as usize] = Kind::Control);

        let style = match &source.style {
            Style::ByteLevel { pre } => ReadyStyle::ByteLevel(PreTokenizer::named(pre).ok_or_else(|| {
                tensor::Error::unsupported(format!("pre-tokenizer {pre:?}"), "this version does not know it")
            })?),
            Style::Spaced { add_space_prefix, by_line } => {
                ReadyStyle::Spaced { add_space_prefix: *add_space_prefix, by_line: *by_line }
            }
        };
        // Markers stay out of the model, so that no text can merge into one; the unknown token must be in it.
        let in_model = |id: u32| kinds[id as usize] != Kind::Control || source.unknown == Some(id);
        let mut vocab = Vocab::with_capacity(tokens.len());
        for (id, text) in (0u32..).zip(tokens) {
            if !text.is_empty() && in_model(id) {
                vocab.insert(text.clone(), id);
            }
        }
        let text_of = |id: u32| tokens[id as usize].clone();
        let pairs = source.merges.as_chunks::<2>().0;
        let merges: Merges = pairs.iter().map(|[left, right]| (text_of(*left), text_of(*right))).collect();
        let mut builder = BPE::builder().vocab_and_merges(vocab, merges);
        match &style {
            ReadyStyle::ByteLevel(pre) => builder = builder.ignore_merges(pre.ignore_merges),
            ReadyStyle::Spaced { .. } => {
                builder = builder.byte_fallback(true).fuse_unk(true);
                if let Some(id) = source.unknown {
                    builder = builder.unk_token(text_of(id));
                }
            }
        }
        let bpe = builder.build().map_err(failed)?;

        let entry =
            |id: &u32| (*id, tokens[*id as usize].as_str(), source.strips_right.binary_search(id).is_ok());
        let user_defined = Added::new(source.user_defined.iter().map(entry))?;
        let markers = source.control.iter().chain(&source.look_alikes);
        let all = Added::new(source.user_defined.iter().chain(markers).map(entry))?;
        Ok(VocabularyTokenizer { bpe, style, tokens: tokens.clone(), kinds, user_defined, all })
    }

    pub(super) fn encode(&self, text: &str, special: Special, ids: &mut Vec<u32>) -> Result<()> {
        let added = match special {
            Special::AsText => &self.user_defined,
            Special::AsTokens => &self.all,
        };
        let mut after_token = true;
        let mut written = String::new();
        for part in added.parts(text) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => self.encode_part(text, after_token, &mut written, ids)?,
            }
            after_token = matches!(part, Part::Token(_));
        }
        Ok(())
    }

    /// `written`: room for the text in the vocabulary's writing.
    fn encode_part(&self, text: &str, first: bool, written: &mut String, ids: &mut Vec<u32>) -> Result<()> {
        match &self.style {
            ReadyStyle::ByteLevel(pre) => {
                for word in pre.words(text) {
                    to_alphabet(&text[word], written);
                    self.merge(written, ids)?;
                }
            }
            ReadyStyle::Spaced { add_space_prefix, by_line } => {
                written.clear();
                if *add_space_prefix && first {
                    written.push(SPACE);
                }
                written.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
                if !by_line {
                    return self.merge(written, ids);
                }
                let mut rest = written.as_str();
                while !rest.is_empty() {
                    let breaks = rest.len() - rest.trim_start_matches('\n').len();
                    let end = if breaks > 0 { breaks } else { rest.find('\n').unwrap_or(rest.len()) };
                    let (run, after) = rest.split_at(end);
                    match self.bpe.token_to_id(run) {
                        Some(id) if breaks > 0 => ids.push(id),
                        _ => self.merge(run, ids)?,
                    }
                    rest = after;
                }
            }
        }
        Ok(())
    }

    fn merge(&self, word: &str, ids: &mut Vec<u32>) -> Result<()> {
        ids.extend(self.bpe.tokenize(word).map_err(failed)?.into_iter().map(|token| token.id));
        Ok(())
    }

    pub(super) fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        let Some((text, kind)) = self.tokens.get(id as usize).zip(self.kinds.get(id as usize)) else {
            return Cow::Borrowed(&[]);
        };
        match (kind, &self.style) {
            (Kind::Control | Kind::UserDefined, _) => Cow::Borrowed(text.as_bytes()),
            (Kind::Byte(value), _) => Cow::Owned(vec![*value]),
            (Kind::Text, ReadyStyle::ByteLevel(_)) => Cow::Owned(from_alphabet(text)),
            (Kind::Text, ReadyStyle::Spaced { .. }) if text.contains(SPACE) => {
                Cow::Owned(text.replace(SPACE, " ").into_bytes())
            }
            (Kind::Text, ReadyStyle::Spaced { .. }) => Cow::Borrowed(text.as_bytes()),
        }
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        // The model has no markers; there are few.
        self.bpe.token_to_id(token).or_else(|| {
            let id = self.tokens.iter().zip(&self.kinds).position(|(t, k)| *k == Kind::Control && t == token);
            id.map(|id| id as u32)
        })
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Control)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn adds_space(&self) -> bool {
        matches!(self.style, ReadyStyle::Spaced { add_space_prefix: true, .. })
    }
}
