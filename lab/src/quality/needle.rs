//! Needles: a sentence that says something found nowhere else, put into a long text at a depth, and whether the model
//! goes on with it when the text's end asks for it.
//!
//! The answer is teacher-forced and counts as recalled if each of its tokens is the model's best.

use engine::tokenizer::{Special, Tokenizer};
use engine::{Feed, LogitRows};
use serde::{Deserialize, Serialize};

use super::{Arm, TEXTS, best, log_sum_exp};
use crate::{Error, Result};

/// What is hidden, and how it goes on: the first words of both the sentence and the question, then the answer.
pub const NEEDLES: [(&str, &str); 5] = [
    ("The pass phrase of the old lighthouse is", " copper heron"),
    ("The key to the north cellar is kept under the", " blue beehive"),
    ("The name of the ferryman's second dog is", " Bartholomew"),
    ("The number painted on the miller's cart is", " 4719"),
    ("The word carved above the stable door is", " perseverance"),
];

/// Recall at one depth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recall {
    /// The arm.
    pub arm: String,
    /// Tokens of the whole text.
    pub context: usize,
    /// Where the needle lies: 0 is the beginning, 1 the end.
    pub depth: f64,
    /// Needles whose every token was the model's best.
    pub recalled: usize,
    /// Needles tried.
    pub needles: usize,
    /// Mean log-probability of an answer, in nats.
    pub answer_log_p: f64,
}

/// The text with a needle at a depth, in tokens, and how many of them at its end are the answer.
fn haystack(
    tokenizer: &Tokenizer,
    needle: (&str, &str),
    context: usize,
    depth: f64,
    bos: Option<u32>,
) -> Result<(Vec<u32>, usize)> {
    let encode = |text: &str| tokenizer.encode(text, Special::AsText, false).map_err(Error::from);
    let question = encode(&format!("\n\nTo say it once more: {}", lower_first(needle.0)))?;
    let answer = encode(needle.1)?;
    let hidden = encode(&format!(" {}{}.", needle.0, needle.1))?;
    let around = question.len() + answer.len() + hidden.len() + usize::from(bos.is_some());
    let Some(room) = context.checked_sub(around).filter(|&n| n >= 16) else {
        return Err(Error::invalid(
            "context for needles",
            format!("at least {} tokens", around + 16),
            context,
        ));
    };
    // Whole sentences of the text, again from its beginning where it is too short.
    let mut sentences = TEXTS[0].text.split_inclusive(". ").cycle();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (room_before, mut filled) = ((room as f64 * depth.clamp(0.0, 1.0)) as usize, 0);
    while filled < room {
        let Some(sentence) = sentences.next() else { break };
        let ids = encode(sentence.trim_end_matches(' '))?;
        let ids = &ids[..ids.len().min(room - filled)];
        filled += ids.len();
        if before.len() + ids.len() <= room_before {
            before.extend_from_slice(ids)
        } else {
            after.extend_from_slice(ids)
        }
    }
    let all = bos.into_iter().chain(before).chain(hidden).chain(after).chain(question);
    Ok((all.chain(answer.iter().copied()).collect(), answer.len()))
}

/// The question goes on a sentence.
fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_lowercase().chain(chars).collect())
}

/// Tries every needle at every depth in a text of `context` tokens, with every arm.
///
/// # Errors
/// A context too short for a needle; the tokenizer's and the models' errors.
pub fn recall(
    arms: &mut [Arm<'_>],
    tokenizer: &Tokenizer,
    context: usize,
    depths: &[f64],
    bos: Option<u32>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Recall>> {
    let mut out = Vec::new();
    let (mut done, total) = (0, arms.len() * depths.len() * NEEDLES.len());
    for &depth in depths {
        for arm in arms.iter_mut() {
            let (mut recalled, mut log_p) = (0, 0.0);
            for needle in NEEDLES {
                progress(done, total);
                done += 1;
                let (ids, answer) = haystack(tokenizer, needle, context, depth, bos)?;
                let asked = ids.len() - answer;
                let mut sequence = arm.model.sequence(&[]);
                let feed =
                    Feed { sequence: &mut sequence, tokens: &ids[..asked - 1], logits: LogitRows::None };
                arm.model.step_with(&mut [feed], &mut |_, _, _| {})?;
                let mut all_best = true;
                let tokens = &ids[asked - 1..ids.len() - 1];
                let feed = Feed { sequence: &mut sequence, tokens, logits: LogitRows::All };
                arm.model.step_with(&mut [feed], &mut |_, position, row| {
                    let truth = ids[position + 1] as usize;
                    all_best &= best(row) == truth;
                    log_p += f64::from(row[truth]) - log_sum_exp(row);
                })?;
                recalled += usize::from(all_best);
            }
            let answer_log_p = log_p / NEEDLES.len() as f64;
            out.push(Recall {
                arm: arm.name.clone(),
                context,
                depth,
                recalled,
                needles: NEEDLES.len(),
                answer_log_p,
            });
        }
    }
    progress(total, total);
    Ok(out)
}
