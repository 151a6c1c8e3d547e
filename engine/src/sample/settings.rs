//! A model's own generation settings, read as a sampler's configuration.
//!
//! Two spellings are known: `generation_config.json` of Hugging Face folders, and the `general.sampling.*` keys of
//! GGUF metadata (with the prefix or without). It does not know where the object came from.

use serde_json::{Map, Value};

use super::config::SamplerConfig;
use super::error::{Error, Result};

/// Settings that exist elsewhere, change what is drawn, and are not offered here.
const NOT_OFFERED: [&str; 15] = [
    "mirostat",
    "sequence",
    "num_beams",
    "penalty_alpha",
    "epsilon_cutoff",
    "eta_cutoff",
    "encoder_repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "sequence_bias",
    "top_h",
    "min_length",
    "min_new_tokens",
    "suppress_tokens",
    "begin_suppress_tokens",
];

impl SamplerConfig {
    /// The sampling settings of `settings`, and the names of those that ask for something not offered here.
    ///
    /// Keys that have nothing to do with sampling, and nulls, are passed over. `do_sample: false` is temperature 0.
    /// A key that is absent is off here; other programs have defaults of their own for it. A negative `top_k` or window
    /// is off or everything, as those files mean it. A wrong type or a value out of range is an error that names the key.
    pub fn from_generation_settings(settings: &Map<String, Value>) -> Result<(SamplerConfig, Vec<String>)> {
        let mut config = SamplerConfig::default();
        let mut not_offered = Vec::new();
        let mut greedy = false;
        for (key, value) in settings.iter().filter(|(_, value)| !value.is_null()) {
            let name = key.strip_prefix("general.sampling.").unwrap_or(key);
            match name {
                "temperature" | "temp" => config.temperature = number(key, value)?,
                "top_k" => config.top_k = integer(key, value)?.max(0).try_into().unwrap_or(u32::MAX),
                "top_p" => config.top_p = number(key, value)?,
                "min_p" => config.min_p = number(key, value)?,
                "typical_p" => config.typical_p = number(key, value)?,
                "top_n_sigma" => config.top_n_sigma = number(key, value)?.max(0.0),
                "repetition_penalty" | "penalty_repeat" => config.repetition_penalty = number(key, value)?,
                "presence_penalty" => config.presence_penalty = number(key, value)?,
                "frequency_penalty" => config.frequency_penalty = number(key, value)?,
                "penalty_last_n" => config.penalty_last_n = integer(key, value)?.try_into().ok(),
                "xtc_probability" => config.xtc_probability = number(key, value)?,
                "xtc_threshold" => config.xtc_threshold = number(key, value)?,
                "do_sample" => {
                    let sampled = value.as_bool().ok_or_else(|| Error::setting(key, "a boolean", value))?;
                    greedy = !sampled;
                }
                name if NOT_OFFERED.contains(&name) && !is_off(name, value) => not_offered.push(key.clone()),
                _ => {}
            }
        }
        if greedy {
            config.temperature = 0.0;
        }
        config.validate()?;
        Ok((config, not_offered))
    }
}

fn number(key: &str, value: &Value) -> Result<f64> {
    value.as_f64().ok_or_else(|| Error::setting(key, "a number", value))
}

fn integer(key: &str, value: &Value) -> Result<i64> {
    let whole = value.as_f64().filter(|x| x.fract() == 0.0).map(|x| x as i64);
    value.as_i64().or(whole).ok_or_else(|| Error::setting(key, "a whole number", value))
}

/// The value that leaves a setting without effect.
fn is_off(name: &str, value: &Value) -> bool {
    match value {
        Value::Number(n) if matches!(name, "num_beams" | "encoder_repetition_penalty") => {
            n.as_f64() == Some(1.0)
        }
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Bool(on) => !on,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Null => true,
    }
}
