//! gemma2: sandwich norms, soft caps, every other layer sliding, scaled embeddings.

use tensor::op::Activation;

use super::{Family, Gguf, Hf, inverse_sqrt};
use crate::Result;
use crate::spec::ModelSpec;

pub(super) const FAMILY: Family = Family {
    name: "gemma2",
    model_types: &["gemma2", "gemma2_text"],
    from_gguf,
    from_hf,
    hf_norm_offset: 1.0,
};

const WINDOW: usize = 4096;
const PERIOD: usize = 2;
const ATTENTION_CAP: f64 = 50.0;
const LOGIT_CAP: f64 = 30.0;
/// The 27B model scales scores by its width per head, not by its head size; GGUF files do not say so.
const LAYERS_27B: usize = 46;

fn from_gguf(file: &Gguf<'_>) -> Result<ModelSpec> {
    let mut spec = gemma(file.base()?);
    let window = file.count("attention.sliding_window")?.unwrap_or(WINDOW);
    spec.windows = file.windows(spec.layers(), PERIOD, window)?;
    spec.attention_softcap = cap(file.f32("attn_logit_softcapping")?.map(f64::from), ATTENTION_CAP);
    spec.logit_softcap = cap(file.f32("final_logit_softcapping")?.map(f64::from), LOGIT_CAP);
    if spec.layers() == LAYERS_27B && spec.heads > 0 {
        spec.attention_scale = inverse_sqrt((spec.hidden / spec.heads) as f64);
    }
    Ok(spec)
}

fn from_hf(hf: &Hf<'_>) -> Result<ModelSpec> {
    let mut spec = gemma(hf.base(true)?);
    let window = hf.count("sliding_window")?.unwrap_or(WINDOW);
    spec.windows = hf.windows(spec.layers(), PERIOD, window)?;
    spec.attention_softcap = cap(hf.f64("attn_logit_softcapping")?, ATTENTION_CAP);
    spec.logit_softcap = cap(hf.f64("final_logit_softcapping")?, LOGIT_CAP);
    spec.attention_scale = inverse_sqrt(hf.f64("query_pre_attn_scalar")?.unwrap_or(256.0));
    Ok(spec)
}

/// The file's cap, 0 meaning none, or the published one.
fn cap(found: Option<f64>, published: f64) -> Option<f32> {
    Some(found.unwrap_or(published) as f32).filter(|&c| c != 0.0)
}

/// What all gemmas share.
pub(super) fn gemma(spec: ModelSpec) -> ModelSpec {
    ModelSpec {
        activation: Activation::GeluTanh,
        embed_scale: (spec.hidden as f64).sqrt() as f32,
        post_norms: true,
        ..spec
    }
}
