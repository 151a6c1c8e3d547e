//! What distinguishes one model from another, as data: every variation is a field of [`ModelSpec`].
//!
//! It does not know where the fields were read (`arch`) nor what is computed from them (`plan`).

use serde::{Deserialize, Serialize};
use tensor::op::{Activation, Kind};

use crate::rope::{RopeScaling, RopeSpec};
use crate::{Error, Result};

/// A decoder-only transformer. It goes into a prepared file's header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The family's name, as GGUF has it.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads KV head h·kv_heads/heads.
    pub kv_heads: usize,
    /// Channels per head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub ffn: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Positions that the model was made for.
    pub context: usize,
    /// Per layer, the sliding window: a query at i sees j with i − window < j ≤ i. `None` sees all.
    pub windows: Vec<Option<usize>>,
    /// Added to the mean square in every norm.
    pub eps: f32,
    /// The gate's nonlinearity.
    pub activation: Activation,
    /// Factor on embedding rows.
    pub embed_scale: f32,
    /// Factor on q·k.
    pub attention_scale: f32,
    /// cap·tanh(score/cap) before the softmax.
    pub attention_softcap: Option<f32>,
    /// cap·tanh(logit/cap).
    pub logit_softcap: Option<f32>,
    /// Rotation of layers that see all positions.
    pub rope: RopeSpec,
    /// Rotation of layers with a window, where it differs.
    pub local_rope: Option<RopeSpec>,
    /// q and k are normed per head before the rotation.
    pub qk_norms: bool,
    /// The outputs of attention and feed-forward are normed before they are added.
    pub post_norms: bool,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The attention output has a bias.
    pub output_bias: bool,
    /// The three feed-forward matrices have biases.
    pub ffn_bias: bool,
    /// The head has a bias.
    pub head_bias: bool,
    /// q, k and v are one tensor, `attn_qkv`.
    pub fused_qkv: bool,
    /// The head is the embedding table.
    pub tied_head: bool,
}

/// A tensor that a model of some spec has, in its prepared form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// The canonical name, GGUF's.
    pub name: String,
    /// Its shape.
    pub shape: NeededShape,
}

/// The shape that a spec asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeededShape {
    /// A matrix of any encoding.
    Matrix {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
    },
    /// A vector of f32.
    Vector {
        /// Elements.
        len: usize,
    },
}

impl std::fmt::Display for NeededShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NeededShape::Matrix { rows, cols } => write!(f, "[{rows}, {cols}]"),
            NeededShape::Vector { len } => write!(f, "[{len}]"),
        }
    }
}

impl NeededShape {
    /// True if a prepared tensor has this shape.
    pub fn fits(&self, kind: &Kind) -> bool {
        match (*self, *kind) {
            (NeededShape::Matrix { rows, cols }, Kind::Panels { rows: r, cols: c, .. }) => {
                rows == r && cols == c
            }
            (NeededShape::Vector { len }, Kind::Vector { len: l }) => len == l,
            _ => false,
        }
    }
}

// Bounds beyond every published model, under which no product of sizes overflows.
const MOST_LAYERS: usize = 1 << 10;
const MOST_WIDTH: usize = 1 << 20;
const MOST_HEADS: usize = 1 << 12;
const MOST_VOCAB: usize = 1 << 24;
const MOST_CONTEXT: usize = 1 << 28;

