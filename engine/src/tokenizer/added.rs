//! Tokens that are found in a text before it is tokenized: markers, and words that a vocabulary declares.
//!
//! It knows nothing of how the text between them is tokenized.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::{Error, Result};

/// A part of a text.
pub(super) enum Part<'t> {
    Token(u32),
    Text(&'t str),
}

/// Finds tokens: from the left, the longest one first.
pub(super) struct Added {
    automaton: Option<AhoCorasick>,
    tokens: Vec<(u32, bool)>,
}

impl Added {
    /// `tokens`: id, text, and whether the white space after it belongs to it.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str, bool)>) -> Result<Self> {
        let (mut texts, mut kept) = (Vec::new(), Vec::new());
        for (id, text, strips_right) in tokens.filter(|(_, text, _)| !text.is_empty()) {
            texts.push(text);
            kept.push((id, strips_right));
        }
        let automaton = if texts.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
            Some(built.map_err(|e| Error::Tokenizer(format!("special tokens: {e}")))?)
        };
        Ok(Added { automaton, tokens: kept })
    }

    /// Memory that finding takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let automaton = self.automaton.as_ref().map_or(0, AhoCorasick::memory_usage);
        automaton + size_of::<(u32, bool)>() * self.tokens.capacity()
    }

    /// The parts of `text`, in order; no empty ones.
    pub(super) fn parts<'t>(&self, text: &'t str) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let mut done = 0;
        for found in self.automaton.iter().flat_map(|a| a.find_iter(text)) {
            // What a token before it swallowed cannot begin a token.
            if found.start() < done {
                continue;
            }
            if found.start() > done {
                parts.push(Part::Text(&text[done..found.start()]));
            }
            let (id, strips_right) = self.tokens[found.pattern().as_usize()];
            parts.push(Part::Token(id));
            done = found.end();
            if strips_right {
                let rest = &text[done..];
                done += rest.len()
                    - rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0B').len();
            }
        }
        if done < text.len() {
            parts.push(Part::Text(&text[done..]));
        }
        parts
    }
}
