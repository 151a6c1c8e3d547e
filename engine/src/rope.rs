//! Rotary embeddings as a file describes them, and the frequencies that follow.
//!
//! All in f64: the device takes sine and cosine of position·frequency and rounds once.

use serde::{Deserialize, Serialize};
use tensor::op::{Rope, RopeLayout};

/// A rotary embedding as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// θ: pair i of `dims/2` turns by θ^(−2i/dims) radians per position.
    pub base: f64,
    /// Channels of a head that turn, an even number; the others pass unchanged.
    pub dims: usize,
    /// Which channels form a pair.
    pub layout: RopeLayout,
    /// How the frequencies were changed for longer contexts.
    pub scaling: RopeScaling,
    /// One divisor per pair where the file lists them (`rope_freqs.weight`), else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divisors: Vec<f32>,
}

/// Published ways to stretch a rotary embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RopeScaling {
    /// None.
    None,
    /// Position interpolation (arXiv 2306.15595): every frequency divided by `factor`.
    Linear {
        /// The stretch.
        factor: f64,
    },
    /// YaRN (arXiv 2309.00071): high frequencies kept, low ones interpolated, a ramp between.
    Yarn {
        /// The stretch.
        factor: f64,
        /// Context before stretching.
        original_context: usize,
        /// Turns over the original context above which a pair keeps its frequency (32).
        beta_fast: f64,
        /// Turns below which a pair is interpolated fully (1).
        beta_slow: f64,
        /// Weight of the kept frequency (1; 0 leaves plain interpolation).
        extrapolation: f64,
        /// Factor on cos and sin. The published rule is 0.1·ln(factor) + 1.
        magnitude: f64,
    },
    /// Llama 3.1's rule: by wavelength against the original context, with a smooth middle.
    Llama3 {
        /// The stretch of long wavelengths.
        factor: f64,
        /// Wavelengths above original_context/low_frequency are stretched fully.
        low_frequency: f64,
        /// Wavelengths below original_context/high_frequency are kept.
        high_frequency: f64,
        /// Context before stretching.
        original_context: usize,
    },
    /// LongRoPE (arXiv 2402.13753): a list of divisors found by search, one for short and one for long contexts.
    LongRope {
        /// Divisors for contexts up to `original_context`.
        short: Vec<f32>,
        /// Divisors beyond.
        long: Vec<f32>,
        /// Context before stretching.
        original_context: usize,
        /// Factor on cos and sin.
        magnitude: f64,
    },
}

impl RopeSpec {
    /// The rotation as a device needs it, for a model whose context is `model_context`.
    ///
    /// LongRoPE's list is chosen by the model file alone: the long one exactly when the model's own context exceeds
    /// the original one. Choosing by the prompt's length, as some do, would change the answer to a prefix when the
    /// text after it grows.
    pub fn resolve(&self, model_context: usize) -> Rope {
        let pairs = self.dims / 2;
        let plain = |i: usize| {
            let f = libm::pow(self.base, -((2 * i) as f64) / self.dims as f64);
            self.divisors.get(i).map_or(f, |&d| f / f64::from(d))
        };
        let mut magnitude = 1.0;
        let inv_freq: Vec<f64> = match &self.scaling {
            RopeScaling::None => (0..pairs).map(plain).collect(),
            RopeScaling::Linear { factor } => (0..pairs).map(|i| plain(i) / factor).collect(),
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                extrapolation,
                magnitude: m,
            } => {
                magnitude = *m;
                // The pair that makes `turns` turns over the original context.
                let pair_of = |turns: f64| {
                    let d = self.dims as f64;
                    d * libm::log(*original_context as f64 / (turns * 2.0 * std::f64::consts::PI))
                        / (2.0 * libm::log(self.base))
                };
                let low = libm::floor(pair_of(*beta_fast)).max(0.0);
                let high = libm::ceil(pair_of(*beta_slow)).min((self.dims - 1) as f64);
                let ramp = |i: usize| {
                    let y = (i as f64 - low) / (high - low).max(0.001);
                    (1.0 - y.clamp(0.0, 1.0)) * extrapolation
                };
                (0..pairs).map(|i| plain(i) / factor * (1.0 - ramp(i)) + plain(i) * ramp(i)).collect()
            }
            RopeScaling::Llama3 { factor, low_frequency, high_frequency, original_context } => {
                let stretch = |i: usize| {
                    let f = plain(i);
                    let turns = *original_context as f64 * f / (2.0 * std::f64::consts::PI);
                    if turns < *low_frequency {
                        f / factor
                    } else if turns > *high_frequency {
                        f
                    } else {
                        let smooth = (turns - low_frequency) / (high_frequency - low_frequency);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (0..pairs).map(stretch).collect()
            }
            RopeScaling::LongRope { short, long, original_context, magnitude: m } => {
                magnitude = *m;
                let list = if model_context > *original_context { long } else { short };
                (0..pairs).map(|i| list.get(i).map_or(plain(i), |&d| plain(i) / f64::from(d))).collect()
            }
        };
        Rope { layout: self.layout, inv_freq, magnitude }
    }
}

/// YaRN's published factor on cos and sin for a stretch.
pub(crate) fn yarn_magnitude(factor: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * libm::log(factor) + 1.0 }
}

/// LongRoPE's published factor on cos and sin for a stretch of `original_context`.
pub(crate) fn longrope_magnitude(factor: f64, original_context: usize) -> f64 {
    if factor <= 1.0 { 1.0 } else { libm::sqrt(1.0 + libm::log(factor) / libm::log(original_context as f64)) }
}
