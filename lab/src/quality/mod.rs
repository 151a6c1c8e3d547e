//! How good a model's answers are, and how far two ways of running it are apart: perplexity, teacher-forced divergence
//! and agreement against a reference arm, and recall of needles at depths.
//!
//! Arms are models ready to step, however they were set up; this module does not know in what they differ.

mod metrics;
mod needle;

use engine::{Feed, LogitRows, Model};
use serde::{Deserialize, Serialize};

pub use metrics::{Divergence, Perplexity, Tally, best, kl, log_sum_exp};
pub use needle::{NEEDLES, Recall, recall};

use crate::{Error, Result};

/// A text that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Its name.
    pub name: &'static str,
    /// What it is and under which licence.
    pub note: &'static str,
    /// The text.
    pub text: &'static str,
}

/// The texts that come with the program.
pub const TEXTS: [Text; 2] = [
    Text {
        name: "valley",
        note: "prose written for plumb, MIT or Apache-2.0",
        text: include_str!("../../texts/valley.txt"),
    },
    Text {
        name: "mixed",
        note: "prose, code, tables and seven languages, written for plumb, MIT or Apache-2.0",
        text: include_str!("../../../golden/accuracy/text.txt"),
    },
];

/// A way to run a model.
pub struct Arm<'m> {
    /// What distinguishes it.
    pub name: String,
    /// Loaded for at least a window of positions.
    pub model: &'m mut Model,
}

/// What one arm made of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The arm.
    pub arm: String,
    /// Over the scored positions.
    pub perplexity: Perplexity,
    /// From the reference arm; none for the reference itself.
    pub divergence: Option<Divergence>,
}

/// How a text is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scoring {
    /// Positions of a window; windows do not see each other. A rest shorter than a window is left out.
    pub window: usize,
    /// The first token of each window, where the model begins with one.
    pub bos: Option<u32>,
}

/// Rows that are kept of each arm at a time.
const ROWS: usize = 32;

/// Scores a text with every arm, the first of which is the reference. In each window the second half is scored, so that
/// every scored token has at least half a window before it: the protocol of llama.cpp's perplexity tool, whose figures
/// these can be held against.
///
/// `progress` is told how many of how many positions are done.
///
/// # Errors
/// No arms; a text shorter than a window; arms of different vocabularies; the models' errors.
pub fn judge(
    arms: &mut [Arm<'_>],
    tokens: &[u32],
    scoring: Scoring,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Judged>> {
    let window = scoring.window;
    if window < 4 {
        return Err(Error::invalid("window", "at least 4 positions", window));
    }
    let Some(vocab) = arms.first().map(|a| a.model.plan().vocab) else {
        return Err(Error::invalid("arms", "at least one", 0));
    };
    if let Some(arm) = arms.iter().find(|a| a.model.plan().vocab != vocab) {
        let found = arm.model.plan().vocab;
        return Err(Error::invalid(format!("{}: vocabulary", arm.name), vocab, found));
    }
    let windows = tokens.len() / window;
    if windows == 0 {
        let found = format!("{} tokens", tokens.len());
        return Err(Error::invalid("text", format!("at least one window of {window} tokens"), found));
    }
    let mut tallies = vec![Tally::default(); arms.len()];
    let mut reference = Vec::new();
    for (done, chunk) in tokens.chunks_exact(window).enumerate() {
        let mut ids = chunk.to_vec();
        if let Some(bos) = scoring.bos {
            ids[0] = bos;
        }
        let mut sequences: Vec<_> = arms.iter().map(|a| a.model.sequence(&[])).collect();
        let first = window / 2;
        for (arm, sequence) in arms.iter_mut().zip(&mut sequences) {
            let feed = Feed { sequence, tokens: &ids[..first], logits: LogitRows::None };
            arm.model.step_with(&mut [feed], &mut |_, _, _| {})?;
        }
        // The last token has no successor within the window.
        for start in (first..window - 1).step_by(ROWS) {
            let end = (start + ROWS).min(window - 1);
            for (i, (arm, sequence)) in arms.iter_mut().zip(&mut sequences).enumerate() {
                let tally = &mut tallies[i];
                if i == 0 {
                    reference.clear();
                }
                let feed = Feed { sequence, tokens: &ids[start..end], logits: LogitRows::All };
                let kept = &mut reference;
                arm.model.step_with(&mut [feed], &mut |_, position, row| {
                    let truth = ids[position + 1];
                    if i == 0 {
                        kept.extend_from_slice(row);
                        tally.add(row, truth, None);
                    } else {
                        let at = (position - start) * vocab;
                        tally.add(row, truth, Some(&kept[at..at + vocab]));
                    }
                })?;
            }
            progress(done * window + end, windows * window);
        }
    }
    let judged = |(arm, tally): (&Arm<'_>, &Tally)| {
        let perplexity = tally.perplexity().ok_or_else(|| Error::invalid("text", "scored tokens", 0))?;
        Ok(Judged { arm: arm.name.clone(), perplexity, divergence: tally.divergence() })
    };
    arms.iter().zip(&tallies).map(judged).collect()
}
