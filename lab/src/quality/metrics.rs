//! Measures over rows of logits: log-probabilities, divergence, agreement. In f64 over the whole vocabulary.
//!
//! No model is known here.

use serde::{Deserialize, Serialize};

use crate::stats::{median, quantile};

/// ln Σ exp of a row; NaN if the row holds one.
pub fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if row.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(max) + sum.ln()
}

/// The first of the largest logits.
pub fn best(row: &[f32]) -> usize {
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        if *x > row[best] {
            best = i;
        }
    }
    best
}

/// KL divergence in nats of the distribution of `row` from that of `reference`: Σ p·(ln p − ln q), p the reference's.
pub fn kl(reference: &[f32], row: &[f32]) -> f64 {
    let (p_sum, q_sum) = (log_sum_exp(reference), log_sum_exp(row));
    reference
        .iter()
        .zip(row)
        .map(|(&p, &q)| {
            let log_p = f64::from(p) - p_sum;
            // A token that the reference excludes adds nothing, whatever the other says of it.
            if log_p == f64::NEG_INFINITY { 0.0 } else { log_p.exp() * (log_p - (f64::from(q) - q_sum)) }
        })
        .sum()
}

/// Divergence over positions, in nats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest.
    pub max: f64,
    /// Share of positions at which the best token is the reference's.
    pub top1: f64,
}

/// What one arm made of the text's positions.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// −ln p of each true token.
    nll: Vec<f64>,
    /// Divergence from the reference.
    kl: Vec<f64>,
    same_best: usize,
}

/// Perplexity and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// exp of the mean of −ln p.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
    /// Scored tokens.
    pub positions: usize,
}

impl Tally {
    /// Adds a position: its logits, the true successor, and the reference's logits where there is one.
    pub fn add(&mut self, row: &[f32], truth: u32, reference: Option<&[f32]>) {
        self.nll.push(log_sum_exp(row) - f64::from(row[truth as usize]));
        if let Some(reference) = reference {
            self.kl.push(kl(reference, row));
            self.same_best += usize::from(best(reference) == best(row));
        }
    }

    /// Perplexity over what was added; `None` of nothing.
    pub fn perplexity(&self) -> Option<Perplexity> {
        let n = self.nll.len();
        if n == 0 {
            return None;
        }
        let mean = self.nll.iter().sum::<f64>() / n as f64;
        let variance = self.nll.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n.max(2) - 1) as f64;
        let value = mean.exp();
        Some(Perplexity { value, error: value * (variance / n as f64).sqrt(), positions: n })
    }

    /// Divergence over what was added with a reference; `None` of nothing.
    pub fn divergence(&self) -> Option<Divergence> {
        let n = self.kl.len();
        (n > 0).then(|| Divergence {
            mean: self.kl.iter().sum::<f64>() / n as f64,
            median: median(&self.kl),
            p95: quantile(&self.kl, 0.95),
            max: self.kl.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            top1: self.same_best as f64 / n as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: [f32; 4] = [1.0, 2.0, -1.0, 0.5];
    const Q: [f32; 4] = [0.5, 2.5, 0.0, 0.0];

    #[test]
    fn values_agree_with_closed_forms() {
        // ln(e + e² + 1/e + √e).
        let e = std::f64::consts::E;
        let expected = (e + e * e + 1.0 / e + e.sqrt()).ln();
        assert!((log_sum_exp(&P) - expected).abs() < 1e-12);
        assert_eq!(kl(&P, &P), 0.0);
        // Two even tokens against one at 3:1: ½ln(½/¾) + ½ln(½/¼).
        let (even, odd) = ([0.0, 0.0], [3f32.ln(), 0.0]);
        let expected = 0.5 * (2.0f64 / 3.0).ln() + 0.5 * 2f64.ln();
        assert!((kl(&even, &odd) - expected).abs() < 1e-7);
        assert!(kl(&P, &Q) > 0.0);
    }

    #[test]
    fn an_excluded_token_adds_nothing_and_a_nan_is_seen() {
        let p = [0.0, f32::NEG_INFINITY];
        assert_eq!(kl(&p, &[0.0, f32::NEG_INFINITY]), 0.0);
        assert!(kl(&p, &[f32::NAN, 0.0]).is_nan());
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_nan());
    }

    #[test]
    fn an_even_distribution_has_the_vocabulary_as_its_perplexity() {
        let mut tally = Tally::default();
        for truth in 0..8 {
            tally.add(&[0.25; 8], truth, Some(&[0.25; 8]));
        }
        let found = tally.perplexity().unwrap();
        assert!((found.value - 8.0).abs() < 1e-9 && found.error < 1e-6);
        let divergence = tally.divergence().unwrap();
        assert_eq!((divergence.max, divergence.top1), (0.0, 1.0));
        assert!(Tally::default().perplexity().is_none());
    }
}
