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
    /// How far off that may be, by the spread of the check.
    pub uncertainty: f64,
}

/// Pairs of a size and its double that are timed at first, and where those leave it open.
const PAIRS: (usize, usize) = (3, 7);

/// How often the work is doubled before the search is given up.
const DOUBLINGS: u32 = 5;

/// The share of fixed cost by pairs, and twice the standard error of it (from the median deviation, as for a normal spread).
fn shown(once: &[f64], doubled: &[f64]) -> (f64, f64) {
    let shares: Vec<f64> =
        once.iter().zip(doubled).map(|(&once, &doubled)| fixed_share(once, doubled)).collect();
    let share = median(&shares);
    let deviations: Vec<f64> = shares.iter().map(|s| (s - share).abs()).collect();
    (share, 2.0 * 1.2533 * 1.4826 * median(&deviations) / (shares.len() as f64).sqrt())
}

struct Checked {
    share: f64,
    uncertainty: f64,
    refused: Option<Caught>,
}

/// Times `inner` repetitions beside twice as many.
fn check(arm: &mut dyn Arm, inner: u64, turn: &mut u64) -> Result<Checked> {
    let (mut once, mut doubled) = (Vec::new(), Vec::new());
    while once.len() < PAIRS.1 {
        *turn += 1;
        once.push(arm.take(inner, *turn)?.elapsed_ns as f64);
        doubled.push(arm.take(2 * inner, *turn)?.elapsed_ns as f64);
        if once.len() == PAIRS.0 && shown(&once, &doubled).0 <= MOST_FIXED {
            break;
        }
    }
    let (share, uncertainty) = shown(&once, &doubled);
    // Noise alone must not refuse: what is refused is fixed cost that stands out of it.
    let once = median(&once);
    let least_doubled = once * (2.0 - (share - uncertainty));
    let checked = amortised(once, least_doubled).and_then(|()| long_enough(once as u64, 100));
    Ok(Checked { share, uncertainty, refused: checked.err() })
}

/// Chooses the repetitions for both arms, by `traffic_bytes`, and checks them by doubling.
///
/// # Errors
/// Fixed cost stays above 2% however much is done; an arm fails.
pub fn amortise(arms: &mut [&mut dyn Arm], traffic_bytes: u64) -> Result<Amortised> {
    let each: Option<Vec<u64>> = arms.iter().map(|arm| arm.bytes_per_repetition()).collect();
    let Some(least) = each.and_then(|bytes| bytes.into_iter().min()) else {
        return Ok(Amortised { inner: 1, fixed_share: None, uncertainty: 0.0 });
    };
    // The check needs room for twice the work.
    let most = arms.iter().map(|arm| arm.most_repetitions() / 2).min().unwrap_or(1).clamp(1, 1 << 30);
    let mut inner = traffic_bytes.div_ceil(least.max(1)).clamp(1, most);
    let mut turn = 1 << 40;
    for doubling in 0..=DOUBLINGS {
        let mut worst = (f64::NEG_INFINITY, 0.0);
        let mut refused: Option<Caught> = None;
        for arm in arms.iter_mut() {
            // What noise alone refuses is rarely refused twice, and twice the work is half the pairs.
            let mut checked = check(&mut **arm, inner, &mut turn)?;
            if checked.refused.is_some() {
                checked = check(&mut **arm, inner, &mut turn)?;
            }
            if checked.share > worst.0 {
                worst = (checked.share, checked.uncertainty);
            }
            refused = refused.or(checked.refused);
        }
        match refused {
            None => {
                return Ok(Amortised { inner, fixed_share: Some(worst.0.max(0.0)), uncertainty: worst.1 });
            }
            Some(caught) if doubling == DOUBLINGS || inner == most => return Err(Error::Caught(caught)),
            Some(_) => inner = (2 * inner).min(most),
        }
    }
    Err(Error::invalid("fixed cost of a sample", format!("at most {:.0}%", MOST_FIXED * 100.0), "more"))
}
