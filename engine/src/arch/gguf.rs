//! Reading a spec from GGUF metadata: the keys that all families share, with their common defaults.
//!
//! It does not know any one family's exceptions; each family's file changes the fields that differ.

use tensor::files::{Array, Metadata, Value};
use tensor::op::{Activation, RopeLayout};

use super::{Tensors, inverse_sqrt};
use crate::rope::{RopeScaling, RopeSpec, longrope_magnitude, yarn_magnitude};
use crate::spec::ModelSpec;
use crate::{Error, Result};

/// A GGUF file's metadata and tensors, seen as one family's.
pub struct Gguf<'a> {
    /// The file's key-value pairs.
    pub metadata: &'a Metadata,
    /// The file's tensors.
    pub tensors: &'a dyn Tensors,
    /// The family's name, the prefix of its keys.
    pub arch: &'static str,
}

impl Gguf<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// A float of the family's.
    pub(super) fn f32(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.metadata.f32(&self.key(key))?)
    }

    /// A count of the family's. Files give some counts per layer; all layers must agree then.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>> {
        let key = self.key(key);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(self.metadata.u32(&key)?.map(|n| n as usize));
        }
        let all = self.metadata.ints(&key)?.unwrap_or_default();
        let Some(&first) = all.first() else { return Ok(None) };
        if all.iter().any(|&n| n != first) {
            return Err(tensor::Error::unsupported(&key, "its layers differ").into());
        }
        let count = usize::try_from(first);
        Ok(Some(count.map_err(|_| tensor::Error::malformed(&key, "no negative number", first.to_string()))?))
    }

    fn required(&self, key: &str) -> Result<usize> {
        let found = self.count(key)?;
        Ok(self.metadata.require(&self.key(key), found)?)
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.shape(name).is_some()
    }

    /// A spec with every shared key read and nothing of a family's own.
    pub(super) fn base(&self) -> Result<ModelSpec> {
        let hidden = self.required("embedding_length")?;
        let heads = self.required("attention.head_count")?;
        if self.count("expert_count")?.unwrap_or(0) > 0 {
            return Err(
                tensor::Error::unsupported(self.key("expert_count"), "no mixture of experts yet").into()
            );
        }
        let head_dim = match self.count("attention.key_length")? {
            Some(n) => n,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let expected = format!("a divisor of the width {hidden}");
                return Err(tensor::Error::malformed(
                    self.key("attention.head_count"),
                    expected,
                    heads.to_string(),
                )
                .into());
            }
        };
        if let Some(value_dim) = self.count("attention.value_length")?
            && value_dim != head_dim
        {
            let why = format!("values of {value_dim} channels under keys of {head_dim}");
            return Err(tensor::Error::unsupported(self.key("attention.value_length"), why).into());
        }
        let layers = self.required("block_count")?;
        let context = self.required("context_length")?;
        let Some(table) = self.tensors.shape("token_embd.weight") else {
            return Err(tensor::Error::Missing { what: "tensor token_embd.weight".into() }.into());
        };
        if let Some(tokens) = self.metadata.strs("tokenizer.ggml.tokens")?
            && tokens.len() > table.rows
        {
            let expected = format!("at most {} tokens, the rows of token_embd.weight", table.rows);
            let found = tokens.len().to_string();
            return Err(tensor::Error::malformed("tokenizer.ggml.tokens", expected, found).into());
        }
        let eps = self.f32("attention.layer_norm_rms_epsilon")?;
        let tied_head = !self.has("output.weight");
        let spec = ModelSpec {
            architecture: self.arch.to_owned(),
            hidden,
            heads,
            kv_heads: self.count("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            ffn: self.required("feed_forward_length")?,
            vocab: table.rows,
            context,
            // Checked before it is used as a length: an absurd count must not become an allocation.
            windows: vec![None; layers.min(1 << 16)],
            eps: self.metadata.require(&self.key("attention.layer_norm_rms_epsilon"), eps)?,
            activation: Activation::Silu,
            embed_scale: 1.0,
            attention_scale: inverse_sqrt(head_dim as f64),
            attention_softcap: None,
            logit_softcap: None,
            rope: self.rope(head_dim, context)?,
            local_rope: None,
            qk_norms: false,
            post_norms: false,
            qkv_bias: self.has("blk.0.attn_q.bias") || self.has("blk.0.attn_qkv.bias"),
            output_bias: self.has("blk.0.attn_output.bias"),
            ffn_bias: self.has("blk.0.ffn_down.bias"),
            head_bias: !tied_head && self.has("output.bias"),
            fused_qkv: self.has("blk.0.attn_qkv.weight"),
            tied_head,
        };
        Ok(spec)
    }

    /// The rotary embedding that the keys describe. A stretch without a type is linear, as in files of 2023.
    fn rope(&self, head_dim: usize, context: usize) -> Result<RopeSpec> {
        let dims = self.count("rope.dimension_count")?.unwrap_or(head_dim);
        let factor = match self.f32("rope.scaling.factor")? {
            Some(f) => Some(f),
            None => self.f32("rope.scale_linear")?,
        };
        let factor = factor.filter(|&f| f != 0.0).map_or(1.0, f64::from);
        let original_context = self.count("rope.scaling.original_context_length")?.unwrap_or(context);
        let attention_factor = f64::from(self.f32("rope.scaling.attn_factor")?.unwrap_or(1.0));
        let kind_key = self.key("rope.scaling.type");
        // Files of the family that brought LongRoPE have its lists and name no type.
        let kind = match self.metadata.str(&kind_key)? {
            None if self.has("rope_factors_long.weight") => Some("longrope"),
            kind => kind,
        };
        let scaling = match kind {
            Some("none") => RopeScaling::None,
            None | Some("linear") if factor == 1.0 => RopeScaling::None,
            None | Some("linear") => RopeScaling::Linear { factor },
            Some("yarn") => {
                let float = |key, default| Ok::<f64, Error>(f64::from(self.f32(key)?.unwrap_or(default)));
                let extrapolation = float("rope.scaling.yarn_ext_factor", -1.0)?;
                RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: float("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: float("rope.scaling.yarn_beta_slow", 1.0)?,
                    extrapolation: if extrapolation < 0.0 { 1.0 } else { extrapolation },
                    magnitude: attention_factor * yarn_magnitude(factor),
                }
            }
            Some("longrope") => {
                let magnitude = match self.f32("rope.scaling.attn_factor")? {
                    Some(m) => f64::from(m),
                    None => longrope_magnitude(context as f64 / original_context as f64, original_context),
                };
                RopeScaling::LongRope {
                    short: self.tensors.vector("rope_factors_short.weight")?,
                    long: self.tensors.vector("rope_factors_long.weight")?,
                    original_context,
                    magnitude,
                }
            }
            Some(other) => {
                let why = "plumb has none, linear, yarn and longrope";
                return Err(tensor::Error::unsupported(format!("{kind_key} {other:?}"), why).into());
            }
        };
        let divisors = match self.has("rope_freqs.weight") {
            true => self.tensors.vector("rope_freqs.weight")?,
            false => Vec::new(),
        };
        let base = f64::from(self.f32("rope.freq_base")?.unwrap_or(10000.0));
        Ok(RopeSpec { base, dims, layout: RopeLayout::Halves, scaling, divisors })
    }

    /// Sliding windows by the file's pattern, or by the family's where it names none. The key holds a period or one
    /// flag per layer.
    pub(super) fn windows(&self, layers: usize, period: usize, window: usize) -> Result<Vec<Option<usize>>> {
        let key = self.key("attention.sliding_window_pattern");
        let Some(Value::Array(flags)) = self.metadata.get(&key) else {
            let period = self.metadata.u32(&key)?.map_or(period, |n| n as usize);
            return Ok(super::cycle(layers, period, window));
        };
        let flags: Vec<bool> = match flags {
            Array::Bool(flags) => flags.clone(),
            _ => self.metadata.ints(&key)?.unwrap_or_default().iter().map(|&n| n != 0).collect(),
        };
        if flags.len() < layers {
            let expected = format!("a flag for each of {layers} layers");
            return Err(tensor::Error::malformed(key, expected, flags.len().to_string()).into());
        }
        Ok(flags[..layers].iter().map(|&sliding| sliding.then_some(window)).collect())
    }
}
