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
    let (blocks, rest) = logits.as_chunks::<LANES>();
    for block in blocks {
        for (sum, &logit) in sums.iter_mut().zip(block) {
            *sum += f64::from(exp_nonpositive(logit - best));
        }
    }
    for (sum, &logit) in sums.iter_mut().zip(rest) {
        *sum += f64::from(exp_nonpositive(logit - best));
    }
    tree(sums)
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

/// Population standard deviation of the logits above −∞.
pub(super) fn deviation(logits: &[f32], best: f32) -> f64 {
    let alive = |logit: f32| logit > f32::NEG_INFINITY;
    let count = logits.iter().filter(|&&l| alive(l)).count().max(1) as f64;
    let sum = |term: &dyn Fn(f64) -> f64| {
        let mut sums = [0.0_f64; LANES];
        for block in logits.chunks(LANES) {
            for (sum, &logit) in sums.iter_mut().zip(block) {
                *sum += if alive(logit) { term(f64::from(logit) - f64::from(best)) } else { 0.0 };
            }
        }
        tree(sums)
    };
    let mean = sum(&|x| x) / count;
    (sum(&|x| (x - mean) * (x - mean)) / count).sqrt()
}

/// The greatest logit and the lowest token that has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Best {
    pub(super) token: u32,
    pub(super) logit: f32,
}

fn is_broken(logit: f32) -> bool {
    logit.is_nan() || logit == f32::INFINITY
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
    let mut broken = false;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let mut bad = [false; LANES];
        let (rows, rest) = block.as_chunks::<LANES>();
        for row in rows {
            for i in 0..LANES {
                lanes[i] = if row[i] > lanes[i] { row[i] } else { lanes[i] };
                bad[i] |= is_broken(row[i]);
            }
        }
        for (i, &logit) in rest.iter().enumerate() {
            lanes[i] = if logit > lanes[i] { logit } else { lanes[i] };
            bad[i] |= is_broken(logit);
        }
        broken |= bad.contains(&true);
        let max = lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
        if max > best.logit {
            best = Best { token: (index * BLOCK) as u32, logit: max };
        }
        if let Some(maxima) = &mut block_max {
            maxima.push(max);
        }
    }
    if broken {
        let token = logits.iter().position(|&l| is_broken(l)).unwrap_or(0);
        return Err(token as u32);
    }
    let first = best.token as usize;
    let inside = logits[first.min(logits.len())..].iter().position(|&l| l == best.logit).unwrap_or(0);
    best.token = (first + inside) as u32;
    Ok(best)
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
