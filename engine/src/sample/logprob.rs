//! Log-probabilities by the model's own logits, for reports. No step of the chain comes in here.

use super::math;
use super::pool::{Candidate, by_rank};

/// ln p of `token` under softmax of `logits`, in nats; NaN if the logits are broken or do not have the token.
pub fn log_probability(logits: &[f32], token: u32) -> f32 {
    let Some(&logit) = logits.get(token as usize) else { return f32::NAN };
    (f64::from(logit) - log_total(logits)) as f32
}

/// The `n` most probable tokens under softmax of `logits` with ln p in nats, the best first.
pub fn top_log_probabilities(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let total = log_total(logits);
    let mut list: Vec<Candidate> =
        logits.iter().enumerate().map(|(token, &logit)| Candidate { token: token as u32, logit }).collect();
    let n = n.min(list.len());
    if n > 0 && n < list.len() {
        list.select_nth_unstable_by(n - 1, by_rank);
    }
    list.truncate(n);
    list.sort_unstable_by(by_rank);
    list.iter().map(|c| (c.token, (f64::from(c.logit) - total) as f32)).collect()
}

fn log_total(logits: &[f32]) -> f64 {
    match math::scan(logits, None) {
        Ok(best) if best.logit > f32::NEG_INFINITY => {
            f64::from(best.logit) + libm::log(math::sum_exp(logits, best.logit))
        }
        _ => f64::NAN,
    }
}
