//! What a step must move and compute: bytes by kind, and arithmetic, of each operation of a plan.
//!
//! Only the plan is read; how a device carries an operation out, and how fast, is not known here. The rules: an
//! embedding table counts the rows gathered, a tied head counts once, as the head; keys and values are read per
//! attention layer as far as its window goes and written per layer that stores; scales and minima are part of a
//! weight's bytes; of experts the expected share that a batch selects.

use serde::{Deserialize, Serialize};

use crate::kv::Side;
use crate::op::{BufferId, Epilogue, Kind, Norm, Op, Plan, Rows, WeightId};

/// Bytes by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Weights, as stored in panels without row padding.
    pub weights: u64,
    /// Cached keys and values.
    pub kv: u64,
    /// Step buffers.
    pub activations: u64,
}

impl Bytes {
    /// All of them.
    pub fn total(self) -> u64 {
        self.weights + self.kv + self.activations
    }

    /// The sum of both.
    pub fn plus(self, o: Bytes) -> Bytes {
        Bytes {
            weights: self.weights + o.weights,
            kv: self.kv + o.kv,
            activations: self.activations + o.activations,
        }
    }
}

/// What an operation must move and compute, whatever the implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes read, each once.
    pub bytes_read: Bytes,
    /// Bytes written.
    pub bytes_written: Bytes,
    /// Floating-point and integer operations; a multiply-add is two.
    pub flops: u64,
}

impl Work {
    /// The sum of both.
    pub fn plus(self, o: Work) -> Work {
        Work {
            bytes_read: self.bytes_read.plus(o.bytes_read),
            bytes_written: self.bytes_written.plus(o.bytes_written),
            flops: self.flops + o.flops,
        }
    }

    /// Bytes that do not stay in a cache from one step to the next: weights and keys and values, read and written.
    /// Step buffers are small and rewritten many times a step.
    pub fn streamed_bytes(&self) -> u64 {
        let kept = self.bytes_read.plus(self.bytes_written);
        kept.weights + kept.kv
    }
}

/// The sizes of a step of equal sequences, which is all that its work depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepShape {
    /// Sequences that grow.
    pub sequences: usize,
    /// New tokens of each.
    pub tokens: usize,
    /// Earlier positions of each.
    pub context: usize,
    /// Rows of logits of the whole step.
    pub logit_rows: usize,
}

impl StepShape {
    /// One token of each of `sequences` sequences after `context` positions, with its logits.
    pub fn decode(sequences: usize, context: usize) -> StepShape {
        StepShape { sequences, tokens: 1, context, logit_rows: sequences }
    }

    /// A prompt's first `tokens` tokens, with the logits of the last.
    pub fn prompt(tokens: usize) -> StepShape {
        StepShape { sequences: 1, tokens, context: 0, logit_rows: 1 }
    }

    /// Rows of a buffer.
    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.sequences * self.tokens,
            Rows::Logits => self.logit_rows,
        }
    }
}

/// The share of a mixture's expert weights that a step of `tokens` tokens reads, each token selecting `active` of
/// `experts` at random: 1 − (1 − active/experts)^tokens. All of them where `active` is not below `experts`.
pub fn expert_share(active: usize, experts: usize, tokens: usize) -> f64 {
    if active >= experts {
        return if tokens == 0 { 0.0 } else { 1.0 };
    }
    1.0 - (1.0 - active as f64 / experts as f64).powf(tokens as f64)
}

/// A model's weights by how a step reads them. Sizes alone make one, so it needs no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Read whole by every step: layers without their experts, norms, biases.
    pub dense_bytes: f64,
    /// Read whole by every step that gives logits; a tied table counts here.
    pub head_bytes: f64,
    /// The embedding table, of which rows are gathered.
    pub table_bytes: f64,
    /// Its rows.
    pub table_rows: usize,
    /// All experts of all layers.
    pub expert_bytes: f64,
    /// Experts of one layer; 0 for a model without.
    pub experts: usize,
    /// Experts that one token selects.
    pub active: usize,
}

impl Ledger {
    /// Bytes of weights that a step of `tokens` tokens with logits streams.
    pub fn streamed_bytes(&self, tokens: usize) -> f64 {
        let gathered = self.table_bytes / self.table_rows.max(1) as f64 * tokens as f64;
        let experts = match self.experts {
            0 => 0.0,
            n => self.expert_bytes * expert_share(self.active, n, tokens),
        };
        self.dense_bytes + self.head_bytes + gathered + experts
    }
}

impl Plan {
    /// Work of a step of one sequence: `tokens` new positions after `context` earlier ones, with `logit_rows` rows of
    /// logits.
    pub fn work(&self, tokens: usize, context: usize, logit_rows: usize) -> Work {
        self.step_work(&StepShape { sequences: 1, tokens, context, logit_rows })
    }

    /// Work of a step.
    pub fn step_work(&self, step: &StepShape) -> Work {
        self.ops.iter().map(|op| op.work(self, step)).fold(Work::default(), Work::plus)
    }

    fn weight_bytes(&self, id: WeightId) -> u64 {
        self.weight(id).kind.bytes()
    }

    fn norm_bytes(&self, norm: &Option<Norm>) -> u64 {
        norm.map_or(0, |n| self.weight_bytes(n.weight))
    }
}

