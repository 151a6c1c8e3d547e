//! Top-k (Fan et al., "Hierarchical neural story generation", 2018): keeps the k best tokens, of equals the lower ids.

use super::pool::Pool;

/// Keeps the `k` best tokens; `k` is above 0.
pub(super) fn apply(pool: &mut Pool<'_>, k: u32) {
    pool.keep_top(k as usize);
}
