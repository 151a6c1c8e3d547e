//! First step: nats added to single tokens' logits.

use std::collections::BTreeMap;

/// Adds `bias` to `logits`; every token lies within them. A bias of −∞ bans its token.
pub(super) fn apply(logits: &mut [f32], bias: &BTreeMap<u32, f32>) {
    for (&token, &nats) in bias {
        let logit = &mut logits[token as usize];
        if *logit > f32::NEG_INFINITY && nats > f32::NEG_INFINITY {
            *logit = super::alive(f64::from(*logit) + f64::from(nats));
        } else {
            *logit = f32::NEG_INFINITY;
        }
    }
}
