//! A vocabulary with merges, ready to tokenize: byte-pair merging, and around it how the vocabulary writes text.
//!
//! It does not know where the vocabulary came from.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use hashbrown::HashTable;

use super::Special;
use super::added::{Added, Part};
use super::bpe::{Merges, NONE, Workspace};
use super::bytes::{from_alphabet, to_alphabet};
use super::packed::Texts;
use super::pre::PreTokenizer;
use super::source::{Style, Vocabulary};
use crate::Result;

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
    tokens: Texts,
    kinds: Vec<Kind>,
    merges: Merges,
    writing: Writing,
    /// Ids by text; made when first asked for.
    index: OnceLock<(RandomState, HashTable<u32>)>,
    /// Found in any text.
    user_defined: Added,
    /// Found where markers are tokens.
    all: Added,
}

enum Writing {
    ByteLevel {
        pre: PreTokenizer,
        /// The token of each byte, or [`NONE`].
        byte_tokens: [u32; 256],
    },
    Spaced {
        add_space_prefix: bool,
        by_line: bool,
        /// Tokens of one character.
        characters: HashMap<char, u32>,
        /// The token of each byte, for characters that have none; [`NONE`] where there is none either.
        byte_tokens: [u32; 256],
        /// For bytes that have none.
        unknown: u32,
    },
}

impl VocabularyTokenizer {
    pub(super) fn build(source: &Vocabulary) -> Result<Self> {
        let tokens = source.tokens.clone();
        check_ids(source)?;
        let text_of = |id: u32| tokens.get(id as usize).unwrap_or_default();

        let mut kinds = vec![Kind::Text; tokens.len()];
        let mut raw_bytes = [NONE; 256];
        for id in &source.byte {
            let text = text_of(*id);
            let value = text.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
            let value = value.and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or_else(|| {
                tensor::Error::malformed(format!("byte token {id}"), "<0x00> to <0xFF>", format!("{text:?}"))
            })?;
            kinds[*id as usize] = Kind::Byte(value);
            raw_bytes[value as usize] = *id;
        }
        source.user_defined.iter().for_each(|id| kinds[*id as usize] = Kind::UserDefined);
        source.control.iter().for_each(|id| kinds[*id as usize] = Kind::Control);

        // Markers take no part, so that no text can merge into one.
        let usable = |id: u32| kinds[id as usize] != Kind::Control;
        let merges = Merges::new(source.merges.as_chunks::<3>().0, tokens.len(), usable);
        let single = (0u32..).zip(tokens.iter()).filter(|(id, _)| usable(*id)).filter_map(|(id, text)| {
            let mut chars = text.chars();
            chars.next().filter(|_| chars.next().is_none()).map(|c| (c, id))
        });
        let writing = match &source.style {
            Style::ByteLevel { pre } => {
                let mut byte_tokens = [NONE; 256];
                for (c, id) in single {
                    if let [byte] = from_alphabet(c.encode_utf8(&mut [0; 4])).as_slice() {
                        byte_tokens[*byte as usize] = id;
                    }
                }
                let pre = PreTokenizer::named(pre).ok_or_else(|| {
                    let what = format!("pre-tokenizer {pre:?}");
                    tensor::Error::unsupported(what, "this version of plumb does not know it")
                })?;
                Writing::ByteLevel { pre, byte_tokens }
            }
            Style::Spaced { add_space_prefix, by_line } => Writing::Spaced {
                add_space_prefix: *add_space_prefix,
                by_line: *by_line,
                characters: single.filter(|(_, id)| !matches!(kinds[*id as usize], Kind::Byte(_))).collect(),
                byte_tokens: raw_bytes,
                unknown: source.unknown.unwrap_or(NONE),
            },
        };
        let entry = |id: &u32| (*id, text_of(*id), source.strips_right.binary_search(id).is_ok());
        let user_defined = Added::new(source.user_defined.iter().map(entry))?;
        let markers = source.control.iter().chain(&source.look_alikes);
        let all = Added::new(source.user_defined.iter().chain(markers).map(entry))?;
        Ok(VocabularyTokenizer { tokens, kinds, merges, writing, index: OnceLock::new(), user_defined, all })
    }

