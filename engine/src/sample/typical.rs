//! Locally typical sampling (Meister et al., "Locally typical sampling", 2023): keeps tokens by how close their
//! surprise is to the entropy, until their mass exceeds p.
//!
//! As in llama.cpp, entropy and mass are those of what the steps before have left, renormalised.

use super::pool::{Candidate, Pool, by_rank, weight};

/// Keeps the most typical tokens, the fewest whose mass exceeds `p`; `p` is in [0, 1).
pub(super) fn apply(pool: &mut Pool<'_>, p: f64) {
    let best = pool.best();
    let total = pool.sum_exp();
    let log_total = libm::log(total);
    let surprise = |logit: f32| log_total + f64::from(best) - f64::from(logit);
    let mut ranked: Vec<(f64, Candidate)> = pool.list().iter().map(|&c| (0.0, c)).collect();
    let entropy =
        ranked.iter().map(|(_, c)| weight(c.logit, best) / total * surprise(c.logit)).fold(0.0, |a, b| a + b);
    for (distance, candidate) in &mut ranked {
        *distance = (surprise(candidate.logit) - entropy).abs();
    }
    let order = |a: &(f64, Candidate), b: &(f64, Candidate)| a.0.total_cmp(&b.0).then(by_rank(&a.1, &b.1));
    let (mut mass, mut kept, mut sorted) = (0.0, 0, 0);
    while kept < ranked.len() {
        if kept == sorted {
            // Sort only as far as the mass asks for, in growing pieces.
            let next = (sorted * 8).max(128).min(ranked.len());
            if next < ranked.len() {
                ranked[sorted..].select_nth_unstable_by(next - sorted - 1, order);
            }
            ranked[sorted..next].sort_unstable_by(order);
            sorted = next;
        }
        mass += weight(ranked[kept].1.logit, best) / total;
        kept += 1;
        if mass > p {
            break;
        }
    }
    pool.replace(ranked[..kept].iter().map(|&(_, candidate)| candidate));
}
