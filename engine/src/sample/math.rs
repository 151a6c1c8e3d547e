//! Scans over all logits, written so that every processor and operating system gives the same bits.
//!
//! Only `+ − ×` and comparisons are used, in a fixed number of lanes, never fused: without a target feature a fused
//! multiply-add would be a function call per element. It knows nothing of tokens beyond their index.

use super::random::BLOCK;

const LANES: usize = 16;

/// e^x for x ≤ 0 with a relative error below 2⁻²¹; 0 for x below −87.
///
/// x = k·ln 2 + r with |r| ≤ ln 2 / 2, ln 2 in two parts of which the first times k is exact; the Taylor polynomial of
/// degree 7 in r errs by less than 6e-9; 2^k goes into the exponent.
#[inline(always)]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2²³: adding it rounds to an integer and leaves that in the low bits
    const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + SHIFT;
    let k = shifted - SHIFT;
    let r = clamped - k * LN2_HIGH - k * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for inverse in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + inverse;
    }
    let scale = f32::from_bits(shifted.to_bits().wrapping_sub(SHIFT.to_bits()).wrapping_add(127) << 23);
    if x > -87.0 { p * scale } else { 0.0 }
}

/// Σ e^(logit − best) over all logits, none above `best`.
pub(super) fn sum_exp(logits: &[f32], best: f32) -> f64 {
    let mut sums = [0.0_f64; LANES];
    in_rows(logits, |row| {
        let mut terms = [0.0_f32; LANES];
        for i in 0..LANES {
            terms[i] = exp_nonpositive(row[i] - best);
        }
        for i in 0..LANES {
            sums[i] += f64::from(terms[i]);
        }
    });
    tree(sums)
}

/// Σ e^d · d over all logits, d = logit − best, none above `best`.
pub(super) fn sum_exp_distance(logits: &[f32], best: f32) -> f64 {
    let mut sums = [0.0_f64; LANES];
    in_rows(logits, |row| {
        for i in 0..LANES {
            // From here down e^d is 0, and d may be −∞.
            let d = if row[i] - best > -87.0 { row[i] - best } else { -87.0 };
            sums[i] += f64::from(exp_nonpositive(d)) * f64::from(d);
        }
    });
    tree(sums)
}

/// Hands out the logits in rows of [`LANES`], the last one filled up with −∞.
#[inline(always)]
fn in_rows(logits: &[f32], mut each: impl FnMut(&[f32; LANES])) {
    let (rows, rest) = logits.as_chunks::<LANES>();
    rows.iter().for_each(&mut each);
    if !rest.is_empty() {
        let mut row = [f32::NEG_INFINITY; LANES];
        row[..rest.len()].copy_from_slice(rest);
        each(&row);
    }
}

fn tree(mut lanes: [f64; LANES]) -> f64 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Population standard deviation of the logits above −∞, of which `best` is the greatest.
///
/// One pass: sums of the distances from the best and of their squares, in f64.
pub(super) fn deviation(logits: &[f32], best: f32) -> f64 {
    let (mut sums, mut squares, mut counts) = ([0.0_f64; LANES], [0.0_f64; LANES], [0_u32; LANES]);
    in_rows(logits, |row| {
        for i in 0..LANES {
            let alive = row[i] > f32::NEG_INFINITY;
            let x = f64::from(if alive { row[i] } else { best }) - f64::from(best);
            sums[i] += x;
            squares[i] += x * x;
            counts[i] += u32::from(alive);
        }
    });
    let count = f64::from(counts.iter().sum::<u32>().max(1));
    let mean = tree(sums) / count;
    (tree(squares) / count - mean * mean).max(0.0).sqrt()
}

/// The greatest logit and the lowest token that has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Best {
    pub(super) token: u32,
    pub(super) logit: f32,
}

/// Finds the best token in one pass and, if asked, the maximum of every block of [`BLOCK`] tokens.
///
/// The error is the first token whose logit is NaN or +∞. Without any logit above −∞ the best one's is −∞.
pub(super) fn scan(logits: &[f32], mut block_max: Option<&mut Vec<f32>>) -> Result<Best, u32> {
    if let Some(maxima) = &mut block_max {
        maxima.clear();
        maxima.reserve(logits.len().div_ceil(BLOCK));
    }
    let mut best = Best { token: 0, logit: f32::NEG_INFINITY };
    let mut nans = [0_u32; LANES];
    let mut index = 0;
    let mut each = |block: &[f32; BLOCK]| {
        let (rows, _) = block.as_chunks::<LANES>();
        let mut lanes = rows[0];
        for row in rows {
            for i in 0..LANES {
                lanes[i] = if row[i] > lanes[i] { row[i] } else { lanes[i] };
                nans[i] |= u32::from(row[i].is_nan());
            }
        }
        let max = max_of(lanes);
        if max > best.logit {
            best = Best { token: index, logit: max };
        }
        index += BLOCK as u32;
        if let Some(maxima) = &mut block_max {
            maxima.push(max);
        }
    };
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    blocks.iter().for_each(&mut each);
    if !rest.is_empty() {
        let mut block = [f32::NEG_INFINITY; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        each(&block);
    }
    if nans.contains(&1) || best.logit == f32::INFINITY {
        let broken = |logit: f32| logit.is_nan() || logit == f32::INFINITY;
        return Err(logits.iter().position(|&l| broken(l)).unwrap_or(0) as u32);
    }
    let first = best.token as usize;
    let inside = logits[first.min(logits.len())..].iter().position(|&l| l == best.logit).unwrap_or(0);
    best.token = (first + inside) as u32;
    Ok(best)
}

fn max_of(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_stays_within_its_stated_error_of_libm_in_f64() {
        let mut worst = 0.0_f64;
        for i in 0..200_000_u32 {
            let x = -(i as f32) * (87.0 / 200_000.0);
            let exact = libm::exp(f64::from(x));
            worst = worst.max((f64::from(exp_nonpositive(x)) / exact - 1.0).abs());
        }
        assert!(worst < 2.0_f64.powi(-21), "{worst:e}");
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(0.0), 1.0);
    }

    #[test]
    fn the_best_token_is_the_lowest_of_equals_at_every_length() {
        for len in 1..300_usize {
            for at in [0, len / 2, len - 1] {
                let mut logits = vec![-5.0_f32; len];
                logits[at] = 2.0;
                logits[len - 1] = 2.0;
                assert_eq!(scan(&logits, None), Ok(Best { token: at as u32, logit: 2.0 }), "{len} {at}");
                logits[at] = f32::NAN;
                assert_eq!(scan(&logits, None), Err(at as u32));
            }
        }
    }
}
