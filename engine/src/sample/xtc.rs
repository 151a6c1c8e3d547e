//! XTC, "exclude top choices" (p-e-w, text-generation-webui #6335): with some chance, of the tokens that are likely
//! enough only the least likely stays, with all that are not.
//!
//! As in llama.cpp, probabilities are those of what the steps before have left, renormalised, and no token is special.

use super::pool::{Pool, by_rank};

/// Removes all but the least probable of the tokens with a probability of at least `threshold`.
///
/// The caller has thrown the coin.
pub(super) fn apply(pool: &mut Pool<'_>, threshold: f64) {
    let least = f64::from(pool.best()) + libm::log(threshold * pool.sum_exp());
    let likely = pool.between(least, f64::INFINITY);
    let last = likely.iter().max_by(|a, b| by_rank(a, b));
    if let (Some(&last), 2..) = (last, likely.len()) {
        pool.drop_before(last);
    }
}
