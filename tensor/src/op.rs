//! The plan of a model: a flat list of coarse operations over named weights and preplanned buffers.
//!
//! Execution, memory prediction and the roofline all read this list. It does not know which model it came from, nor
//! how a device carries an operation out. What each one reads, writes and computes is counted in [`crate::work`].

use serde::{Deserialize, Serialize};

use crate::kv::KvLayout;
use crate::{Encoding, panels};

/// Index into [`Plan::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Index into [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Index into [`Plan::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

/// How a prepared tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A matrix `[rows, cols]` in panels of 16 rows (`panels`), lossless from `encoding`.
    Panels {
        /// The source's encoding.
        encoding: Encoding,
        /// Outputs.
        rows: usize,
        /// Inputs, the dimension a product reduces over.
        cols: usize,
    },
    /// A vector of f32: norm weights, biases, rotary factors.
    Vector {
        /// Elements.
        len: usize,
    },
    /// Bytes whose meaning is the engine's, such as its tokenizer's; no operation reads them.
    Bytes {
        /// How many.
        len: usize,
    },
}

/// A prepared tensor that a plan uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Its name in the prepared file.
    pub name: String,
    /// Its shape and encoding; a device refuses a weight that differs.
    pub kind: Kind,
}

/// Which rows a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row per token of the step.
    Tokens,
    /// One row per position whose logits were asked for.
    Logits,
}

/// An f32 buffer `[rows, width]` of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// What it holds, for people.
    pub name: &'static str,
    /// f32 elements per row.
    pub width: usize,
    /// What its rows are.
    pub rows: Rows,
}

/// Root-mean-square normalisation: `x / sqrt(mean(x²) + eps) · weight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// f32 vector of the normalised length.
    pub weight: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

/// The gate's nonlinearity of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// x·sigmoid(x).
    Silu,
    /// 0.5·x·(1 + tanh(√(2/π)(x + 0.044715·x³))).
    GeluTanh,
}

/// One weight matrix of a [`Op::Linear`].
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Panels `[rows, cols]`; cols is the source's width.
    pub weight: WeightId,
    /// Added to the product: f32 vector of `rows`.
    pub bias: Option<WeightId>,
    /// First column of the destination that row 0 goes to.
    pub dst_col: usize,
}

/// What happens to a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epilogue {
    /// dst = product.
    Store,
    /// dst = dst + product (the residual stream).
    Add,
    /// dst = activation(`parts[0]`) · `parts[1]`; exactly two parts of equal shape.
    Glu(Activation),
    /// dst = cap · tanh(product / cap).
    SoftCap(f32),
}

/// One coarse operation. Attention operations name the layer whose cache they use.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// dst = table row of each token · scale (one f32 multiplication after the decode, none where scale is 1).
    Embed {
        /// Panels `[vocabulary, hidden]`.
        table: WeightId,
        /// Factor on the decoded row.
        scale: f32,
        /// `[tokens, hidden]`.
        dst: BufferId,
    },
    /// dst (then)= parts · norm(src).
    Linear {
        /// `[rows, cols]`.
        src: BufferId,
        /// Applied to the source first; the source itself is not changed.
        norm: Option<Norm>,
        /// The matrices, sharing one (normalised, quantised) input.
        parts: Vec<Part>,
        /// What happens to the products.
        then: Epilogue,
        /// Destination.
        dst: BufferId,
    },
    /// Norms (where given) and rotates q and k in place in `qkv`, and writes k and v to the layer's cache.
    RopeStore {
        /// `[tokens, (heads + 2·kv_heads)·head_dim]`: q, then k, then v.
        qkv: BufferId,
        /// Index into the layers of [`Plan::kv`].
        layer: usize,
        /// Query heads.
        heads: usize,
        /// Per-head norm of q over head_dim.
        q_norm: Option<Norm>,
        /// Per-head norm of k over head_dim.
        k_norm: Option<Norm>,
        /// The rotation.
        rope: RopeId,
    },
    /// Softmax attention of each query over the layer's cache, itself included.
    Attention {
        /// As left by [`Op::RopeStore`]; q is read.
        qkv: BufferId,
        /// `[tokens, heads·head_dim]`.
        dst: BufferId,
        /// Index into the layers of [`Plan::kv`].
        layer: usize,
        /// Query heads; head h reads KV head h·kv_heads/heads.
        heads: usize,
        /// Factor on q·k.
        scale: f32,
        /// cap·tanh(score/cap) where given.
        softcap: Option<f32>,
        /// A query at position i sees positions j with i − window < j ≤ i; all j ≤ i where `None`.
        window: Option<usize>,
    },
    /// dst += norm(src).
    NormAdd {
        /// `[tokens, width]`.
        src: BufferId,
        /// The norm.
        norm: Norm,
        /// `[tokens, width]`.
        dst: BufferId,
    },
    /// dst = the rows of src whose logits were asked for.
    SelectLogitRows {
        /// `[tokens, width]`.
        src: BufferId,
        /// `[logit rows, width]`.
        dst: BufferId,
    },
}

