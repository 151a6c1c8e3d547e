//! How a real model's logits compare with what two oracles made of the same text: the goldens under `golden/accuracy`, and
//! the measures that `golden/README.md` defines. The tests of real models and the `accuracy` example share it.
//!
//! It runs no model: rows of logits are handed to it.
#![allow(dead_code)] // each binary uses its part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The real models that plumb is tested with.
pub(crate) const MODELS: [&str; 4] =
    ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"];

/// Where a real model's file lies: `$PLUMB_MODELS`, else `models` in plumb's cache, as the command line has it.
///
/// # Panics
/// If it is not there: a missing model is a failure, never a test passed over.
pub(crate) fn model_file(name: &str) -> PathBuf {
    let path = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || {
        path("PLUMB_CACHE")
            .or_else(|| path("XDG_CACHE_HOME").filter(|p| p.is_absolute()).map(|p| p.join("plumb")))
            .or_else(|| path("HOME").map(|home| home.join(".cache/plumb")))
    };
    let folder = path("PLUMB_MODELS").or_else(|| cache().map(|c| c.join("models"))).unwrap_or_default();
    let file = folder.join(format!("{name}.gguf"));
    assert!(file.is_file(), "{} is not there; run `cargo xtask models`", file.display());
    file
}

/// The folder of the goldens.
pub(crate) fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/accuracy")
}

#[derive(Deserialize)]
struct Header {
    vocabulary: usize,
    file: String,
    arrays: BTreeMap<String, (usize, Vec<usize>)>,
    int8_mean_kl_top: f64,
    int8_mean_kl_top_first_64: f64,
    ids: Vec<u32>,
}

/// What the oracles made of the text with one model.
pub(crate) struct Golden {
    /// The text's tokens.
    pub(crate) ids: Vec<u32>,
    /// Logits of a row.
    pub(crate) vocabulary: usize,
    /// f64 over the dequantised weights.
    exact: Oracle,
    /// The same with activations quantised as the numerics contract writes it.
    int8: Oracle,
    /// Mean KL divergence of the second from the first, over all positions.
    pub(crate) int8_kl: f64,
    /// The same over the first 64 positions.
    pub(crate) int8_kl_first_64: f64,
}

struct Oracle {
    /// Log-sum-exp of each position's logits.
    lse: Vec<f32>,
    /// Log-probability of each position's true successor.
    truth: Vec<f32>,
    /// The best tokens of each position, `top` each.
    ids: Vec<u32>,
    logits: Vec<f32>,
    top: usize,
}

impl Golden {
    /// Reads a model's goldens.
    ///
    /// # Panics
    /// If they are not there, or not as `golden/README.md` describes them.
    pub(crate) fn read(model: &str) -> Golden {
        let path = golden_folder().join(format!("{model}.json"));
        let text = std::fs::read(&path).unwrap_or_else(|e| {
            panic!("{}: {e}; `cargo xtask golden logits` makes it", path.display());
        });
        let header: Header = serde_json::from_slice(&text).expect("a header as golden/README.md has it");
        let blob = std::fs::read(golden_folder().join(&header.file)).expect("the arrays beside the header");
        let words = |name: &str| -> Vec<[u8; 4]> {
            let (at, shape) = &header.arrays[name];
            let bytes = &blob[*at..at + shape.iter().product::<usize>() * 4];
            bytes.chunks_exact(4).map(|w| w.try_into().expect("four bytes")).collect()
        };
        let floats = |name: String| words(&name).into_iter().map(f32::from_le_bytes).collect();
        let oracle = |name: &str| Oracle {
            lse: floats(format!("{name}.lse")),
            truth: floats(format!("{name}.true")),
            ids: words(&format!("{name}.ids")).into_iter().map(u32::from_le_bytes).collect(),
            logits: floats(format!("{name}.logits")),
            top: header.arrays[&format!("{name}.ids")].1[1],
        };
        Golden {
            exact: oracle("oracle"),
            int8: oracle("oracle_int8"),
            int8_kl: header.int8_mean_kl_top,
            int8_kl_first_64: header.int8_mean_kl_top_first_64,
            vocabulary: header.vocabulary,
            ids: header.ids,
        }
    }

    /// A comparison over the first `positions` of the text.
    pub(crate) fn compare(&self, positions: usize) -> Comparison<'_> {
        let (kl, kl_int8, truth, pairs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Comparison { golden: self, positions, kl, kl_int8, truth, same_best: 0, pairs }
    }

    fn pair(&self, position: usize, row: &[f32], lse: f64) -> (f64, f64) {
        let mut ours = Partition::default();
        let mut int8 = Partition::default();
        for (token, log_p) in self.exact.listed(position) {
            if let Some((_, log_q)) = self.int8.listed(position).find(|&(t, _)| t == token) {
                ours.add(log_p, f64::from(row[token as usize]) - lse);
                int8.add(log_p, log_q);
            }
        }
        (ours.kl(), int8.kl())
    }
}

impl Oracle {
    fn best(&self, position: usize) -> u32 {
        self.ids[position * self.top]
    }

