//! Top-p, the nucleus (Holtzman et al., "The curious case of neural text degeneration", 2020): keeps the fewest best
//! tokens whose mass reaches p. As in llama.cpp, mass is a share of what the steps before have left.

use super::pool::Pool;

/// Keeps the fewest best tokens with at least `p` of the mass; `p` is in (0, 1).
pub(super) fn apply(pool: &mut Pool<'_>, p: f64) {
    pool.keep_top_mass(p);
}
