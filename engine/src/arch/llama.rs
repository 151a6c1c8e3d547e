//! llama, and what shares its shape: mistral, smollm.
//!
//! GGUF files of this family hold q and k with rows permuted so that rotary pairs are adjacent.

use tensor::op::RopeLayout;

use super::{Family, Gguf, Hf};
use crate::Result;
use crate::spec::ModelSpec;

pub(super) const FAMILY: Family =
    Family { name: "llama", model_types: &["llama", "mistral"], from_gguf, from_hf, hf_norm_offset: 0.0 };

fn from_gguf(file: &Gguf<'_>) -> Result<ModelSpec> {
    let mut spec = file.base()?;
    spec.rope.layout = RopeLayout::Adjacent;
    Ok(spec)
}

fn from_hf(hf: &Hf<'_>) -> Result<ModelSpec> {
    let mut spec = hf.base(false)?;
    if hf.model_type() == "mistral"
        && let Some(window) = hf.count("sliding_window")?
    {
        spec.windows.fill(Some(window));
    }
    Ok(spec)
}
