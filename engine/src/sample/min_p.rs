//! Min-p (Nguyen et al., "Turning up the heat", 2024): keeps tokens with at least p times the best one's probability.

use super::pool::Pool;

/// Keeps tokens with logit ≥ best + ln p; `p` is in (0, 1].
pub(super) fn apply(pool: &mut Pool<'_>, p: f64) {
    pool.keep_from(f64::from(pool.best()) + libm::log(p));
}