    /// The best tokens of a position with their log-probabilities.
    fn listed(&self, position: usize) -> impl Iterator<Item = (u32, f64)> {
        let at = position * self.top..(position + 1) * self.top;
        let lse = f64::from(self.lse[position]);
        let log_p = self.logits[at.clone()].iter().map(move |&logit| f64::from(logit) - lse);
        self.ids[at].iter().copied().zip(log_p)
    }

    /// KL divergence of a row of logits from this oracle, over its best tokens and one bucket for all others.
    fn kl(&self, position: usize, row: &[f32], lse: f64) -> f64 {
        let mut partition = Partition::default();
        for (token, log_p) in self.listed(position) {
            partition.add(log_p, f64::from(row[token as usize]) - lse);
        }
        partition.kl()
    }
}

/// KL divergence over single tokens and a bucket for the rest.
#[derive(Default)]
struct Partition {
    kl: f64,
    p: f64,
    q: f64,
}

impl Partition {
    fn add(&mut self, log_p: f64, log_q: f64) {
        self.kl += log_p.exp() * (log_p - log_q);
        self.p += log_p.exp();
        self.q += log_q.exp();
    }

    /// `max` would let a NaN of `q` pass for a number, but the sum over the tokens holds it too.
    fn kl(&self) -> f64 {
        let (p, q) = ((1.0 - self.p).max(1e-12), (1.0 - self.q).max(1e-12));
        self.kl + p * (p / q).ln()
    }
}

/// Measures of a model's logits, gathered row by row in order of position.
pub(crate) struct Comparison<'a> {
    golden: &'a Golden,
    positions: usize,
    kl: Vec<f64>,
    kl_int8: Vec<f64>,
    /// Log-probability of the true successor, less the int8 oracle's.
    truth: Vec<f64>,
    same_best: usize,
    pairs: Vec<(f64, f64)>,
}

impl Comparison<'_> {
    /// Adds the next position's logits.
    pub(crate) fn add(&mut self, row: &[f32]) {
        let (position, golden) = (self.kl.len(), self.golden);
        let row = &row[..golden.vocabulary];
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
        let lse = f64::from(max) + sum.ln();
        self.kl.push(golden.exact.kl(position, row, lse));
        self.kl_int8.push(golden.int8.kl(position, row, lse));
        self.pairs.push(golden.pair(position, row, lse));
        if position + 1 < self.positions {
            let log_p = f64::from(row[golden.ids[position + 1] as usize]) - lse;
            self.truth.push(log_p - f64::from(golden.int8.truth[position]));
        }
        self.same_best += usize::from(row[golden.exact.best(position) as usize] == max);
    }

    /// The tokens to run.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.golden.ids[..self.positions]
    }

    /// What came out.
    ///
    /// # Panics
    /// If rows are missing.
    pub(crate) fn figures(&self) -> Figures {
        assert_eq!(self.kl.len(), self.positions, "a row of logits for each position");
        let (kl, kl_error) = mean_and_error(&self.kl);
        let (difference, difference_error) = mean_and_error(&self.truth);
        Figures {
            kl,
            kl_error,
            kl_int8: mean_and_error(&self.kl_int8).0,
            difference,
            difference_error,
            same_best: self.same_best as f64 / self.positions as f64,
        }
    }

    /// For each position, the KL divergence of this model and of the int8 oracle from the exact one over the tokens that
    /// both oracles list and one bucket: by itself a little less than the figures, but comparable position by position.
    pub(crate) fn pairs(&self) -> &[(f64, f64)] {
        &self.pairs
    }
}

/// A comparison's result; all in nats but the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Mean KL divergence from the exact oracle.
    pub(crate) kl: f64,
    /// Its standard error over positions.
    pub(crate) kl_error: f64,
    /// Mean KL divergence from the int8 oracle.
    pub(crate) kl_int8: f64,
    /// Mean log-probability of the true tokens, less the int8 oracle's.
    pub(crate) difference: f64,
    /// Its paired standard error.
    pub(crate) difference_error: f64,
    /// Share of positions at which the exact oracle's best token is also the best here.
    pub(crate) same_best: f64,
}

fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// The contract's bars. A figure that is not a number passes none of them.
pub(crate) struct Bar {
    /// What it holds to, for people.
    pub(crate) what: &'static str,
    /// The figure as a multiple of its yardstick.
    pub(crate) found: f64,
    /// The most that it may be.
    pub(crate) most: f64,
}

impl Bar {
    /// Whether it holds.
    pub(crate) fn holds(&self) -> bool {
        self.found <= self.most
    }
}

impl Figures {
    /// The bars, given the int8 oracle's mean KL over the same positions and how many times that is allowed.
    pub(crate) fn bars(&self, int8_kl: f64, most: f64) -> [Bar; 3] {
        let in_errors = self.difference.abs() / self.difference_error;
        [
            Bar { what: "mean KL from the oracle, in the int8 oracle's", found: self.kl / int8_kl, most },
            Bar {
                what: "mean KL from the int8 oracle, in that from the oracle",
                found: self.kl_int8 / self.kl,
                most: 2.0,
            },
            Bar {
                what: "log-probability of the true tokens, in standard errors from the int8 oracle's",
                found: in_errors,
                most: 3.0,
            },
        ]
    }
}
