//! Reading a spec from Hugging Face's config.json: the fields that all families share, with their common defaults;
//! and the names of tensors in such folders.
//!
//! It does not know any one family's exceptions; each family's file changes the fields that differ.

use serde_json::Value;
use tensor::op::{Activation, RopeLayout};

use super::{Tensors, inverse_sqrt};
use crate::rope::{RopeScaling, RopeSpec, longrope_magnitude, yarn_magnitude};
use crate::spec::ModelSpec;
use crate::{Error, Result};

/// A config.json and its folder's tensors, seen as one family's.
pub struct Hf<'a> {
    /// The text model's part of the configuration.
    config: &'a Value,
    tensors: &'a dyn Tensors,
    model_type: &'a str,
    arch: &'static str,
    prefix: &'static str,
}

impl<'a> Hf<'a> {
    /// Finds the text model within a configuration.
    ///
    /// # Errors
    /// No `model_type`; no embedding table under any known name.
    pub(super) fn new(config: &'a Value, tensors: &'a dyn Tensors) -> Result<Self> {
        let config = config.get("text_config").unwrap_or(config);
        let model_type = config.get("model_type").and_then(Value::as_str);
        let missing = |what: &str| Error::from(tensor::Error::Missing { what: what.to_owned() });
        let model_type = model_type.ok_or_else(|| missing("config.json field model_type"))?;
        let prefixes = ["model.", "language_model.model.", "model.language_model.", ""];
        let has = |p: &&str| tensors.shape(&format!("{p}embed_tokens.weight")).is_some();
        let prefix = prefixes.into_iter().find(has);
        let prefix = prefix.ok_or_else(|| missing("tensor model.embed_tokens.weight"))?;
        Ok(Hf { config, tensors, model_type, arch: "", prefix })
    }

    pub(super) fn of_family(self, arch: &'static str) -> Self {
        Hf { arch, ..self }
    }

    /// The configuration's own name of its family.
    pub fn model_type(&self) -> &str {
        self.model_type
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        typed(self.config, key, expected, take)
    }

    pub(super) fn count(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a count", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    pub(super) fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| tensor::Error::Missing { what: format!("config.json field {key}") }.into())
    }

    fn required_count(&self, key: &str) -> Result<usize> {
        self.required(key, self.count(key)?)
    }

    /// True if the folder has a tensor for a canonical name.
    pub(super) fn has(&self, canonical: &str) -> bool {
        hugging_face_name(canonical, self.prefix, false).is_some_and(|n| self.tensors.shape(&n).is_some())
    }

    /// A spec with every shared field read and nothing of a family's own.
    pub(super) fn base(&self, tied_by_default: bool) -> Result<ModelSpec> {
        let hidden = self.required_count("hidden_size")?;
        let heads = self.required_count("num_attention_heads")?;
        let head_dim = match self.count("head_dim")? {
            Some(n) => n,
            None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let expected = format!("a divisor of hidden_size {hidden}");
                return Err(tensor::Error::malformed(
                    "config.json num_attention_heads",
                    expected,
                    heads.to_string(),
                )
                .into());
            }
        };
        let layers = self.required_count("num_hidden_layers")?;
        let context = self.required_count("max_position_embeddings")?;
        let vocab = self.tensors.shape(&format!("{}embed_tokens.weight", self.prefix)).map_or(0, |s| s.rows);
        let tied_head =
            self.bool("tie_word_embeddings")?.unwrap_or(tied_by_default) || !self.has("output.weight");
        Ok(ModelSpec {
            architecture: self.arch.to_owned(),
            hidden,
            heads,
            kv_heads: self.count("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            ffn: self.required_count("intermediate_size")?,
            vocab,
            context,
            windows: vec![None; layers.min(1 << 16)],
            eps: self.required("rms_norm_eps", self.f64("rms_norm_eps")?)? as f32,
            activation: self.activation()?,
            embed_scale: 1.0,
            attention_scale: inverse_sqrt(head_dim as f64),
            attention_softcap: None,
            logit_softcap: None,
            rope: self.rope(self.config, head_dim, context)?,
            local_rope: None,
            qk_norms: false,
            post_norms: false,
            qkv_bias: self.has("blk.0.attn_q.bias"),
            output_bias: self.has("blk.0.attn_output.bias"),
            ffn_bias: self.has("blk.0.ffn_down.bias"),
            head_bias: !tied_head && self.has("output.bias"),
            fused_qkv: self.has("blk.0.attn_qkv.weight"),
            tied_head,
        })
    }