impl ModelSpec {
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Width of q, k and v together.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// The window that matters: one as long as the model's context hides nothing.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows[layer].filter(|&w| w < self.context)
    }

    /// The rotation of a layer.
    pub fn rope_of(&self, layer: usize) -> &RopeSpec {
        match &self.local_rope {
            Some(local) if self.windows[layer].is_some() => local,
            _ => &self.rope,
        }
    }

    /// Checks that the fields are sane and agree.
    ///
    /// # Errors
    /// The first field that is not, with what it may be.
    pub fn validate(&self) -> Result<()> {
        let a = &self.architecture;
        let within = |field: &str, found: usize, most: usize| match found {
            n if (1..=most).contains(&n) => Ok(()),
            n => Err(bad(a, field, format!("1 to {most}"), n)),
        };
        within("block_count", self.layers(), MOST_LAYERS)?;
        within("embedding_length", self.hidden, MOST_WIDTH)?;
        within("feed_forward_length", self.ffn, MOST_WIDTH)?;
        within("attention.head_count", self.heads, MOST_HEADS)?;
        within("attention.head_count_kv", self.kv_heads, self.heads)?;
        within("attention.key_length", self.head_dim, MOST_HEADS)?;
        within("vocabulary size", self.vocab, MOST_VOCAB)?;
        within("context_length", self.context, MOST_CONTEXT)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of {} heads", self.heads);
            return Err(bad(a, "attention.head_count_kv", expected, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad(a, "attention.key_length", "an even number", self.head_dim));
        }
        within("width of all heads", self.heads * self.head_dim, MOST_WIDTH)?;
        let positive = |field: &str, x: f64| match x {
            x if x.is_finite() && x > 0.0 => Ok(()),
            x => Err(bad(a, field, "a positive number", x)),
        };
        positive("attention.layer_norm_rms_epsilon", self.eps.into())?;
        positive("embedding scale", self.embed_scale.into())?;
        positive("attention scale", self.attention_scale.into())?;
        positive("attn_logit_softcapping", self.attention_softcap.unwrap_or(1.0).into())?;
        positive("final_logit_softcapping", self.logit_softcap.unwrap_or(1.0).into())?;
        if self.windows.contains(&Some(0)) {
            return Err(bad(a, "attention.sliding_window", "at least 1", 0));
        }
        for rope in std::iter::once(&self.rope).chain(&self.local_rope) {
            self.validate_rope(rope)?;
        }
        Ok(())
    }

    fn validate_rope(&self, rope: &RopeSpec) -> Result<()> {
        let a = &self.architecture;
        if !(2..=self.head_dim).contains(&rope.dims) || !rope.dims.is_multiple_of(2) {
            let expected = format!("an even number from 2 to {}", self.head_dim);
            return Err(bad(a, "rope.dimension_count", expected, rope.dims));
        }
        if !(rope.base.is_finite() && rope.base > 1.0) {
            return Err(bad(a, "rope.freq_base", "a number above 1", rope.base));
        }
        let list = |name: &str, list: &[f32]| {
            if list.len() != rope.dims / 2 {
                return Err(bad(a, name, format!("{} factors", rope.dims / 2), list.len()));
            }
            match list.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
                None => Ok(()),
                Some(f) => Err(bad(a, name, "positive factors", f)),
            }
        };
        if !rope.divisors.is_empty() {
            list("rope_freqs.weight", &rope.divisors)?;
        }
        let positive = |field: &str, x: f64| match x {
            x if x.is_finite() && x > 0.0 => Ok(()),
            x => Err(bad(a, &format!("rope.scaling.{field}"), "a positive number", x)),
        };
        match &rope.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("factor", *factor),
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                extrapolation,
                magnitude,
            } => {
                positive("factor", *factor)?;
                positive("original_context_length", *original_context as f64)?;
                positive("yarn_beta_fast", *beta_fast)?;
                positive("yarn_beta_slow", *beta_slow)?;
                positive("attn_factor", *magnitude)?;
                match extrapolation {
                    x if (0.0..=1.0).contains(x) => Ok(()),
                    x => Err(bad(a, "rope.scaling.yarn_ext_factor", "0 to 1", x)),
                }
            }
            RopeScaling::Llama3 { factor, low_frequency, high_frequency, original_context } => {
                positive("factor", *factor)?;
                positive("low_freq_factor", *low_frequency)?;
                positive("original_max_position_embeddings", *original_context as f64)?;
                match high_frequency {
                    x if x.is_finite() && x > low_frequency => Ok(()),
                    x => Err(bad(a, "rope.scaling.high_freq_factor", format!("above {low_frequency}"), x)),
                }
            }
            RopeScaling::LongRope { short, long, original_context, magnitude } => {
                list("rope_factors_short.weight", short)?;
                list("rope_factors_long.weight", long)?;
                positive("original_context_length", *original_context as f64)?;
                positive("attn_factor", *magnitude)
            }
        }
    }

    /// Every tensor that a model of this spec has in its prepared form, in the order a step meets them.
    pub fn needed(&self) -> Vec<Needed> {
        let mut all = Vec::new();
        let mut matrix = |name: String, rows, cols, bias: bool| {
            all.push(Needed { name: format!("{name}.weight"), shape: NeededShape::Matrix { rows, cols } });
            if bias {
                all.push(Needed { name: format!("{name}.bias"), shape: NeededShape::Vector { len: rows } });
            }
        };
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        matrix("token_embd".into(), self.vocab, self.hidden, false);
        for l in 0..self.layers() {
            let name = |part: &str| format!("blk.{l}.{part}");
            if self.fused_qkv {
                matrix(name("attn_qkv"), self.qkv_width(), self.hidden, self.qkv_bias);
            } else {
                matrix(name("attn_q"), q, self.hidden, self.qkv_bias);
                matrix(name("attn_k"), kv, self.hidden, self.qkv_bias);
                matrix(name("attn_v"), kv, self.hidden, self.qkv_bias);
            }
            matrix(name("attn_output"), self.hidden, q, self.output_bias);
            matrix(name("ffn_gate"), self.ffn, self.hidden, self.ffn_bias);
            matrix(name("ffn_up"), self.ffn, self.hidden, self.ffn_bias);
            matrix(name("ffn_down"), self.hidden, self.ffn, self.ffn_bias);
        }
        if !self.tied_head {
            matrix("output".into(), self.vocab, self.hidden, self.head_bias);
        }
        let mut vector = |name: String, len| all.push(Needed { name, shape: NeededShape::Vector { len } });
        for l in 0..self.layers() {
            let mut norm = |part: &str, len| vector(format!("blk.{l}.{part}.weight"), len);
            norm("attn_norm", self.hidden);
            norm("ffn_norm", self.hidden);
            if self.qk_norms {
                norm("attn_q_norm", self.head_dim);
                norm("attn_k_norm", self.head_dim);
            }
            if self.post_norms {
                norm("post_attention_norm", self.hidden);
                norm("post_ffw_norm", self.hidden);
            }
        }
        vector("output_norm.weight".into(), self.hidden);
        all
    }
}

fn bad(architecture: &str, field: &str, expected: impl Into<String>, found: impl std::fmt::Display) -> Error {
    tensor::Error::malformed(format!("{architecture}.{field}"), expected, found.to_string()).into()
}
