//! Last step: log-weights (by temperature or a curve), Gumbel noise, and the token with the greatest sum.
//!
//! This is a draw from the distribution ∝ e^log-weight (Gumbel-max). It finds the same token as evaluating every one;
//! what cannot win is skipped, by the best sum so far and the most that noise can add to it or to its block.

use super::curve::Curve;
use super::pool::{Candidate, Running};
use super::random::{self, BLOCK, MAX_NOISE, Noise};
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
        Running::Listed(list) => draw_from_list(list, best, shape, noise),
        Running::All { logits, block_max } => draw_from_all(logits, block_max, best, shape, noise),
    }
}

/// The best token with its score: where a draw starts, because most others then need more noise than they can have.
fn start(token: u32, best: f32, shape: Shape<'_>, noise: &Noise) -> Winner {
    let earliest = noise.earliest(token / BLOCK as u32);
    Winner { token, score: shape.log_weight(best) + noise.of_token(token, &earliest) }
}

fn draw_from_list(list: &[Candidate], best: f32, shape: Shape<'_>, noise: &Noise) -> u32 {
    let token = list.iter().filter(|c| c.logit == best).map(|c| c.token).min().unwrap_or(list[0].token);
    let mut winner = start(token, best, shape, noise);
    // Long lists are in the order of tokens: a block's earliest arrival serves its neighbours.
    let mut earliest = noise.earliest(token / BLOCK as u32);
    let mut most = earliest.noise();
    for candidate in list {
        let log_weight = shape.log_weight(candidate.logit);
        if log_weight + MAX_NOISE < winner.score {
            continue;
        }
        let block = candidate.token / BLOCK as u32;
        if block != earliest.block {
            earliest = noise.earliest(block);
            most = earliest.noise();
        }
        if log_weight + most >= winner.score {
            winner.challenge(candidate.token, log_weight + noise.of_token(candidate.token, &earliest));
        }
    }
    winner.token
}

fn draw_from_all(logits: &[f32], block_max: &[f32], best: f32, shape: Shape<'_>, noise: &Noise) -> u32 {
    let block = block_max.iter().position(|&max| max == best).unwrap_or(0);
    let inside = logits[block * BLOCK..].iter().position(|&l| l == best).unwrap_or(0);
    let mut winner = start((block * BLOCK + inside) as u32, best, shape, noise);
    // A curve's rounding may fall by far less than this as the logit rises.
    const SLACK: f64 = 1e-6;
    for (run, maxima) in block_max.chunks(BLOCK).enumerate() {
        let words = noise.block_words((run * BLOCK) as u32);
        for (i, &max) in maxima.iter().enumerate() {
            if max == f32::NEG_INFINITY {
                continue;
            }
            let needed = winner.score - shape.log_weight(max) - SLACK;
            if needed < MAX_NOISE && words.get(i) >= random::least_block_word(needed) {
                let block = run * BLOCK + i;
                let end = logits.len().min((block + 1) * BLOCK);
                challenge_with_block(
                    &mut winner,
                    block as u32,
                    &logits[block * BLOCK..end],
                    needed,
                    shape,
                    noise,
                );
            }
        }
    }
    winner.token
}

/// Lets the tokens of a block challenge; `needed` is the noise without which none of them can win.
fn challenge_with_block(
    winner: &mut Winner,
    block: u32,
    logits: &[f32],
    needed: f64,
    shape: Shape<'_>,
    noise: &Noise,
) {
    let earliest = noise.earliest(block);
    if earliest.noise() < needed {
        return;
    }
    let least = random::least_token_word(needed);
    let words = noise.token_words(block);
    for (i, &logit) in logits.iter().enumerate() {
        let token = block * BLOCK as u32 + i as u32;
        let word = words.get(i);
        if (word >= least || token == earliest.token) && logit > f32::NEG_INFINITY {
            winner.challenge(token, shape.log_weight(logit) + earliest.noise_of(token, word));
        }
    }
}
