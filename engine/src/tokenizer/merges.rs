//! Merge lists as left, right and resulting ids, best first: read from a file's texts, or derived from a vocabulary's scores.
//!
//! It knows nothing of text to be tokenized.

use std::collections::{HashMap, HashSet};

use crate::Result;

/// Merges written as `left right`. A pair that comes twice counts where it comes first.
pub(super) fn from_texts(merges: &[String], ids: &HashMap<&str, u32>) -> Result<Vec<u32>> {
    let mut seen = HashSet::with_capacity(merges.len());
    let mut out = Vec::with_capacity(3 * merges.len());
    let mut joined = String::new();
    for (index, merge) in merges.iter().enumerate() {
        // A piece may itself begin with the separator, so the search starts after the first character.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let pair = merge[first..].find(' ').map(|at| (&merge[..first + at], &merge[first + at + 1..]));
        let found = pair.and_then(|(left, right)| {
            joined.clear();
            joined.extend([left, right]);
            Some((*ids.get(left)?, *ids.get(right)?, *ids.get(joined.as_str())?))
        });
        let Some((left, right, result)) = found else {
            return Err(tensor::Error::malformed(
                format!("tokenizer.ggml.merges[{index}]"),
                "two tokens with a space between them, whose concatenation is a token",
                format!("{merge:?}"),
            )
            .into());
        };
        if seen.insert((left, right)) {
            out.extend([left, right, result]);
        }
    }
    Ok(out)
}

/// The merges of a SentencePiece BPE vocabulary, which has scores instead: every split of a token into two tokens merges
/// them, at the rank of the whole token's score. Splits of one token come with the shorter left part first; equal scores
/// in the order of ids.
pub(super) fn from_scores(ids: &HashMap<&str, u32>, scores: &[f64]) -> Vec<u32> {
    let mut by_score: Vec<(&str, u32)> = ids.iter().map(|(text, id)| (*text, *id)).collect();
    by_score.sort_unstable_by(|(_, a), (_, b)| {
        let score = |id: &u32| scores[*id as usize] + 0.0; // -0.0 becomes 0.0
        score(b).total_cmp(&score(a)).then(a.cmp(b))
    });
    let mut out = Vec::new();
    for (text, id) in by_score {
        for (at, _) in text.char_indices().skip(1) {
            if let (Some(left), Some(right)) = (ids.get(&text[..at]), ids.get(&text[at..])) {
                out.extend([*left, *right, id]);
            }
        }
    }
    out
}
