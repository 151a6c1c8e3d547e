//! Second step: repetition, presence and frequency penalties over a window of the history.
//!
//! The repetition penalty is that of Keskar et al. ("CTRL", 2019) with negative logits multiplied, as transformers and
//! llama.cpp do; the other two are OpenAI's. As in llama.cpp the prompt counts as well, and the repetition penalty
//! comes first.

use super::config::SamplerConfig;

/// True if one of the three penalties is on.
pub(super) fn is_on(config: &SamplerConfig) -> bool {
    let all_off =
        config.repetition_penalty == 1.0 && config.presence_penalty == 0.0 && config.frequency_penalty == 0.0;
    !all_off && config.penalty_last_n != Some(0)
}

/// Penalises the tokens in the window; those outside the vocabulary are passed over.
///
/// `counts` is room: empty or all zeros, and so it is left. (Counting in an array takes two passes over the window; a
/// map or a sort would take milliseconds when that is a long history.)
pub(super) fn apply(logits: &mut [f32], history: &[u32], config: &SamplerConfig, counts: &mut Vec<u32>) {
    counts.resize(logits.len(), 0);
    let window = super::window(history, config.penalty_last_n);
    for &token in window {
        if let Some(count) = counts.get_mut(token as usize) {
            *count += 1;
        }
    }
    for &token in window {
        let Some(count) = counts.get_mut(token as usize).filter(|count| **count > 0) else { continue };
        let logit = &mut logits[token as usize];
        if *logit > f32::NEG_INFINITY {
            let raw = f64::from(*logit);
            let repeated =
                if raw > 0.0 { raw / config.repetition_penalty } else { raw * config.repetition_penalty };
            let counted = f64::from(*count) * config.frequency_penalty + config.presence_penalty;
            *logit = super::alive(repeated - counted);
        }
        *count = 0;
    }
}