impl Op {
    /// This operation's share of [`Plan::step_work`].
    pub fn work(&self, plan: &Plan, step: &StepShape) -> Work {
        let rows = |b: BufferId| step.rows(plan.buffer(b).rows);
        let act = |b: BufferId, width: usize| (rows(b) * width * 4) as u64;
        let full = |b: BufferId| act(b, plan.buffer(b).width);
        let tokens = step.rows(Rows::Tokens);
        let mut w = Work::default();
        match self {
            Op::Embed { table, dst, .. } => {
                let kind = plan.weight(*table).kind;
                let Kind::Panels { rows: vocab, .. } = kind else { return w };
                w.bytes_read.weights = kind.bytes() / vocab as u64 * tokens as u64;
                w.bytes_written.activations = full(*dst);
            }
            Op::Linear { src, norm, parts, then, dst } => {
                let n = rows(*src) as u64;
                if n == 0 {
                    return w;
                }
                w.bytes_read.activations = full(*src);
                if norm.is_some() {
                    w.bytes_read.weights += plan.norm_bytes(norm);
                    w.flops += 4 * n * plan.buffer(*src).width as u64;
                }
                let mut out = 0;
                for p in parts {
                    let Kind::Panels { rows, cols, .. } = plan.weight(p.weight).kind else { continue };
                    w.bytes_read.weights +=
                        plan.weight_bytes(p.weight) + p.bias.map_or(0, |b| plan.weight_bytes(b));
                    w.flops += 2 * n * (rows * cols) as u64;
                    out += rows;
                }
                match then {
                    Epilogue::Glu(_) => out /= 2,
                    Epilogue::Add => w.bytes_read.activations += act(*dst, out),
                    Epilogue::Store | Epilogue::SoftCap(_) => {}
                }
                w.bytes_written.activations = act(*dst, out);
            }
            Op::RopeStore { qkv, layer, q_norm, k_norm, .. } => {
                let l = &plan.kv.layers[*layer];
                if tokens > 0 {
                    w.bytes_read.weights = plan.norm_bytes(q_norm) + plan.norm_bytes(k_norm);
                }
                w.bytes_read.activations = full(*qkv);
                w.bytes_written.activations = full(*qkv);
                let sinks = plan.kv.written_sinks(step.context..step.context + step.tokens);
                let copies = |side: &Side| match side.codes {
                    Some(_) => step.tokens + sinks,
                    None => step.tokens,
                };
                let halves = copies(&l.keys) * l.keys.dim + copies(&l.values) * l.values.dim;
                w.bytes_written.kv = (step.sequences * l.kv_heads * halves * 2) as u64;
                w.flops = 3 * (tokens * plan.buffer(*qkv).width) as u64;
            }
            Op::Attention { dst, layer, heads, window, .. } => {
                let l = &plan.kv.layers[*layer];
                let window = window.unwrap_or(usize::MAX);
                let pairs: u64 = (0..step.tokens).map(|i| (step.context + i + 1).min(window) as u64).sum();
                let sequences = step.sequences as u64;
                if step.tokens > 0 {
                    let span = step.context..step.context + step.tokens;
                    let (read, written) = plan.kv.attended_bytes(l, span);
                    (w.bytes_read.kv, w.bytes_written.kv) = (sequences * read, sequences * written);
                }
                w.bytes_read.activations = (tokens * heads * l.keys.dim * 4) as u64;
                w.bytes_written.activations = full(*dst);
                w.flops = 2 * sequences * pairs * (heads * (l.keys.dim + l.values.dim)) as u64;
            }
            Op::NormAdd { src, norm, dst } => {
                let n = rows(*src) as u64;
                if n == 0 {
                    return w;
                }
                w.bytes_read.weights = plan.weight_bytes(norm.weight);
                w.bytes_read.activations = full(*src) + full(*dst);
                w.bytes_written.activations = full(*dst);
                w.flops = 5 * n * plan.buffer(*src).width as u64;
            }
            Op::SelectLogitRows { src, dst } => {
                w.bytes_read.activations = act(*dst, plan.buffer(*src).width);
                w.bytes_written.activations = full(*dst);
            }
        }
        w
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1u64 << 30) as f64;

    /// 0.448 GiB of layers, an untied head and a table of 0.198 GiB each: 0.694 GB a token.
    #[test]
    fn an_untied_head_is_streamed_and_the_table_gathered() {
        let ledger = Ledger {
            dense_bytes: 0.448 * GIB,
            head_bytes: 0.198 * GIB,
            table_bytes: 0.198 * GIB,
            table_rows: 151_936,
            ..Ledger::default()
        };
        assert_eq!(format!("{:.3}", ledger.streamed_bytes(1) / 1e9), "0.694");
    }

    /// 1.597 GiB dense, a tied head of 0.730 GiB, 14.091 GiB of experts, 8 of 128 active: 3.444 GB a token.
    #[test]
    fn of_a_mixture_the_selected_experts_are_streamed() {
        let ledger = Ledger {
            dense_bytes: 1.597 * GIB,
            head_bytes: 0.730 * GIB,
            table_bytes: 0.730 * GIB,
            table_rows: 262_144,
            expert_bytes: 14.091 * GIB,
            experts: 128,
            active: 8,
        };
        assert_eq!(format!("{:.3}", ledger.streamed_bytes(1) / 1e9), "3.444");
    }

    #[test]
    fn a_batch_reads_more_experts_but_never_all_of_them_twice() {
        assert_eq!(expert_share(8, 128, 1), 0.0625);
        // Two tokens miss an expert together with probability (15/16)².
        assert!((expert_share(8, 128, 2) - (1.0 - 225.0 / 256.0)).abs() < 1e-15);
        assert!(expert_share(8, 128, 10_000) <= 1.0);
        assert_eq!(expert_share(4, 4, 1), 1.0);
        assert_eq!(expert_share(8, 128, 0), 0.0);
    }
}
