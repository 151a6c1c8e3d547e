//! The architectures that plumb knows: one file per family, holding only how its metadata become a [`ModelSpec`] and
//! what its tensors are called.
//!
//! It does not know how any of them is computed.

mod gemma2;
mod gemma3;
mod gguf;
mod hf;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;

use tensor::Encoding;
use tensor::files::Metadata;

pub use gguf::Gguf;
pub use hf::{Hf, hugging_face_name};

use crate::spec::ModelSpec;
use crate::{Error, Result};

/// One row of the registry.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `general.architecture` of GGUF files.
    pub name: &'static str,
    /// `model_type` values of Hugging Face's config.json.
    pub model_types: &'static [&'static str],
    /// Reads a GGUF file's metadata.
    pub from_gguf: fn(&Gguf<'_>) -> Result<ModelSpec>,
    /// Reads a config.json.
    pub from_hf: fn(&Hf<'_>) -> Result<ModelSpec>,
    /// What is added to norm weights of Hugging Face folders: 1 where the family stores them less one.
    pub hf_norm_offset: f32,
}

/// Every family.
pub const FAMILIES: &[Family] =
    &[llama::FAMILY, qwen2::FAMILY, qwen3::FAMILY, gemma2::FAMILY, gemma3::FAMILY, phi3::FAMILY];

/// What a weight file says of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// How it is stored.
    pub encoding: Encoding,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs, or the length of a vector.
    pub cols: usize,
}

/// A weight file's tensors, as the mappings need them.
pub trait Tensors {
    /// The shape of a tensor, by the file's own name.
    fn shape(&self, name: &str) -> Option<TensorShape>;

    /// The values of a short vector (rotary factors).
    ///
    /// # Errors
    /// The tensor is missing or cannot be read as f32.
    fn vector(&self, name: &str) -> Result<Vec<f32>>;
}

/// The spec of a GGUF model, validated.
///
/// # Errors
/// An unknown architecture; metadata that are missing, malformed or contradictory.
pub fn from_gguf(metadata: &Metadata, tensors: &dyn Tensors) -> Result<ModelSpec> {
    let name = metadata.str("general.architecture")?;
    let name = metadata.require("general.architecture", name)?;
    let family = FAMILIES.iter().find(|f| f.name == name).ok_or_else(|| unknown(name))?;
    let spec = (family.from_gguf)(&Gguf { metadata, tensors, arch: family.name })?;
    spec.validate()?;
    Ok(spec)
}

/// What a Hugging Face folder turns out to be.
#[derive(Clone, Debug)]
pub struct HfModel {
    /// The spec, validated.
    pub spec: ModelSpec,
    /// Its family.
    pub family: &'static Family,
    /// What the names of the text model's tensors start with.
    pub prefix: &'static str,
}

/// The spec of a Hugging Face folder.
///
/// # Errors
/// As [`from_gguf`].
pub fn from_hf(config: &serde_json::Value, tensors: &dyn Tensors) -> Result<HfModel> {
    let hf = Hf::new(config, tensors)?;
    let family = FAMILIES.iter().find(|f| f.model_types.contains(&hf.model_type()));
    let family = family.ok_or_else(|| unknown(hf.model_type()))?;
    let hf = hf.of_family(family.name);
    let spec = (family.from_hf)(&hf)?;
    spec.validate()?;
    Ok(HfModel { spec, family, prefix: hf.prefix() })
}

fn unknown(found: &str) -> Error {
    let mut known: Vec<&str> =
        FAMILIES.iter().flat_map(|f| std::iter::once(&f.name).chain(f.model_types)).copied().collect();
    known.sort_unstable();
    known.dedup();
    Error::UnknownArchitecture { found: found.chars().take(64).collect(), known: known.join(", ") }
}

/// Sliding layers in a cycle of `period`, the last of each cycle seeing everything.
fn cycle(layers: usize, period: usize, window: usize) -> Vec<Option<usize>> {
    (0..layers).map(|l| (period == 0 || l % period + 1 < period).then_some(window)).collect()
}

/// 1/√x, rounded once.
fn inverse_sqrt(x: f64) -> f32 {
    (1.0 / x.sqrt()) as f32
}
