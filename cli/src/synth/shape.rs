//! Shapes: the sizes of a model, published ones as rows of a table, and the tensors and metadata that follow from them.

use tensor::Encoding;

use super::gguf::{Content, TensorInfo, Value};
use crate::failure::usage;

/// The families that can be made.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub(crate) enum Arch {
    /// Llama: no biases, no norms of queries and keys
    Llama,
    /// Qwen2: biases on query, key and value
    Qwen2,
    /// Qwen3: norms of queries and keys
    Qwen3,
}

impl Arch {
    fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
            Arch::Qwen3 => "qwen3",
        }
    }
}

/// The sizes of a model.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) arch: Arch,
    pub(crate) layers: u32,
    pub(crate) hidden: u32,
    pub(crate) ffn: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) vocab: u32,
    /// The head is the embedding.
    pub(crate) tied: bool,
    pub(crate) context: u32,
    pub(crate) rope_base: f32,
    /// The factor of llama3 rotary scaling.
    pub(crate) llama3_factor: Option<f32>,
    pub(crate) norm_epsilon: f32,
}

/// Shapes of published models, from their `config.json`.
pub(crate) const PUBLISHED: &[Shape] = &[
    Shape {
        name: "llama-3.2-1b",
        arch: Arch::Llama,
        layers: 16,
        hidden: 2048,
        ffn: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128_256,
        tied: true,
        context: 131_072,
        rope_base: 500_000.0,
        llama3_factor: Some(32.0),
        norm_epsilon: 1e-5,
    },
    Shape {
        name: "llama-3.1-8b",
        arch: Arch::Llama,
        layers: 32,
        hidden: 4096,
        ffn: 14_336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        tied: false,
        context: 131_072,
        rope_base: 500_000.0,
        llama3_factor: Some(8.0),
        norm_epsilon: 1e-5,
    },
    Shape {
        name: "qwen2.5-7b",
        arch: Arch::Qwen2,
        layers: 28,
        hidden: 3584,
        ffn: 18_944,
        heads: 28,
        kv_heads: 4,
        head_dim: 128,
        vocab: 152_064,
        tied: false,
        context: 32_768,
        rope_base: 1e6,
        llama3_factor: None,
        norm_epsilon: 1e-6,
    },
    Shape {
        name: "qwen3-8b",
        arch: Arch::Qwen3,
        layers: 36,
        hidden: 4096,
        ffn: 12_288,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 151_936,
        tied: false,
        context: 40_960,
        rope_base: 1e6,
        llama3_factor: None,
        norm_epsilon: 1e-6,
    },
];

impl Shape {
    /// An error if no model can have these sizes.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let sizes = [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("ffn", self.ffn),
            ("heads", self.heads),
            ("kv-heads", self.kv_heads),
            ("head-dim", self.head_dim),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(usage(format!("--{name}: expected at least 1, found 0")));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let text = format!(
                "--heads: expected a multiple of --kv-heads ({}), found {}",
                self.kv_heads, self.heads
            );
            return Err(usage(text));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(usage(format!("--head-dim: expected an even number, found {}", self.head_dim)));
        }
        if self.vocab < super::vocabulary::LEAST {
            let least = super::vocabulary::LEAST;
            return Err(usage(format!("--vocab: expected at least {least}, found {}", self.vocab)));
        }
        Ok(())
    }

    /// Every tensor in the order of the file.
    pub(crate) fn tensors(&self, encoding: Encoding) -> anyhow::Result<Vec<TensorInfo>> {
        let (hidden, ffn) = (u64::from(self.hidden), u64::from(self.ffn));
        let query = u64::from(self.heads) * u64::from(self.head_dim);
        let value = u64::from(self.kv_heads) * u64::from(self.head_dim);
        let vocab = u64::from(self.vocab);

        let mut list = List { encoding, tensors: Vec::new() };
        list.matrix("token_embd", hidden, vocab)?;
        if !self.tied {
            list.matrix("output", hidden, vocab)?;
        }
        list.ones("output_norm.weight".into(), hidden);
        if let Some(factor) = self.llama3_factor {
            list.exactly("rope_freqs.weight".into(), self.llama3_frequencies(factor));
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            list.ones(name("attn_norm.weight"), hidden);
            for (part, rows) in [("attn_q", query), ("attn_k", value), ("attn_v", value)] {
                list.matrix(&name(part), hidden, rows)?;
                if self.arch == Arch::Qwen2 {
                    list.floats(format!("{}.bias", name(part)), rows);
                }
            }
            if self.arch == Arch::Qwen3 {
                list.ones(name("attn_q_norm.weight"), u64::from(self.head_dim));
                list.ones(name("attn_k_norm.weight"), u64::from(self.head_dim));
            }
            list.matrix(&name("attn_output"), query, hidden)?;
            list.ones(name("ffn_norm.weight"), hidden);
            list.matrix(&name("ffn_gate"), hidden, ffn)?;
            list.matrix(&name("ffn_up"), hidden, ffn)?;
            list.matrix(&name("ffn_down"), ffn, hidden)?;
        }
        Ok(list.tensors)
    }

    /// Everything about the model but its tokenizer.
    pub(crate) fn metadata(&self, encoding: Encoding) -> Vec<(String, Value)> {
        let arch = self.arch.name();
        let key = |name: &str| format!("{arch}.{name}");
        vec![
            ("general.architecture".into(), Value::Str(arch.into())),
            ("general.name".into(), Value::Str(format!("{} with random weights, {encoding}", self.name))),
            ("general.quantization_version".into(), Value::U32(2)),
            (key("vocab_size"), Value::U32(self.vocab)),
            (key("context_length"), Value::U32(self.context)),
            (key("embedding_length"), Value::U32(self.hidden)),
            (key("block_count"), Value::U32(self.layers)),
            (key("feed_forward_length"), Value::U32(self.ffn)),
            (key("attention.head_count"), Value::U32(self.heads)),
            (key("attention.head_count_kv"), Value::U32(self.kv_heads)),
            (key("attention.key_length"), Value::U32(self.head_dim)),
            (key("attention.value_length"), Value::U32(self.head_dim)),
            (key("attention.layer_norm_rms_epsilon"), Value::F32(self.norm_epsilon)),
            (key("rope.dimension_count"), Value::U32(self.head_dim)),
            (key("rope.freq_base"), Value::F32(self.rope_base)),
        ]
    }

    /// The divisors of the rotary frequencies that llama3 scaling asks for: none for short waves, `factor` for waves
    /// longer than the 8,192 tokens the model first saw, a blend between (Llama 3.1's model card and `config.json`).
    fn llama3_frequencies(&self, factor: f32) -> Vec<f32> {
        let (first_context, low, high) = (8192.0, 1.0, 4.0);
        let pair = |index: u32| {
            let exponent = f64::from(2 * index) / f64::from(self.head_dim);
            let wave = 2.0 * std::f64::consts::PI * f64::from(self.rope_base).powf(exponent);
            let turns: f64 = first_context / wave;
            let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - blend) / f64::from(factor) + blend)) as f32
        };
        (0..self.head_dim / 2).map(pair).collect()
    }
}

