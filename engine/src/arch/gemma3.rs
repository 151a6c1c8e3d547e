//! gemma3 (text): sandwich norms, norms on q and k, five sliding layers to each full one, a second rotary base for
//! the sliding ones.

use super::gemma2::gemma;
use super::{Family, Gguf, Hf, inverse_sqrt};
use crate::Result;
use crate::rope::{RopeScaling, RopeSpec};
use crate::spec::ModelSpec;

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    model_types: &["gemma3", "gemma3_text"],
    from_gguf,
    from_hf,
    hf_norm_offset: 1.0,
};

const PERIOD: usize = 6;
const LOCAL_BASE: f64 = 10000.0;
const WINDOW: usize = 4096;
/// The 27B model scales scores by its width per head, not by its head size; GGUF files do not say so.
const LAYERS_27B: usize = 62;

fn from_gguf(file: &Gguf<'_>) -> Result<ModelSpec> {
    let mut spec = ModelSpec { qk_norms: true, ..gemma(file.base()?) };
    if let Some(window) = file.count("attention.sliding_window")?.filter(|&w| w > 0) {
        spec.windows = file.windows(spec.layers(), PERIOD, window)?;
    }
    let local_base = file.f32("rope.freq_base_swa")?.map_or(LOCAL_BASE, f64::from);
    spec.local_rope = Some(local(&spec.rope, local_base));
    spec.logit_softcap = file.f32("final_logit_softcapping")?.filter(|&c| c != 0.0);
    if spec.layers() == LAYERS_27B && spec.heads > 0 {
        spec.attention_scale = inverse_sqrt((spec.hidden / spec.heads) as f64);
    }
    Ok(spec)
}

fn from_hf(hf: &Hf<'_>) -> Result<ModelSpec> {
    let mut spec = ModelSpec { qk_norms: true, ..gemma(hf.base(true)?) };
    let window = hf.count("sliding_window")?.unwrap_or(WINDOW);
    spec.windows = hf.windows(spec.layers(), PERIOD, window)?;
    spec.local_rope = Some(local(&spec.rope, hf.local_base(LOCAL_BASE)?));
    spec.logit_softcap = hf.f64("final_logit_softcapping")?.map(|c| c as f32).filter(|&c| c != 0.0);
    spec.attention_scale = inverse_sqrt(hf.f64("query_pre_attn_scalar")?.unwrap_or(256.0));
    Ok(spec)
}

/// Sliding layers never reach far enough to need the stretch of the full ones.
fn local(rope: &RopeSpec, base: f64) -> RopeSpec {
    RopeSpec { base, scaling: RopeScaling::None, ..rope.clone() }
}
