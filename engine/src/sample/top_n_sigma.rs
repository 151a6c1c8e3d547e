//! Top-n-sigma (Tang et al., "Top-nσ: not all logits are you need", 2024): keeps logits within n standard deviations
//! of the best. As in llama.cpp the deviation is the population's, over all logits above −∞, and it comes first.

use super::math;
use super::pool::Pool;

/// Keeps tokens with logit ≥ best − n·σ; `n` is above 0.
pub(super) fn apply(pool: &mut Pool<'_>, n: f64) {
    if let Some(logits) = pool.all_logits() {
        let sigma = math::deviation(logits, pool.best());
        pool.keep_from(f64::from(pool.best()) - n * sigma);
    }
}