    fn activation(&self) -> Result<Activation> {
        let key = if self.config.get("hidden_activation").is_some_and(|v| !v.is_null()) {
            "hidden_activation"
        } else {
            "hidden_act"
        };
        match self.typed(key, "a text", Value::as_str)? {
            None | Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
            Some(other) => {
                let why = "plumb has silu and gelu_pytorch_tanh";
                Err(tensor::Error::unsupported(format!("config.json {key} {other:?}"), why).into())
            }
        }
    }

    /// The rotary embedding described in `at`: the configuration itself (`rope_theta`, `rope_scaling`), with what
    /// newer files gather under `rope_parameters`.
    fn rope(&self, at: &'a Value, head_dim: usize, context: usize) -> Result<RopeSpec> {
        let object = |key| at.get(key).filter(|v| v.is_object());
        let gathered = object("rope_parameters").map(|p| p.get("full_attention").unwrap_or(p));
        let scaling = gathered.or(object("rope_scaling"));
        let number = |key: &str| match scaling {
            Some(s) => typed(s, key, "a number", Value::as_f64),
            None => Ok(None),
        };
        let base = match number("rope_theta")? {
            Some(base) => base,
            None => self.f64("rope_theta")?.unwrap_or(10000.0),
        };
        let partial = match number("partial_rotary_factor")? {
            Some(p) => p,
            None => self.f64("partial_rotary_factor")?.unwrap_or(1.0),
        };
        let dims = (head_dim as f64 * partial) as usize;
        let scaling = match scaling {
            Some(s) => self.scaling(s, context)?,
            None => RopeScaling::None,
        };
        Ok(RopeSpec { base, dims, layout: RopeLayout::Halves, scaling, divisors: Vec::new() })
    }

    fn scaling(&self, at: &'a Value, context: usize) -> Result<RopeScaling> {
        let number = |key: &str| typed(at, key, "a number", Value::as_f64);
        let count =
            |key: &str| typed(at, key, "a count", |v| v.as_f64().filter(|x| *x >= 1.0).map(|x| x as usize));
        let original = match count("original_max_position_embeddings")? {
            Some(n) => n,
            None => self.count("original_max_position_embeddings")?.unwrap_or(context),
        };
        let factor = number("factor")?;
        let stretch = factor.unwrap_or(context as f64 / original as f64);
        let required = |key: &str| self.required(&format!("rope_scaling.{key}"), number(key)?);
        let kind = match typed(at, "rope_type", "a text", Value::as_str)? {
            Some(kind) => Some(kind),
            None => typed(at, "type", "a text", Value::as_str)?,
        };
        Ok(match kind {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: required("factor")? },
            Some("yarn") => {
                let magnitude =
                    match (number("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
                        (Some(m), _, _) => m,
                        (None, Some(m), Some(all)) if m != 0.0 && all != 0.0 => {
                            let scaled = |by: f64| {
                                if stretch <= 1.0 { 1.0 } else { 0.1 * by * libm::log(stretch) + 1.0 }
                            };
                            scaled(m) / scaled(all)
                        }
                        _ => yarn_magnitude(stretch),
                    };
                if typed(at, "truncate", "true or false", Value::as_bool)? == Some(false) {
                    let why = "the ramp's ends are always whole pairs here";
                    return Err(tensor::Error::unsupported("rope_scaling.truncate false", why).into());
                }
                RopeScaling::Yarn {
                    factor: stretch,
                    original_context: original,
                    beta_fast: number("beta_fast")?.unwrap_or(32.0),
                    beta_slow: number("beta_slow")?.unwrap_or(1.0),
                    extrapolation: 1.0,
                    magnitude,
                }
            }
            Some("llama3") => RopeScaling::Llama3 {
                factor: required("factor")?,
                low_frequency: required("low_freq_factor")?,
                high_frequency: required("high_freq_factor")?,
                original_context: original,
            },
            Some("longrope" | "su") => {
                let list = |key: &str| {
                    let floats = |v: &Value| {
                        v.as_array()?
                            .iter()
                            .map(|x| x.as_f64().map(|f| f as f32))
                            .collect::<Option<Vec<f32>>>()
                    };
                    self.required(
                        &format!("rope_scaling.{key}"),
                        typed(at, key, "a list of numbers", floats)?,
                    )
                };
                let stretch = context as f64 / original as f64;
                let published = longrope_magnitude(factor.unwrap_or(stretch), original);
                RopeScaling::LongRope {
                    short: list("short_factor")?,
                    long: list("long_factor")?,
                    original_context: original,
                    magnitude: number("attention_factor")?.unwrap_or(published),
                }
            }
            Some(other) => {
                let why = "plumb has linear, yarn, llama3 and longrope";
                return Err(tensor::Error::unsupported(format!("rope_scaling type {other:?}"), why).into());
            }
        })
    }

