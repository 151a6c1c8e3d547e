//! XTC, "exclude top choices" (p-e-w, text-generation-webui #6335): with some chance, of the tokens that are likely
//! enough only the least likely stays, with all that are not.
//!
//! As in llama.cpp, probabilities are those of what the steps before have left, renormalised, and no token is special.

use super::pool::{Pool, weight};

/// Removes all but the least probable of the tokens with a probability of at least `threshold`.
///
/// The caller has thrown the coin.
pub(super) fn apply(pool: &mut Pool<'_>, threshold: f64) {
    let total = pool.sum_exp();
    let best = pool.best();
    let likely = pool.list().iter().filter(|c| weight(c.logit, best) / total >= threshold).count();
    if likely > 1 {
        pool.drop_top(likely - 1);
    }
}
