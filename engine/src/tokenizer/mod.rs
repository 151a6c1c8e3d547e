//! Text to token ids and back, for the vocabularies of GGUF files and for tokenizer.json.
//!
//! It knows nothing of models, conversations or streaming: see [`template`](crate::template) and [`stop`](crate::stop).

mod added;
mod bpe;
mod bytes;
mod json;
mod merges;
mod packed;
mod pre;
mod source;
mod vocabulary;

use std::borrow::Cow;

pub use packed::Texts;
pub use source::{JsonTokenizer, Roles, Style, TokenizerSource, Vocabulary};

use crate::Result;

/// The names of pre-tokenizers (`tokenizer.ggml.pre`) that byte-level vocabularies may have, sorted.
pub fn pre_tokenizers() -> Vec<&'static str> {
    pre::names()
}

/// What special-token text in a text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// It is text like any other: for what a user wrote. (Tokens that a vocabulary declares user-defined are found in any
    /// text: they are words, not markers.)
    AsText,
    /// It is the token: for a rendered chat template, or a prompt that is meant to hold markers.
    AsTokens,
}

/// A tokenizer, ready.
pub struct Tokenizer {
    roles: Roles,
    inner: Inner,
}

enum Inner {
    Vocabulary(Box<vocabulary::VocabularyTokenizer>),
    Json(Box<json::JsonTokenizerReady>),
}

/// One token of a text, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token.
    pub id: u32,
    /// Its text with control characters and bytes that are not UTF-8 of their own escaped (`\n`, `\xE2`); a marker's own
    /// text.
    pub printable: String,
    /// It is a marker, not text.
    pub control: bool,
}

impl Tokenizer {
    /// Builds the tokenizer that `source` describes.
    pub fn build(source: &TokenizerSource) -> Result<Self> {
        let inner = match source {
            TokenizerSource::Vocabulary(v) => {
                Inner::Vocabulary(Box::new(vocabulary::VocabularyTokenizer::build(v)?))
            }
            TokenizerSource::Json(j) => Inner::Json(Box::new(json::JsonTokenizerReady::build(&j.json)?)),
        };
        Ok(Tokenizer { roles: source.roles().clone(), inner })
    }

    /// The ids of `text`. With `add_bos`, what the model expects around a whole text is added: the beginning token if
    /// [`Roles::add_bos`] says so (for a tokenizer.json, what its own post-processor adds). No ending token is added to a
    /// vocabulary's ids: a prompt is to be continued.
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Result<Vec<u32>> {
        match &self.inner {
            Inner::Vocabulary(v) => {
                let mut ids = Vec::new();
                ids.extend(self.roles.bos.filter(|_| add_bos && self.roles.add_bos));
                v.encode(text, special, &mut ids);
                Ok(ids)
            }
            Inner::Json(j) => j.encode(text, special, add_bos),
        }
    }

    /// The ids of a rendered chat template: markers are tokens, and the beginning token is added only if the model wants
    /// one and the template has not written it.
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>> {
        let written = self.bos_text().is_some_and(|bos| !bos.is_empty() && rendered.starts_with(&bos));
        self.encode(rendered, Special::AsTokens, !written)
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD. Markers are written only with `special`.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut bytes = Vec::new();
        for id in ids.iter().filter(|id| special || !self.is_control(**id)) {
            bytes.extend_from_slice(&self.piece(*id));
        }
        let start = usize::from(self.strips_first_space() && bytes.first() == Some(&b' '));
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    /// The raw bytes of one token, which may be a part of a character; a marker's own text; nothing for an id that the
    /// vocabulary does not have.
    pub fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        match &self.inner {
            Inner::Vocabulary(v) => v.piece(id),
            Inner::Json(j) => j.piece(id),
        }
    }

    /// `ids` for people.
    pub fn pieces(&self, ids: &[u32]) -> Vec<Piece> {
        let piece = |id: &u32| Piece {
            id: *id,
            printable: printable(&self.piece(*id)),
            control: self.is_control(*id),
        };
        ids.iter().map(piece).collect()
    }

    /// The id of the token with exactly this text in the vocabulary's own writing.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match &self.inner {
            Inner::Vocabulary(v) => v.token_to_id(token),
            Inner::Json(j) => j.token_to_id(token),
        }
    }

    /// True for markers: tokens that are not text.
    pub fn is_control(&self, id: u32) -> bool {
        match &self.inner {
            Inner::Vocabulary(v) => v.is_control(id),
            Inner::Json(j) => j.is_control(id),
        }
    }

    /// True for the tokens that end a generation.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.roles.end_of_generation.binary_search(&id).is_ok()
    }

    /// All tokens that end a generation, ascending.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.roles.end_of_generation
    }

    /// Ids with a role.
    pub fn roles(&self) -> &Roles {
        &self.roles
    }

    /// The beginning token's text.
    pub fn bos_text(&self) -> Option<String> {
        self.roles.bos.map(|id| String::from_utf8_lossy(&self.piece(id)).into_owned())
    }

    /// The ending token's text.
    pub fn eos_text(&self) -> Option<String> {
        self.roles.eos.map(|id| String::from_utf8_lossy(&self.piece(id)).into_owned())
    }

    /// Number of ids, holes included.
    pub fn vocab_size(&self) -> usize {
        match &self.inner {
            Inner::Vocabulary(v) => v.vocab_size(),
            Inner::Json(j) => j.vocab_size(),
        }
    }

    /// Memory that the tokenizer holds, but for compiled expressions; of a tokenizer.json, which another library runs, only
    /// that the amount is not known.
    pub fn memory_bytes(&self) -> Option<usize> {
        match &self.inner {
            Inner::Vocabulary(v) => Some(v.memory_bytes()),
            Inner::Json(_) => None,
        }
    }

    /// True if a text's first token carries a space that is not in the text.
    pub fn strips_first_space(&self) -> bool {
        match &self.inner {
            Inner::Vocabulary(v) => v.adds_space(),
            Inner::Json(j) => j.adds_space(),
        }
    }
}

/// Bytes as text in which every character can be seen.
fn printable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if c.is_control() || (c.is_whitespace() && c != ' ') => out.extend(c.escape_default()),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_shows_everything_in_one_line() {
        assert_eq!(printable("a b\n\t\u{1b}é\u{2028}\\".as_bytes()), "a b\\n\\t\\u{1b}é\\u{2028}\\\\");
        assert_eq!(printable(b"\xE2\x96"), "\\xE2\\x96");
    }
}
