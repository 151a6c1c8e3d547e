//! Statistics of paired samples: the median of ratios, its block-bootstrap interval, the win rate, the noise floor and the
//! verdict. It does not know what was timed.
//!
//! Pairs are taken one after the other, so neighbours share whatever the machine was doing. The interval therefore resamples
//! blocks of neighbouring pairs (a circular moving-block bootstrap), which keeps that dependence; resampling single pairs
//! would give intervals that are too narrow on a drifting machine.

use serde::{Deserialize, Serialize};

/// Resamples of an interval: its ends then stand on fifty resamples each.
pub const RESAMPLES: usize = 10_000;

/// Share of resamples inside an interval.
pub const CONFIDENCE: f64 = 0.99;

/// The smallest noise floor that is believed.
pub const LEAST_FLOOR: f64 = 0.01;

/// Fewer pairs than this are never called: a bootstrap of so few values has no tails.
pub const LEAST_PAIRS: usize = 10;

/// The median; of an even number of values, the mean of the two in the middle. NaN of none.
pub fn median(values: &[f64]) -> f64 {
    median_of(&mut values.to_vec())
}

fn median_of(values: &mut [f64]) -> f64 {
    let n = values.len();
    if n == 0 {
        return f64::NAN;
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    if n % 2 == 1 {
        return upper;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).unwrap_or(upper);
    lower + (upper - lower) / 2.0
}

/// The q-quantile with linear interpolation between order statistics (NumPy's default). NaN of none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, q)
}

fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let low = at.floor() as usize;
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same stream for a seed on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, by the high half of word·n.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.word()) * n as u128) >> 64) as usize
    }
}

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Interval {
    /// Half of its width.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Pairs of one block of the bootstrap: the smallest even number not below the cube root of `n`. Even, so that a block
/// holds both orders of the arms.
pub fn block_length(n: usize) -> usize {
    let mut length = 2;
    while length * length * length < n {
        length += 2;
    }
    length.min(n.max(1))
}

/// The circular moving-block bootstrap interval of the median, by percentiles.
///
/// Each resample takes ⌈n / length⌉ blocks whose starts are drawn from all n positions (a block runs over the end to the
/// beginning) and keeps the first n values.
pub fn bootstrap(values: &[f64], confidence: f64, resamples: usize, seed: u64) -> Interval {
    let n = values.len();
    if n == 0 || resamples == 0 {
        return Interval { low: f64::NAN, high: f64::NAN };
    }
    let length = block_length(n);
    let mut random = Random::new(seed);
    let mut drawn = Vec::with_capacity(n + length);
    let mut medians: Vec<f64> = (0..resamples)
        .map(|_| {
            drawn.clear();
            while drawn.len() < n {
                let start = random.below(n);
                drawn.extend((0..length).map(|i| values[(start + i) % n]));
            }
            median_of(&mut drawn[..n])
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    Interval { low: quantile_of_sorted(&medians, tail), high: quantile_of_sorted(&medians, 1.0 - tail) }
}

/// What pairs say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many pairs.
    pub pairs: usize,
    /// Median of b's rate over a's: above 1 where b is faster.
    pub ratio: f64,
    /// Its 99% interval.
    pub interval: Interval,
    /// Share of pairs in which b was faster; a tie counts half.
    pub win_rate: f64,
}

/// Summarises paired ratios (b's rate over a's).
pub fn summarise(ratios: &[f64], seed: u64) -> Summary {
    let wins: f64 = ratios
        .iter()
        .map(|&r| {
            if r > 1.0 {
                1.0
            } else if r < 1.0 {
                0.0
            } else {
                0.5
            }
        })
        .sum();
    Summary {
        pairs: ratios.len(),
        ratio: median(ratios),
        interval: bootstrap(ratios, CONFIDENCE, RESAMPLES, seed),
        win_rate: if ratios.is_empty() { f64::NAN } else { wins / ratios.len() as f64 },
    }
}

/// The noise floor F of an A/A check: the larger of 1% and the half-width of its interval.
pub fn noise_floor(a_a: &Summary) -> f64 {
    // A NaN half-width must not be passed over as `max` would.
    let half = a_a.interval.half_width();
    if half.is_nan() { f64::INFINITY } else { half.max(LEAST_FLOOR) }
}

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// b is faster than a: the interval lies wholly above the floor.
    Faster,
    /// b is slower than a: the interval lies wholly below the floor.
    Slower,
    /// The same within the margin: the interval lies wholly inside it.
    Same,
    /// Neither.
    NotResolved {
        /// Pairs that would resolve it if the spread stays as it is; none where no number would.
        pairs_needed: Option<usize>,
    },
}

/// The verdict on `a_b` with the noise floor `floor` and the margin `margin`, both as shares of 1 (0.01 is 1%).
pub fn verdict(a_b: &Summary, floor: f64, margin: f64) -> Verdict {
    let Interval { low, high } = a_b.interval;
    if a_b.pairs < LEAST_PAIRS {
        let needed = pairs_needed(a_b, floor, margin).unwrap_or(0).max(LEAST_PAIRS);
        return Verdict::NotResolved { pairs_needed: Some(needed) };
    }
    if low - 1.0 > floor {
        Verdict::Faster
    } else if high - 1.0 < -floor {
        Verdict::Slower
    } else if low - 1.0 > -margin && high - 1.0 < margin {
        Verdict::Same
    } else {
        Verdict::NotResolved { pairs_needed: pairs_needed(a_b, floor, margin) }
    }
}

/// How many pairs would resolve a comparison: both intervals shrink as one over the root of the number of pairs, and the
/// effect is taken to be what was seen.
pub fn pairs_needed(a_b: &Summary, floor: f64, margin: f64) -> Option<usize> {
    let (effect, half) = ((a_b.ratio - 1.0).abs(), a_b.interval.half_width());
    if !effect.is_finite() || !half.is_finite() || half <= 0.0 || !floor.is_finite() {
        return None;
    }
    // The factor by which the intervals must shrink to be called at all, and to be called the same.
    let called = ((effect - LEAST_FLOOR) / half).min(effect / (half + floor));
    let same = (margin - effect) / half;
    let shrink = called.max(same);
    if shrink <= 0.0 {
        return None;
    }
    // The seen effect is itself uncertain, so that a little more is wanted than what it alone asks for.
    let needed = (a_b.pairs as f64 / (shrink * shrink)).ceil().max(a_b.pairs as f64 + 1.0);
    (needed < 1e9).then_some(needed as usize)
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Faster => f.write_str("faster"),
            Verdict::Slower => f.write_str("slower"),
            Verdict::Same => f.write_str("the same within the margin"),
            Verdict::NotResolved { pairs_needed: Some(n) } => {
                write!(f, "not resolved; about {n} pairs would be needed")
            }
            Verdict::NotResolved { pairs_needed: None } => {
                f.write_str("not resolved; with this floor and margin no number of pairs would do")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        cases: Vec<Case>,
        words: Vec<String>,
    }

    #[derive(Deserialize)]
    struct Case {
        name: String,
        ratios: Vec<f64>,
        seed: u64,
        median: f64,
        low: f64,
        high: f64,
        win_rate: f64,
        quantiles: Vec<(f64, f64)>,
        /// SciPy's interval of the same values by its own generator, where pairs are independent.
        scipy: Option<(f64, f64)>,
    }

    fn golden() -> Golden {
        serde_json::from_str(include_str!("../../golden/stats/stats.json")).unwrap()
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = Random::new(1_234_567);
        let words: Vec<String> = (0..5).map(|_| random.word().to_string()).collect();
        assert_eq!(words, golden().words);
    }

    #[test]
    fn summaries_are_those_of_numpy() {
        for case in golden().cases {
            let s = summarise(&case.ratios, case.seed);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs().max(1.0);
            assert!(near(s.ratio, case.median), "{}: {} {}", case.name, s.ratio, case.median);
            assert!(near(s.win_rate, case.win_rate), "{}", case.name);
            assert!(near(s.interval.low, case.low), "{}: {} {}", case.name, s.interval.low, case.low);
            assert!(near(s.interval.high, case.high), "{}: {} {}", case.name, s.interval.high, case.high);
            for (q, want) in case.quantiles {
                assert!(near(quantile(&case.ratios, q), want), "{} at {q}", case.name);
            }
        }
    }

    #[test]
    fn independent_pairs_get_about_scipys_interval() {
        for case in golden().cases {
            let Some((low, high)) = case.scipy else { continue };
            let ours = summarise(&case.ratios, case.seed).interval;
            // Other resamples and blocks: the ends agree within a quarter of the width.
            let room = (high - low) / 4.0;
            assert!(
                (ours.low - low).abs() < room && (ours.high - high).abs() < room,
                "{}: {ours:?}",
                case.name
            );
        }
    }

    fn summary(ratio: f64, low: f64, high: f64) -> Summary {
        Summary { pairs: 100, ratio, interval: Interval { low, high }, win_rate: 0.5 }
    }

    #[test]
    fn the_floor_is_never_below_one_per_cent() {
        assert_eq!(noise_floor(&summary(1.0, 0.999, 1.001)), 0.01);
        assert!((noise_floor(&summary(1.0, 0.97, 1.03)) - 0.03).abs() < 1e-12);
        assert_eq!(noise_floor(&summary(1.0, f64::NAN, f64::NAN)), f64::INFINITY);
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let of = |ratio, low, high| verdict(&summary(ratio, low, high), 0.012, 0.03);
        assert_eq!(of(1.05, 1.013, 1.09), Verdict::Faster);
        assert_eq!(of(0.95, 0.91, 0.987), Verdict::Slower);
        assert_eq!(of(1.0, 0.971, 1.029), Verdict::Same);
        // Beyond the floor and inside the margin: the effect is called.
        assert_eq!(of(1.02, 1.0125, 1.028), Verdict::Faster);
        // An end on the wrong side leaves it open.
        assert!(matches!(of(1.05, 1.011, 1.09), Verdict::NotResolved { pairs_needed: Some(n) } if n > 100));
        assert!(matches!(of(1.0, 0.969, 1.02), Verdict::NotResolved { .. }));
        assert_eq!(of(f64::NAN, f64::NAN, f64::NAN), Verdict::NotResolved { pairs_needed: None });
    }

    #[test]
    fn few_pairs_are_never_called() {
        let few = Summary { pairs: LEAST_PAIRS - 1, ..summary(2.0, 1.9, 2.1) };
        assert_eq!(verdict(&few, 0.01, 0.03), Verdict::NotResolved { pairs_needed: Some(LEAST_PAIRS) });
    }

    #[test]
    fn the_pairs_needed_follow_from_the_spread() {
        // Called: 5% seen, half-width 6%, floor 1%: shrink by min(4/6, 5/7). Same: no.
        let open = summary(1.05, 0.99, 1.11);
        assert_eq!(
            pairs_needed(&open, 0.01, 0.03),
            Some((100.0f64 / (4.0f64 / 6.0).powi(2)).ceil() as usize)
        );
        // Nothing seen, half-width 6%: the margin of 3% asks for half the width.
        assert!(matches!(pairs_needed(&summary(1.0, 0.94, 1.06), 0.01, 0.03), Some(400 | 401)));
        // An effect that is the floor and the margin at once can never be told.
        assert_eq!(pairs_needed(&summary(1.01, 0.94, 1.08), 0.01, 0.01), None);
    }

    #[test]
    fn blocks_are_even_and_no_longer_than_the_data() {
        assert_eq!([1, 2, 8, 9, 64, 65, 1000].map(block_length), [1, 2, 2, 4, 4, 6, 10]);
    }

    #[test]
    fn nothing_gives_nothing() {
        let s = summarise(&[], 1);
        assert!(s.ratio.is_nan() && s.interval.low.is_nan() && s.win_rate.is_nan());
        assert!(median(&[]).is_nan() && quantile(&[], 0.5).is_nan());
    }
}
