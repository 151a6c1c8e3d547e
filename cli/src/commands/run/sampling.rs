//! The sampler's flags: each one given replaces the model's own setting.

use std::path::PathBuf;

use anyhow::Context;
use engine::sample::{Curve, SamplerConfig, ToneCurve, sequence_breakers};
use engine::tokenizer::Tokenizer;

/// Flags of the sampling chain, in its order.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Sampling (a flag that is not given: the model's own setting, else off)")]
pub(crate) struct Flags {
    /// Start of the random numbers; the same seed gives the same tokens [default: drawn from the system]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Always take the best token
    #[arg(long, conflicts_with_all = ["temperature", "curve", "hlg"])]
    greedy: bool,
    /// Add X nats to a token's logit; may be repeated
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Divide the logits of tokens seen before by this
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f64>,
    /// Subtract this from the logits of tokens seen before
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f64>,
    /// Subtract this from a token's logit for every time it was seen before
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f64>,
    /// How many of the last tokens the three penalties see [default: all]
    #[arg(long, value_name = "N")]
    penalty_last_n: Option<u32>,
    /// DRY: how much to subtract from a token that would lengthen a repeat
    #[arg(long, value_name = "X")]
    dry_multiplier: Option<f64>,
    /// DRY: factor for every token more that the repeat is long [default: 1.75]
    #[arg(long, value_name = "X")]
    dry_base: Option<f64>,
    /// DRY: repeats shorter than this go free [default: 2]
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<u32>,
    /// DRY: how many of the last tokens it sees [default: all]
    #[arg(long, value_name = "N")]
    dry_last_n: Option<u32>,
    /// Keep tokens whose logit is within X standard deviations of the best one's
    #[arg(long, value_name = "X")]
    top_n_sigma: Option<f64>,
    /// Keep the N best tokens; 1 is greedy
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Keep the tokens of the most typical surprise, up to this mass
    #[arg(long, value_name = "P")]
    typical_p: Option<f64>,
    /// Keep the fewest best tokens whose mass reaches P; 0 is greedy
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Keep tokens with at least P of the best one's probability
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Chance that XTC removes the most probable tokens at a position
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f64>,
    /// XTC: tokens with at least this probability count as probable [default: 0.1]
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f64>,
    /// Divide the logits by this before the draw; 0 is greedy [default: 1]
    #[arg(long, alias = "temp", value_name = "T")]
    temperature: Option<f64>,
    /// A log-probability transfer curve, a JSON file of points, in place of top-k to temperature
    #[arg(long, value_name = "FILE", conflicts_with = "hlg")]
    curve: Option<PathBuf>,
    /// The tone curve, as in width=4,shoulder=4,toe=6,pivot=6, in place of top-k to XTC
    #[arg(long, value_name = "NAME=X,…", num_args = 0..=1, default_missing_value = "")]
    hlg: Option<String>,
}

impl Flags {
    /// The model's settings with what was given in their place.
    pub(crate) fn apply(&self, model: SamplerConfig, tokenizer: &Tokenizer) -> anyhow::Result<SamplerConfig> {
        let mut config = model;
        set(&mut config.repetition_penalty, self.repetition_penalty);
        set(&mut config.presence_penalty, self.presence_penalty);
        set(&mut config.frequency_penalty, self.frequency_penalty);
        set(&mut config.dry_multiplier, self.dry_multiplier);
        set(&mut config.dry_base, self.dry_base);
        set(&mut config.dry_allowed_length, self.dry_allowed_length);
        set(&mut config.top_n_sigma, self.top_n_sigma);
        set(&mut config.top_k, self.top_k);
        set(&mut config.typical_p, self.typical_p);
        set(&mut config.top_p, self.top_p);
        set(&mut config.min_p, self.min_p);
        set(&mut config.xtc_probability, self.xtc_probability);
        set(&mut config.xtc_threshold, self.xtc_threshold);
        set(&mut config.temperature, self.temperature.or(self.greedy.then_some(0.0)));
        config.penalty_last_n = self.penalty_last_n.or(config.penalty_last_n);
        config.dry_last_n = self.dry_last_n.or(config.dry_last_n);
        config.seed = self.seed.or(config.seed);
        config.logit_bias.extend(self.logit_bias.iter().copied());
        if let Some(file) = &self.curve {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            config.curve = Some(Curve::from_json(&text).with_context(|| file.display().to_string())?);
        }
        if let Some(text) = &self.hlg {
            config.hlg = Some(ToneCurve::parse(text)?);
        }
        if config.dry_multiplier > 0.0 && config.dry_sequence_breakers.is_empty() {
            config.dry_sequence_breakers = breakers(tokenizer);
        }
        config.validate()?;
        Ok(config)
    }
}

fn set<T>(slot: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *slot = given;
    }
}

/// Tokens at which DRY begins anew: those that hold a line break, a colon, a quotation mark or an asterisk.
fn breakers(tokenizer: &Tokenizer) -> Vec<u32> {
    let pieces: Vec<_> = (0..tokenizer.vocab_size() as u32).map(|id| (id, tokenizer.piece(id))).collect();
    let texts = pieces.iter().filter_map(|(id, piece)| Some((*id, std::str::from_utf8(piece).ok()?)));
    sequence_breakers(texts, &["\n", ":", "\"", "*"])
}

/// Reads `ID=X`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let (id, nats) = text.split_once('=').ok_or("expected ID=X")?;
    let id = id.trim().parse().map_err(|_| format!("expected a token id, found {id:?}"))?;
    let nats = nats.trim().parse().map_err(|_| format!("expected a number, found {nats:?}"))?;
    Ok((id, nats))
}
