//! The settings of a sampler: every knob, its off value, and what it may be.
//!
//! It knows no model and no default of anyone's taste: all knobs off is plain sampling from the model's distribution.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::{Curve, ToneCurve};

/// Settings of a sampler, in the order of the chain. The default has every knob off and draws at temperature 1.
///
/// In JSON absent fields take their off values and unknown ones are an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerConfig {
    /// Nats added to single tokens' logits; −∞ (only from code) bans a token. Off: empty.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Logits of tokens in the window are divided by this where positive and multiplied where not. Above 0; off: 1.
    pub repetition_penalty: f64,
    /// Subtracted once from the logit of every token in the window. Off: 0.
    pub presence_penalty: f64,
    /// Subtracted from a token's logit for every time it stands in the window. Off: 0.
    pub frequency_penalty: f64,
    /// The window of the three penalties: so many of the history's last tokens; `None` is all of it, 0 none.
    pub penalty_last_n: Option<u32>,
    /// DRY: the penalty of a token that would lengthen a repeat of exactly `dry_allowed_length` tokens. Off: 0.
    pub dry_multiplier: f64,
    /// DRY: factor for every token more that the repeat is long. At least 1.
    pub dry_base: f64,
    /// DRY: repeats shorter than this go free.
    pub dry_allowed_length: u32,
    /// DRY: the window, in tokens from the end of the history; `None` is all of it, 0 none.
    pub dry_last_n: Option<u32>,
    /// DRY: tokens over which no repeat reaches, and which are not penalised.
    pub dry_sequence_breakers: Vec<u32>,
    /// Keeps tokens whose logit is within so many standard deviations of the best one's. 0 or more; off: 0.
    pub top_n_sigma: f64,
    /// Keeps so many of the best tokens. 1 is greedy; off: 0.
    pub top_k: u32,
    /// Keeps the tokens whose surprise is closest to the entropy, until their mass exceeds this. In 0 to 1; off: 1.
    pub typical_p: f64,
    /// Keeps the fewest best tokens whose mass reaches this. In 0 to 1; 0 is greedy; off: 1.
    pub top_p: f64,
    /// Keeps tokens with at least this fraction of the best one's probability. In 0 to 1; off: 0.
    pub min_p: f64,
    /// Chance that XTC acts at a position. In 0 to 1; off: 0.
    pub xtc_probability: f64,
    /// Where XTC acts, of the tokens with at least this probability only the least probable stays. In 0 to 1.
    pub xtc_threshold: f64,
    /// Logits are divided by this before the draw. 0 is greedy; 1 leaves them.
    pub temperature: f64,
    /// Curve v2, in place of everything from top-k to temperature. Off: `None`.
    pub curve: Option<Curve>,
    /// Curve v1, in place of everything from top-k to XTC; the temperature is its own. Off: `None`.
    pub hlg: Option<ToneCurve>,
    /// The seed; without one the sampler draws one from the system and reports it.
    pub seed: Option<u64>,
    /// Whether a [`Choice`](super::Choice) comes with the model's log-probability, which costs a pass over the logits.
    pub logprobs: bool,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        SamplerConfig {
            logit_bias: BTreeMap::new(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: None,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: None,
            dry_sequence_breakers: Vec::new(),
            top_n_sigma: 0.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            temperature: 1.0,
            curve: None,
            hlg: None,
            seed: None,
            logprobs: false,
        }
    }
}

impl SamplerConfig {
    /// Checks every knob; the error names the first that lies outside what it may be.
    pub fn validate(&self) -> Result<()> {
        for (&token, &bias) in &self.logit_bias {
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(Error::setting(
                    format!("logit_bias of token {token}"),
                    "a number below infinity",
                    bias,
                ));
            }
        }
        let finite = [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("repetition_penalty", self.repetition_penalty),
        ];
        for (name, value) in finite {
            if !value.is_finite() {
                return Err(Error::setting(name, "a finite number", value));
            }
        }
        if self.repetition_penalty <= 0.0 {
            return Err(Error::setting("repetition_penalty", "above 0", self.repetition_penalty));
        }
        let from_zero = [
            ("dry_multiplier", self.dry_multiplier),
            ("top_n_sigma", self.top_n_sigma),
            ("temperature", self.temperature),
        ];
        for (name, value) in from_zero {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::setting(name, "0 or more, and finite", value));
            }
        }
        if !(self.dry_base >= 1.0 && self.dry_base.is_finite()) {
            return Err(Error::setting("dry_base", "1 or more, and finite", self.dry_base));
        }
        let fractions = [
            ("typical_p", self.typical_p),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
        ];
        for (name, value) in fractions {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::setting(name, "0 to 1", value));
            }
        }
        if let Some(tone) = &self.hlg {
            tone.validate()?;
            if self.curve.is_some() {
                return Err(Error::setting("curve and hlg", "one of them", "both"));
            }
        }
        Ok(())
    }

    /// True if the best token is always taken: temperature 0, or top_k 1 or top_p 0.
    ///
    /// What a curve replaces does not count: with `curve` none of them, with `hlg` only the temperature.
    pub fn is_greedy(&self) -> bool {
        match (&self.curve, &self.hlg) {
            (Some(_), _) => false,
            // 1/T is the curve's slope; from here on it leaves no second token.
            (None, Some(_)) => self.temperature < 1e-30,
            (None, None) => self.temperature == 0.0 || self.top_k == 1 || self.top_p == 0.0,
        }
    }
}
