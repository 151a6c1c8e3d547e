//! phi3: q, k and v in one tensor, gate and up in one tensor, a window on every layer, LongRoPE.

use super::{Family, Gguf, Hf};
use crate::Result;
use crate::spec::ModelSpec;

pub(super) const FAMILY: Family =
    Family { name: "phi3", model_types: &["phi3"], from_gguf, from_hf, hf_norm_offset: 0.0 };

fn from_gguf(file: &Gguf<'_>) -> Result<ModelSpec> {
    let mut spec = file.base()?;
    if let Some(window) = file.count("attention.sliding_window")?.filter(|&w| w > 0) {
        spec.windows.fill(Some(window));
    }
    Ok(spec)
}

fn from_hf(hf: &Hf<'_>) -> Result<ModelSpec> {
    let mut spec = hf.base(false)?;
    if let Some(window) = hf.count("sliding_window")? {
        spec.windows.fill(Some(window));
    }
    Ok(spec)
}
