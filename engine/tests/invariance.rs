//! One answer: the same logit bits for every batch, chunking, prefix reuse, thread count and kernel table, on a small
//! random model of every architecture, container and encoding.

use std::path::PathBuf;
use std::sync::Arc;

use conformance::{Case, all_cuts, assert_one_answer, pairwise_cuts};
use cpu::{CpuDevice, Isa};
use engine::prepare::prepare;
use tensor::device::{Device, WeightStore};
use tensor::files::WeightFile;
use tensor::kv::{Format, KvSettings};

fn case(model: &str) -> Case {
    case_with(model, KvSettings::default())
}

fn case_with(model: &str, kv: KvSettings) -> Case {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/models").join(model);
    let file = WeightFile::open(path).unwrap();
    let preparation = prepare(&file).unwrap();
    let weights = Arc::new(preparation.in_memory(&file).unwrap());
    let kind_of = |name: &str| weights.get(name).map(|(kind, _)| kind);
    let mut plan = engine::plan::build(&preparation.bundle.spec, &kind_of, 8, &kv).unwrap();
    // Every position's logits are compared, so as many rows as tokens.
    plan.max_logit_rows = plan.max_step_tokens;
    let vocab = plan.vocab as u32;
    // Lengths around tile boundaries, and longer than the prefixes that are reused.
    let lengths = [80, 65, 1, 79, 17, 9, 3, 2];
    let history =
        |(i, &n): (usize, &usize)| (0..n as u32).map(|t| (t * t + 31 * t + 7 * i as u32) % vocab).collect();
    Case {
        name: format!("{model}, {}", kv.class()),
        plan: Arc::new(plan),
        weights,
        histories: lengths.iter().enumerate().map(history).collect(),
    }
}

fn devices(threads: &[usize]) -> Vec<(String, Box<dyn Device>)> {
    let mut out: Vec<(String, Box<dyn Device>)> = Vec::new();
    for isa in Isa::supported() {
        for &n in threads {
            out.push((format!("{} x{n}", isa.name()), Box::new(CpuDevice::new(isa, n).unwrap())));
        }
    }
    out
}

/// Every table, one to three threads, the whole cross product.
fn full(model: &str) {
    assert_one_answer(&case(model), &devices(&[1, 2, 3]), &all_cuts());
}

/// Every table and pair of settings.
fn pairwise(model: &str) {
    assert_one_answer(&case(model), &devices(&[2, 3]), &pairwise_cuts());
}

macro_rules! models {
    ($check:ident: $($test:ident: $model:literal;)*) => { $(#[test] fn $test() { $check($model); })* };
}

models! { full:
    llama_64: "llama-64.gguf";
    qwen2_64: "qwen2-64.gguf";
    qwen3_128: "qwen3-128.gguf";
    gemma2_256: "gemma2-256.gguf";
    gemma3_256: "gemma3-256.gguf";
    phi3_window: "phi3-window.gguf";
}

models! { pairwise:
    mistral_80: "mistral-80.gguf";
    llama_odd_96: "llama-odd-96.gguf";
    llama_legacy: "llama-legacy.gguf";
    llama_half: "llama-64-half.gguf";
    qwen3_k: "qwen3-k.gguf";
}

/// A packed cache whose window is short enough that the histories here leave it.
fn packed(model: &str, kv: &str, window: usize, sinks: usize) {
    let both = KvSettings { window, sinks, ..kv.parse().unwrap() };
    let kv = KvSettings { rotate_values: both.values.is_narrow(), ..both };
    assert_one_answer(&case_with(model, kv), &devices(&[1, 3]), &pairwise_cuts());
}

macro_rules! packed {
    ($($test:ident: $model:literal, $kv:literal, $window:literal, $sinks:literal;)*) => {
        $(#[test] fn $test() { packed($model, $kv, $window, $sinks); })*

        #[test]
        fn every_format_is_here() {
            let named: Vec<KvSettings> = vec![$($kv.parse().unwrap()),*];
            for format in Format::ALL {
                assert!(named.iter().any(|s| s.keys == format), "{format} keys");
                assert!(named.iter().any(|s| s.values == format), "{format} values");
            }
        }
    };
}

packed! {
    packed_8: "llama-64.gguf", "q8", 16, 0;
    packed_6: "mistral-80.gguf", "q6", 0, 1;
    packed_5: "llama-odd-96.gguf", "q5", 33, 4;
    packed_4: "qwen2-64.gguf", "q4", 32, 4;
    packed_3: "qwen3-128.gguf", "q3", 5, 17;
    packed_2: "gemma3-256.gguf", "q2", 0, 4;
    packed_keys_only: "gemma2-256.gguf", "q4/f16", 7, 32;
    packed_values_only: "phi3-window.gguf", "f16/q3", 1, 4;
    packed_apart: "mistral-80.gguf", "q8/q2", 0, 20;
}

/// Every golden model on every table, also with more threads than this machine may have, the whole cross product.
#[test]
#[ignore = "takes minutes; `cargo xtask invariance --full` runs it"]
fn every_model_at_length() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/models");
    let mut models: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".gguf"))
        .collect();
    models.sort();
    assert!(!models.is_empty(), "no golden models");
    for model in models {
        eprintln!("{model}");
        assert_one_answer(&case(&model), &devices(&[1, 2, 3, 5]), &all_cuts());
    }
}
