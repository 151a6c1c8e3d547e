//! qwen3: norms on the heads of q and k.

use super::{Family, Gguf, Hf, qwen2};
use crate::Result;
use crate::spec::ModelSpec;

pub(super) const FAMILY: Family =
    Family { name: "qwen3", model_types: &["qwen3"], from_gguf, from_hf, hf_norm_offset: 0.0 };

fn from_gguf(file: &Gguf<'_>) -> Result<ModelSpec> {
    Ok(ModelSpec { qk_norms: true, ..file.base()? })
}

fn from_hf(hf: &Hf<'_>) -> Result<ModelSpec> {
    Ok(ModelSpec { qk_norms: true, ..qwen2::from_hf(hf)? })
}
