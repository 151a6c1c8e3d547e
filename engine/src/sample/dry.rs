//! Third step: DRY ("don't repeat yourself", p-e-w, text-generation-webui #5677). A token that would lengthen a repeat
//! of the history's end loses multiplier · base^(repeat − allowed length).
//!
//! As in llama.cpp, a repeat's length counts the tokens already there, it ends at the last breaker, the longest repeat
//! that a token would continue counts, and a breaker itself is not penalised. Breakers are single tokens here.

use std::collections::BTreeMap;

use super::config::SamplerConfig;

/// True if DRY is on.
pub(super) fn is_on(config: &SamplerConfig) -> bool {
    config.dry_multiplier != 0.0 && config.dry_last_n != Some(0)
}

/// Penalises the tokens that would go on repeating; those outside the vocabulary are passed over. `breakers` are the
/// configuration's, sorted.
pub(super) fn apply(logits: &mut [f32], history: &[u32], config: &SamplerConfig, breakers: &[u32]) {
    let allowed = config.dry_allowed_length as usize;
    for (token, repeat) in repeats(history, config, breakers) {
        let Some(logit) = logits.get_mut(token as usize).filter(|l| **l > f32::NEG_INFINITY) else {
            continue;
        };
        let penalty = config.dry_multiplier * power(config.dry_base, repeat - allowed);
        *logit = super::alive(f64::from(*logit) - penalty);
    }
}

/// For every token to penalise, the length of the longest repeat that it would continue: at least the allowed length.
fn repeats(history: &[u32], config: &SamplerConfig, breakers: &[u32]) -> BTreeMap<u32, usize> {
    let window = super::window(history, config.dry_last_n);
    let allowed = config.dry_allowed_length as usize;
    let breaks = |token: &u32| breakers.binary_search(token).is_ok();
    let mut longest = BTreeMap::new();
    let unbroken = window.iter().rev().take_while(|t| !breaks(t)).count();
    if window.len() <= allowed || unbroken < allowed {
        return longest;
    }
    // newest first: newest[k - 1] followed an occurrence of the window's end that goes back from newest[k].
    let newest: Vec<u32> = window.iter().rev().copied().collect();
    for (k, length) in common_prefixes(&newest).into_iter().enumerate().skip(1) {
        let (token, repeat) = (newest[k - 1], length.min(unbroken));
        if repeat >= allowed && !breaks(&token) {
            let seen = longest.entry(token).or_insert(repeat);
            *seen = repeat.max(*seen);
        }
    }
    longest
}

/// For every k, how many elements `s[k..]` and `s` have in common at their start: the Z-function, in linear time.
fn common_prefixes(s: &[u32]) -> Vec<usize> {
    let mut z = vec![0; s.len()];
    // s[start..end] equals s[..end - start], with the greatest end so far.
    let (mut start, mut end) = (0, 0);
    for k in 1..s.len() {
        let mut known = if k < end { z[k - start].min(end - k) } else { 0 };
        while k + known < s.len() && s[known] == s[k + known] {
            known += 1;
        }
        if k + known > end {
            (start, end) = (k, k + known);
        }
        z[k] = known;
    }
    z
}

/// base^exponent by squaring, the same on every platform; at most the greatest f32.
fn power(base: f64, mut exponent: usize) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= square;
        }
        square *= square;
        exponent /= 2;
    }
    if result < f64::from(f32::MAX) { result } else { f64::from(f32::MAX) }
}

/// The tokens whose text contains one of `breakers`: what [`SamplerConfig::dry_sequence_breakers`] wants.
///
/// A breaker that only several tokens together spell is not found.
pub fn sequence_breakers<'a>(
    pieces: impl IntoIterator<Item = (u32, &'a str)>,
    breakers: &[&str],
) -> Vec<u32> {
    let holds = |text: &str| breakers.iter().any(|b| !b.is_empty() && text.contains(b));
    pieces.into_iter().filter(|(_, text)| holds(text)).map(|(token, _)| token).collect()
}
