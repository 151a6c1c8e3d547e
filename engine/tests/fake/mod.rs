//! Fake weight files for tests: shapes and metadata without bytes.
#![allow(dead_code)] // each test binary uses its part

use std::collections::BTreeMap;

use engine::arch::{TensorShape, Tensors};
use engine::spec::{ModelSpec, NeededShape};
use tensor::Encoding;
use tensor::files::{Array, Metadata, Value};
use tensor::op::Kind;

/// Tensors by name, with values for the short vectors.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    pub(crate) shapes: BTreeMap<String, TensorShape>,
    pub(crate) vectors: BTreeMap<String, Vec<f32>>,
}

impl Fake {
    pub(crate) fn with(mut self, name: &str, rows: usize, cols: usize) -> Self {
        self.shapes.insert(name.into(), TensorShape { encoding: Encoding::F32, rows, cols });
        self
    }

    pub(crate) fn with_vector(mut self, name: &str, values: &[f32]) -> Self {
        self.vectors.insert(name.into(), values.to_vec());
        self.with(name, 1, values.len())
    }
}

impl Tensors for Fake {
    fn shape(&self, name: &str) -> Option<TensorShape> {
        self.shapes.get(name).copied()
    }

    fn vector(&self, name: &str) -> engine::Result<Vec<f32>> {
        let missing = || tensor::Error::Missing { what: format!("tensor {name}") };
        Ok(self.vectors.get(name).cloned().ok_or_else(missing)?)
    }
}

pub(crate) fn uint(n: u64) -> Value {
    Value::Uint(n)
}

pub(crate) fn float(x: f64) -> Value {
    Value::Float(x)
}

/// GGUF metadata of a small model of a family: width 64, 4 heads of 16, 2 KV heads, 3 layers.
pub(crate) fn metadata(arch: &str, more: &[(&str, Value)]) -> Metadata {
    let mut m = Metadata::default();
    m.0.insert("general.architecture".into(), Value::Str(arch.into()));
    for (key, value) in [
        ("embedding_length", uint(64)),
        ("block_count", uint(3)),
        ("context_length", uint(1024)),
        ("feed_forward_length", uint(96)),
        ("attention.head_count", uint(4)),
        ("attention.head_count_kv", uint(2)),
        ("attention.layer_norm_rms_epsilon", float(1e-5f32 as f64)),
    ] {
        m.0.insert(format!("{arch}.{key}"), value);
    }
    for (key, value) in more {
        let key = if key.contains("tokenizer") { key.to_string() } else { format!("{arch}.{key}") };
        m.0.insert(key, value.clone());
    }
    m
}

pub(crate) fn flags(flags: &[bool]) -> Value {
    Value::Array(Array::Bool(flags.to_vec()))
}

/// The embedding table that every model has.
pub(crate) fn table() -> Fake {
    Fake::default().with("token_embd.weight", 200, 64)
}

/// Prepared kinds of every tensor that a spec needs, in F32.
pub(crate) fn kinds(spec: &ModelSpec) -> BTreeMap<String, Kind> {
    let kind = |shape| match shape {
        NeededShape::Matrix { rows, cols } => Kind::Panels { encoding: Encoding::F32, rows, cols },
        NeededShape::Vector { len } => Kind::Vector { len },
    };
    spec.needed().into_iter().map(|n| (n.name, kind(n.shape))).collect()
}