    pub(super) fn encode(&self, text: &str, special: Special, ids: &mut Vec<u32>) {
        let added = match special {
            Special::AsText => &self.user_defined,
            Special::AsTokens => &self.all,
        };
        let mut room = Room::default();
        let mut after_token = true;
        for part in added.parts(text) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => self.encode_part(text, after_token, &mut room, ids),
            }
            after_token = matches!(part, Part::Token(_));
        }
    }

    fn encode_part(&self, text: &str, first: bool, room: &mut Room, ids: &mut Vec<u32>) {
        match &self.writing {
            Writing::ByteLevel { pre, byte_tokens } => {
                for word in pre.words(text) {
                    let word = &text[word];
                    if pre.ignore_merges {
                        to_alphabet(word, &mut room.written);
                        if let Some(id) = self.text_id(&room.written) {
                            ids.push(id);
                            continue;
                        }
                    }
                    room.merging.merge(&self.merges, word.bytes().map(|b| byte_tokens[b as usize]), ids);
                }
            }
            Writing::Spaced { add_space_prefix, by_line, .. } => {
                let prefix = (*add_space_prefix && first).then_some(SPACE);
                let mut written = std::mem::take(&mut room.written);
                written.clear();
                written
                    .extend(prefix.into_iter().chain(text.chars()).map(|c| if c == ' ' { SPACE } else { c }));
                let mut rest = written.as_str();
                while !rest.is_empty() {
                    let breaks = rest.len() - rest.trim_start_matches('\n').len();
                    let end = match (by_line, breaks) {
                        (false, _) => rest.len(),
                        (true, 0) => rest.find('\n').unwrap_or(rest.len()),
                        (true, breaks) => breaks,
                    };
                    let (run, after) = rest.split_at(end);
                    let whole = if *by_line && breaks > 0 { self.text_id(run) } else { None };
                    match whole {
                        Some(id) => ids.push(id),
                        None => self.merge_spaced(run, room, ids),
                    }
                    rest = after;
                }
                room.written = written;
            }
        }
    }

    /// Characters without a token become the tokens of their bytes, and bytes without one the unknown token, once for a
    /// run of them.
    fn merge_spaced(&self, run: &str, room: &mut Room, ids: &mut Vec<u32>) {
        let Writing::Spaced { characters, byte_tokens, unknown, .. } = &self.writing else { return };
        room.symbols.clear();
        for c in run.chars() {
            if let Some(id) = characters.get(&c) {
                room.symbols.push(*id);
                continue;
            }
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).bytes().map(|byte| byte_tokens[byte as usize]);
            if bytes.clone().all(|id| id != NONE) {
                room.symbols.extend(bytes);
            } else if room.symbols.last() != Some(unknown) {
                room.symbols.push(*unknown);
            }
        }
        room.merging.merge(&self.merges, room.symbols.iter().copied(), ids);
    }

    pub(super) fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        let Some((text, kind)) = self.tokens.get(id as usize).zip(self.kinds.get(id as usize)) else {
            return Cow::Borrowed(&[]);
        };
        match (kind, &self.writing) {
            (Kind::Control | Kind::UserDefined, _) => Cow::Borrowed(text.as_bytes()),
            (Kind::Byte(value), _) => Cow::Owned(vec![*value]),
            (Kind::Text, Writing::ByteLevel { .. }) => Cow::Owned(from_alphabet(text)),
            (Kind::Text, Writing::Spaced { .. }) if text.contains(SPACE) => {
                Cow::Owned(text.replace(SPACE, " ").into_bytes())
            }
            (Kind::Text, Writing::Spaced { .. }) => Cow::Borrowed(text.as_bytes()),
        }
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        let (hasher, table) = self.index.get_or_init(|| {
            let hasher = RandomState::new();
            let hash = |id: &u32| hasher.hash_one(self.tokens.get(*id as usize).unwrap_or_default());
            let mut table = HashTable::with_capacity(self.tokens.len());
            for (id, _) in (0u32..).zip(self.tokens.iter()).filter(|(_, text)| !text.is_empty()) {
                table.insert_unique(hash(&id), id, hash);
            }
            (hasher, table)
        });
        table.find(hasher.hash_one(token), |id| self.tokens.get(*id as usize) == Some(token)).copied()
    }

    /// The token that text with exactly this writing may become.
    fn text_id(&self, token: &str) -> Option<u32> {
        self.token_to_id(token).filter(|id| self.kinds[*id as usize] != Kind::Control)
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Control)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let characters = match &self.writing {
            Writing::ByteLevel { .. } => 0,
            Writing::Spaced { characters, .. } => size_of::<(char, u32, u64)>() * characters.capacity(),
        };
        let index = self.index.get().map_or(0, |(_, table)| table.allocation_size());
        self.tokens.memory_bytes()
            + size_of::<Kind>() * self.kinds.capacity()
            + self.merges.memory_bytes()
            + characters
            + index
            + self.user_defined.memory_bytes()
            + self.all.memory_bytes()
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn adds_space(&self) -> bool {
        matches!(self.writing, Writing::Spaced { add_space_prefix: true, .. })
    }
}

/// Memory that is used again from word to word.
#[derive(Default)]
struct Room {
    written: String,
    symbols: Vec<u32>,
    merging: Workspace,
}

/// A source that was not made here but read may hold anything.
fn check_ids(source: &Vocabulary) -> Result<()> {
    let limit = source.tokens.len();
    let lists: [(&str, &[u32]); 6] = [
        ("merges", &source.merges),
        ("control tokens", &source.control),
        ("user-defined tokens", &source.user_defined),
        ("byte tokens", &source.byte),
        ("look-alikes", &source.look_alikes),
        ("unknown token", source.unknown.as_slice()),
    ];
    for (what, ids) in lists {
        if let Some(id) = ids.iter().find(|id| **id as usize >= limit) {
            let what = format!("tokenizer {what}");
            return Err(tensor::Error::malformed(what, format!("ids below {limit}"), id.to_string()).into());
        }
    }
    if !source.merges.len().is_multiple_of(3) {
        let found = format!("{} ids", source.merges.len());
        return Err(tensor::Error::malformed("tokenizer merges", "ids in threes", found).into());
    }
    Ok(())
}
