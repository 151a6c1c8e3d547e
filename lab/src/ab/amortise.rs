//! How much work a sample holds: enough that what happens once per sample is at most 2% of it, by traffic, checked by doubling.

use serde::Serialize;

use crate::arms::Arm;
use crate::guards::{Caught, MOST_FIXED, amortised, fixed_share, long_enough};
use crate::stats::median;
use crate::{Error, Result};

/// The work of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Amortised {
    /// Repetitions.
    pub inner: u64,
    /// Share of fixed cost that the doubling showed; none where an arm cannot repeat within a sample.
    pub fixed_share: Option<f64>,
}

/// How often each size is timed in the check.
const TIMES: usize = 5;

/// How often the work is doubled before the search is given up.
const DOUBLINGS: u32 = 5;

/// Chooses the repetitions for both arms, by `traffic_bytes`, and checks them by doubling.
///
/// # Errors
/// Fixed cost stays above 2% however much is done; an arm fails.
pub fn amortise(arms: &mut [&mut dyn Arm], traffic_bytes: u64) -> Result<Amortised> {
    let each: Option<Vec<u64>> = arms.iter().map(|arm| arm.bytes_per_repetition()).collect();
    let Some(least) = each.and_then(|bytes| bytes.into_iter().min()) else {
        return Ok(Amortised { inner: 1, fixed_share: None });
    };
    let mut inner = traffic_bytes.div_ceil(least.max(1)).clamp(1, 1 << 30);
    let mut turn = 1 << 40;
    for doubling in 0..=DOUBLINGS {
        let mut worst = f64::NEG_INFINITY;
        let mut refused: Option<Caught> = None;
        for arm in arms.iter_mut() {
            let (mut once, mut doubled) = (Vec::new(), Vec::new());
            for _ in 0..TIMES {
                turn += 1;
                once.push(arm.take(inner, turn)?.elapsed_ns as f64);
                doubled.push(arm.take(2 * inner, turn)?.elapsed_ns as f64);
            }
            let (once, doubled) = (median(&once), median(&doubled));
            worst = worst.max(fixed_share(once, doubled));
            let checked = amortised(once, doubled).and_then(|()| long_enough(once as u64, 100));
            refused = refused.or(checked.err());
        }
        match refused {
            None => return Ok(Amortised { inner, fixed_share: Some(worst.max(0.0)) }),
            Some(caught) if doubling == DOUBLINGS => return Err(Error::Caught(caught)),
            // A noisy pair of medians can show more than there is; more work never hurts.
            Some(_) => inner *= 2,
        }
    }
    Err(Error::invalid("fixed cost of a sample", format!("at most {:.0}%", MOST_FIXED * 100.0), "more"))
}
