//! The bytes of a decoding step against a second count, made from weight files and published shapes by a script that knows
//! nothing of plumb (`golden/work/make.py`).

mod reference;

use engine::plan;
use engine::prepare::prepare;
use engine::rope::{RopeScaling, RopeSpec};
use engine::spec::{ModelSpec, NeededShape};
use serde::Deserialize;
use tensor::Encoding;
use tensor::files::WeightFile;
use tensor::kv::KvSettings;
use tensor::op::{Activation, Kind, Plan, RopeLayout};
use tensor::work::StepShape;

#[derive(Deserialize)]
struct Golden {
    real: Vec<Real>,
    published: Vec<Published>,
    packed: Vec<Packed>,
}

#[derive(Deserialize)]
struct Real {
    name: String,
    architecture: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Published {
    shape: Shape,
    encoding: String,
    windows: Vec<Option<usize>>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Shape {
    name: String,
    architecture: String,
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    tied: bool,
    #[serde(default)]
    qkv_bias: bool,
    #[serde(default)]
    qk_norms: bool,
    #[serde(default)]
    post_norms: bool,
}

#[derive(Deserialize)]
struct Step {
    context: usize,
    batch: usize,
    weights_read: u64,
    kv_read: u64,
    kv_written: u64,
}

/// A cache of codes: what one token's step reads and writes of it.
#[derive(Deserialize)]
struct Packed {
    shape: Shape,
    keys: String,
    values: String,
    cache_window: usize,
    sinks: usize,
    windows: Vec<Option<usize>>,
    steps: Vec<PackedStep>,
}

#[derive(Deserialize)]
struct PackedStep {
    context: usize,
    kv_read: u64,
    kv_written: u64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/work/work.json")).unwrap()
}

fn agrees(name: &str, plan: &Plan, steps: &[Step]) {
    assert!(!steps.is_empty());
    for step in steps {
        let work = plan.step_work(&StepShape::decode(step.batch, step.context));
        let found = (work.bytes_read.weights, work.bytes_read.kv, work.bytes_written.kv);
        let at = format!("{name} at {} with {} sequences", step.context, step.batch);
        assert_eq!(found, (step.weights_read, step.kv_read, step.kv_written), "{at}");
    }
}

#[test]
fn real_models_stream_what_their_files_say() {
    let golden = golden();
    assert_eq!(golden.real.len(), 4);
    for real in &golden.real {
        let file = WeightFile::open(reference::model(&real.name)).unwrap();
        let preparation = prepare(&file).unwrap();
        let spec = &preparation.bundle.spec;
        assert_eq!(spec.architecture, real.architecture);
        let kind_of = |name: &str| preparation.tensors.iter().find(|t| t.name == name).map(|t| t.kind);
        let plan = plan::build(spec, &kind_of, 8, &KvSettings::default()).unwrap();
        agrees(&real.name, &plan, &real.steps);
    }
}

#[test]
fn published_shapes_stream_what_their_configs_say() {
    let golden = golden();
    assert!(golden.published.len() >= 10);
    for published in &golden.published {
        let spec = spec(&published.shape, &published.windows);
        let encoding = Encoding::ALL.into_iter().find(|e| e.name() == published.encoding).unwrap();
        let needed = spec.needed();
        let kind_of = |name: &str| {
            needed.iter().find(|n| n.name == name).map(|n| match n.shape {
                NeededShape::Matrix { rows, cols } => Kind::Panels { encoding, rows, cols },
                NeededShape::Vector { len } => Kind::Vector { len },
            })
        };
        let plan = plan::build(&spec, &kind_of, 8, &KvSettings::default()).unwrap();
        agrees(&format!("{} in {encoding}", published.shape.name), &plan, &published.steps);
    }
}

#[test]
fn packed_caches_are_read_and_written_as_their_definition_says() {
    let golden = golden();
    assert!(golden.packed.len() >= 8);
    for case in &golden.packed {
        let spec = spec(&case.shape, &case.windows);
        let needed = spec.needed();
        let kind_of = |name: &str| {
            needed.iter().find(|n| n.name == name).map(|n| match n.shape {
                NeededShape::Matrix { rows, cols } => Kind::Panels { encoding: Encoding::Q8_0, rows, cols },
                NeededShape::Vector { len } => Kind::Vector { len },
            })
        };
        let formats: KvSettings = format!("{}/{}", case.keys, case.values).parse().unwrap();
        let kv = KvSettings { window: case.cache_window, sinks: case.sinks, ..formats };
        let plan = plan::build(&spec, &kind_of, 1, &kv).unwrap();
        for step in &case.steps {
            let work = plan.step_work(&StepShape::decode(1, step.context));
            let found = (work.bytes_read.kv, work.bytes_written.kv);
            let at = format!("{} with {kv} at {}", case.shape.name, step.context);
            assert_eq!(found, (step.kv_read, step.kv_written), "{at}");
        }
    }
}

/// A spec of these sizes; what bears on no byte is a common value.
fn spec(shape: &Shape, windows: &[Option<usize>]) -> ModelSpec {
    ModelSpec {
        architecture: shape.architecture.clone(),
        hidden: shape.hidden,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        ffn: shape.ffn,
        vocab: shape.vocab,
        context: 32_768,
        windows: windows.to_vec(),
        eps: 1e-6,
        activation: Activation::Silu,
        embed_scale: 1.0,
        attention_scale: 1.0,
        attention_softcap: None,
        logit_softcap: None,
        rope: RopeSpec {
            base: 1e6,
            dims: shape.head_dim,
            layout: RopeLayout::Halves,
            scaling: RopeScaling::None,
            divisors: Vec::new(),
        },
        local_rope: None,
        qk_norms: shape.qk_norms,
        post_norms: shape.post_norms,
        qkv_bias: shape.qkv_bias,
        output_bias: false,
        ffn_bias: false,
        head_bias: false,
        fused_qkv: false,
        tied_head: shape.tied,
    }
}