    /// The rotation of sliding layers: `rope_local_base_freq`, or what newer files put under `rope_parameters`.
    pub(super) fn local_base(&self, default: f64) -> Result<f64> {
        let gathered = self.config.get("rope_parameters").and_then(|p| p.get("sliding_attention"));
        let gathered = match gathered {
            Some(p) => typed(p, "rope_theta", "a number", Value::as_f64)?,
            None => None,
        };
        Ok(match gathered {
            Some(base) => base,
            None => self.f64("rope_local_base_freq")?.unwrap_or(default),
        })
    }

    /// Sliding windows by `layer_types`, by `sliding_window_pattern`, or by the family's period.
    pub(super) fn windows(&self, layers: usize, period: usize, window: usize) -> Result<Vec<Option<usize>>> {
        if let Some(types) = self.typed("layer_types", "a list of texts", Value::as_array)? {
            if types.len() != layers {
                let found = types.len().to_string();
                return Err(
                    tensor::Error::malformed("config.json layer_types", layers.to_string(), found).into()
                );
            }
            let window = |t: &Value| match t.as_str() {
                Some("sliding_attention") => Ok(Some(window)),
                Some("full_attention") => Ok(None),
                _ => Err(tensor::Error::malformed(
                    "config.json layer_types",
                    "sliding_attention or full_attention",
                    t.to_string(),
                )
                .into()),
            };
            return types.iter().map(window).collect();
        }
        let period = self.count("sliding_window_pattern")?.unwrap_or(period);
        Ok(super::cycle(layers, period, window))
    }

    /// True if the configuration lists each layer's kind.
    pub(super) fn has_layer_types(&self) -> bool {
        self.config.get("layer_types").is_some_and(Value::is_array)
    }

    /// The prefix of the text model's tensors.
    pub(super) fn prefix(&self) -> &'static str {
        self.prefix
    }
}

fn typed<'a, T>(
    at: &'a Value,
    key: &str,
    expected: &str,
    take: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<Option<T>> {
    match at.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => match take(v) {
            Some(t) => Ok(Some(t)),
            None => {
                let found: String = v.to_string().chars().take(40).collect();
                Err(tensor::Error::malformed(format!("config.json {key}"), expected, found).into())
            }
        },
    }
}

/// What a tensor of a canonical name is called in a Hugging Face folder, whose text model's tensors start with
/// `prefix`. With `post_norms` the names of the norms shift: `post_attention_layernorm` is then really one.
pub fn hugging_face_name(canonical: &str, prefix: &str, post_norms: bool) -> Option<String> {
    let (part, suffix) = canonical.rsplit_once('.')?;
    let Some(rest) = part.strip_prefix("blk.") else {
        let part = match part {
            "token_embd" => "embed_tokens",
            "output_norm" => "norm",
            "output" => {
                let outer = prefix.strip_suffix("model.").unwrap_or("");
                return Some(format!("{outer}lm_head.{suffix}"));
            }
            _ => return None,
        };
        return Some(format!("{prefix}{part}.{suffix}"));
    };
    let (layer, part) = rest.split_once('.')?;
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "post_attention_norm" => "post_attention_layernorm",
        "ffn_norm" if post_norms => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_gate_up" => "mlp.gate_up_proj",
        "ffn_down" => "mlp.down_proj",
        "post_ffw_norm" => "post_feedforward_layernorm",
        _ => return None,
    };
    Some(format!("{prefix}layers.{layer}.{part}.{suffix}"))
}
