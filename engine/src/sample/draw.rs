//! Last step: log-weights (by temperature or a curve), Gumbel noise, and the token with the greatest sum.
//!
//! This is a draw from the distribution ∝ e^log-weight (Gumbel-max). It finds the same token as evaluating every one;
//! what cannot win is skipped, by the best sum so far and the most that noise can add.

use super::curve::Curve;
use super::pool::Running;
use super::random::{self, BLOCK, MAX_GUMBEL, Noise};
use super::tone::ToneCurve;

/// From a logit to a log-weight; it never falls as the logit rises.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape<'a> {
    /// (logit − best) / temperature, the temperature above 0.
    Temperature { best: f32, temperature: f64 },
    /// Curve v1 with middle slope `m`.
    Tone { best: f32, curve: &'a ToneCurve, m: f64 },
    /// Curve v2 of the logit less `log_total`, the log of Σ e^logit.
    Transfer { curve: &'a Curve, log_total: f64 },
}

impl Shape<'_> {
    /// The log-weight of a finite logit.
    pub(super) fn log_weight(&self, logit: f32) -> f64 {
        match *self {
            Shape::Temperature { best, temperature } => (f64::from(logit) - f64::from(best)) / temperature,
            Shape::Tone { best, curve, m } => curve.log_weight(f64::from(logit) - f64::from(best), m),
            Shape::Transfer { curve, log_total } => curve.log_weight(f64::from(logit) - log_total),
        }
    }
}

struct Winner {
    token: u32,
    score: f64,
}

impl Winner {
    fn challenge(&mut self, token: u32, score: f64) {
        if score > self.score || (score == self.score && token < self.token) {
            *self = Winner { token, score };
        }
    }
}

/// The token drawn. There is one in the running with a logit of `best`.
pub(super) fn draw(running: &Running<'_>, best: f32, shape: Shape<'_>, noise: &Noise) -> u32 {
    match *running {
        Running::Listed(list) => {
            let mut winner = Winner { token: list[0].token, score: f64::NEG_INFINITY };
            let floor = shape.log_weight(best) - 26.1;
            for candidate in list {
                let log_weight = shape.log_weight(candidate.logit);
                if log_weight >= floor && log_weight + MAX_GUMBEL >= winner.score {
                    let score = log_weight + random::gumbel(noise.word(candidate.token));
                    winner.challenge(candidate.token, score);
                }
            }
            winner.token
        }
        Running::All { logits, block_max } => draw_from_all(logits, block_max, best, shape, noise),
    }
}

fn draw_from_all(logits: &[f32], block_max: &[f32], best: f32, shape: Shape<'_>, noise: &Noise) -> u32 {
    // The best token first: most others then need more noise than they can have, or nearly have.
    let block = block_max.iter().position(|&max| max == best).unwrap_or(0);
    let inside = logits[block * BLOCK..].iter().position(|&l| l == best).unwrap_or(0);
    let first = (block * BLOCK + inside) as u32;
    let score = shape.log_weight(best) + random::gumbel(noise.word(first));
    let mut winner = Winner { token: first, score };
    for (block, (logits, &max)) in logits.chunks(BLOCK).zip(block_max).enumerate() {
        if max == f32::NEG_INFINITY {
            continue;
        }
        // A curve's rounding may fall by far less than this.
        let needed = winner.score - shape.log_weight(max) - 1e-6;
        if needed > MAX_GUMBEL {
            continue;
        }
        let least = random::least_word(needed);
        let start = (block * BLOCK) as u32;
        let words = noise.block(start);
        let mut greatest = 0;
        for row in &words {
            greatest = row.iter().fold(greatest, |a, &b| if b > a { b } else { a });
        }
        if greatest < least {
            continue;
        }
        for (i, &logit) in logits.iter().enumerate() {
            let word = words[i % 4][i / 4];
            if word >= least && logit > f32::NEG_INFINITY {
                winner.challenge(start + i as u32, shape.log_weight(logit) + random::gumbel(word));
            }
        }
    }
    winner.token
}