/// Which channels form the pairs that a rotary embedding turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RopeLayout {
    /// (0,1), (2,3), …: llama in GGUF files, whose q and k rows were permuted so.
    Adjacent,
    /// (0, d/2), (1, d/2+1), …: all others, and llama in Hugging Face folders.
    Halves,
}

/// A rotary embedding with its scaling already worked into the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The pairs' layout within the first `2·inv_freq.len()` channels of a head; the others pass unchanged.
    pub layout: RopeLayout,
    /// Radians per position of each pair. cos and sin of position·inv_freq are taken in f64 and rounded once.
    pub inv_freq: Vec<f64>,
    /// Factor on cos and sin (yarn's and longrope's attention factor; 1 for the others), multiplied in f64.
    pub magnitude: f64,
}

/// A model as data: what a device needs to run it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In execution order.
    pub ops: Vec<Op>,
    /// Every step buffer.
    pub buffers: Vec<Buffer>,
    /// Every weight.
    pub weights: Vec<Weight>,
    /// Every rotary embedding (gemma3 has two).
    pub ropes: Vec<Rope>,
    /// The KV cache's layout.
    pub kv: KvLayout,
    /// Where the last operation leaves the logits: `[logit rows, vocabulary]`.
    pub logits: BufferId,
    /// Vocabulary size.
    pub vocab: usize,
    /// Most tokens that one step may hold.
    pub max_step_tokens: usize,
    /// Most rows of logits that one step may ask for.
    pub max_logit_rows: usize,
}

impl Plan {
    /// The weight behind an id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// The buffer behind an id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Bytes of all step buffers at the plan's limits.
    pub fn buffer_bytes(&self) -> usize {
        let rows = |r| match r {
            Rows::Tokens => self.max_step_tokens,
            Rows::Logits => self.max_logit_rows,
        };
        self.buffers.iter().map(|b| b.width * rows(b.rows) * 4).sum()
    }
}

impl Kind {
    /// Bytes as the source stores it: the panels' bytes without row padding.
    pub fn bytes(&self) -> u64 {
        match *self {
            Kind::Panels { encoding, rows, cols } => {
                (rows * (cols / encoding.block_len()) * encoding.block_bytes()) as u64
            }
            Kind::Vector { len } => 4 * len as u64,
            Kind::Bytes { len } => len as u64,
        }
    }

    /// Bytes as prepared, with row padding; `None` if rows are not whole blocks or the size cannot be addressed.
    pub fn prepared_bytes(&self) -> Option<u64> {
        let bytes = match *self {
            Kind::Panels { encoding, rows, cols } => {
                // A panel is a little larger than its rows; with this bound nothing below can overflow.
                encoding.row_bytes(cols)?.checked_mul(64)?;
                panels::panel_bytes(encoding, cols).checked_mul(rows.div_ceil(panels::PANEL_ROWS))?
            }
            Kind::Vector { len } => len.checked_mul(4)?,
            Kind::Bytes { len } => len,
        };
        (bytes <= isize::MAX as usize).then_some(bytes as u64)
    }
}