/// Tensors as they are listed.
struct List {
    encoding: Encoding,
    tensors: Vec<TensorInfo>,
}

impl List {
    fn matrix(&mut self, name: &str, columns: u64, rows: u64) -> anyhow::Result<()> {
        let block = self.encoding.block_len() as u64;
        if !columns.is_multiple_of(block) {
            let found = format!("found {columns} for {}", self.encoding);
            return Err(usage(format!("{name}: expected rows of a multiple of {block} elements, {found}")));
        }
        // Sums over a row then stay near 1, so activations neither vanish nor grow from layer to layer.
        let content = Content::Random { amplitude: (3.0 / columns as f32).sqrt() };
        let dims = vec![columns, rows];
        self.tensors.push(TensorInfo {
            name: format!("{name}.weight"),
            dims,
            encoding: self.encoding,
            content,
        });
        Ok(())
    }

    fn floats(&mut self, name: String, len: u64) {
        let content = Content::Random { amplitude: 0.1 };
        self.tensors.push(TensorInfo { name, dims: vec![len], encoding: Encoding::F32, content });
    }

    fn ones(&mut self, name: String, len: u64) {
        self.exactly(name, vec![1.0; len as usize]);
    }

    fn exactly(&mut self, name: String, values: Vec<f32>) {
        let dims = vec![values.len() as u64];
        self.tensors.push(TensorInfo {
            name,
            dims,
            encoding: Encoding::F32,
            content: Content::Exactly(values),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(name: &str) -> u64 {
        let shape = PUBLISHED.iter().find(|shape| shape.name == name).unwrap();
        shape.check().unwrap();
        let all = shape.tensors(Encoding::Q4_K).unwrap();
        let counted = all.iter().filter(|tensor| tensor.name != "rope_freqs.weight");
        counted.map(|tensor| tensor.dims.iter().product::<u64>()).sum()
    }

    #[test]
    fn published_shapes_have_the_published_number_of_parameters() {
        // As the models' pages on the hub state them.
        assert_eq!(parameters("llama-3.2-1b"), 1_235_814_400);
        assert_eq!(parameters("llama-3.1-8b"), 8_030_261_248);
        assert_eq!(parameters("qwen2.5-7b"), 7_615_616_512);
        assert_eq!(parameters("qwen3-8b"), 8_190_735_360);
    }

    #[test]
    fn a_width_that_the_encoding_cannot_hold_is_named() {
        let shape = Shape { hidden: 896, ..PUBLISHED[0].clone() };
        let message = shape.tensors(Encoding::Q4_K).unwrap_err().to_string();
        assert!(
            message.contains("token_embd") && message.contains("256") && message.contains("896"),
            "{message}"
        );
        assert!(shape.tensors(Encoding::Q4_0).is_ok());
    }

    #[test]
    fn sizes_that_no_model_can_have_are_refused() {
        let good = &PUBLISHED[0];
        for bad in [
            Shape { layers: 0, ..good.clone() },
            Shape { kv_heads: 5, ..good.clone() },
            Shape { head_dim: 63, ..good.clone() },
            Shape { vocab: 10, ..good.clone() },
        ] {
            assert!(bad.check().unwrap_err().is::<crate::failure::Usage>());
        }
    }
}
