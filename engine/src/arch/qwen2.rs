//! qwen2 and qwen2.5: biases on q, k and v.

use super::{Family, Gguf, Hf};
use crate::Result;
use crate::spec::ModelSpec;

pub(super) const FAMILY: Family =
    Family { name: "qwen2", model_types: &["qwen2"], from_gguf, from_hf, hf_norm_offset: 0.0 };

fn from_gguf(file: &Gguf<'_>) -> Result<ModelSpec> {
    file.base()
}

/// Shared with qwen3: the window applies only when switched on, and only from `max_window_layers` up.
pub(super) fn from_hf(hf: &Hf<'_>) -> Result<ModelSpec> {
    let mut spec = hf.base(false)?;
    if hf.bool("use_sliding_window")?.unwrap_or(false)
        && let Some(window) = hf.count("sliding_window")?
    {
        let full = hf.count("max_window_layers")?.unwrap_or(28).min(spec.layers());
        let layers = spec.layers();
        spec.windows[full..].fill(Some(window));
        if hf.has_layer_types() {
            spec.windows = hf.windows(layers, 0, window)?;
        }
    }
    Ok(spec)
}
