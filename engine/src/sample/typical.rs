//! Locally typical sampling (Meister et al., "Locally typical sampling", 2023): keeps tokens by how close their
//! surprise is to the entropy, until their mass exceeds p.
//!
//! As in llama.cpp, entropy and mass are those of what the steps before have left, renormalised.

use super::pool::{Candidate, Pool, by_rank, weight};

/// Keeps the most typical tokens, the fewest whose mass exceeds `p`; `p` is in [0, 1).
pub(super) fn apply(pool: &mut Pool<'_>, p: f64) {
    let best = f64::from(pool.best());
    let total = pool.sum_exp();
    // The logit of a token whose surprise is the entropy.
    let middle = best + pool.sum_exp_distance() / total;
    let distance = |c: &Candidate| (f64::from(c.logit) - middle).abs();
    let mass = |c: &Candidate| weight(c.logit, best as f32) / total;
    // Rank only the tokens near the middle, unless they do not suffice.
    let mut near = Vec::new();
    for reach in [1.0, 2.0, 4.0, 8.0, 16.0, f64::INFINITY] {
        near = pool.between(middle - reach, middle + reach);
        if near.iter().map(mass).fold(0.0, |a, b| a + b) > p + 1e-6 {
            break;
        }
    }
    near.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then(by_rank(a, b)));
    let mut sum = 0.0;
    let enough = near.iter().position(|c| {
        sum += mass(c);
        sum > p
    });
    let kept = enough.map_or(near.len(), |last| last + 1);
    pool.replace(&near[..kept]);
}
