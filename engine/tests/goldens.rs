//! Every architecture, head size, rotary scaling and container against references that are not ours: small random
//! models, whole prompts, on the CPU device. See `golden/README.md` for what the references are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cpu::CpuDevice;
use engine::prepare::prepare;
use engine::{Feed, LoadOptions, LogitRows, Model};
use serde::Deserialize;
use tensor::files::WeightFile;

#[derive(Deserialize)]
struct Entry {
    model: String,
    vocabulary: usize,
    file: String,
    #[serde(default)]
    same_weights: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    case: String,
    context: usize,
    ids: Vec<u32>,
    positions: Vec<usize>,
    references: BTreeMap<String, usize>,
    agreement: BTreeMap<String, Agreement>,
}

#[derive(Deserialize)]
struct Agreement {
    max_abs: f64,
    mean_kl: f64,
}

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden").join(path)
}

fn index() -> Vec<Entry> {
    serde_json::from_slice(&std::fs::read(golden("logits/index.json")).unwrap()).unwrap()
}

/// Logits after each token of a prompt, by a model whose own context is `context` where one is given.
fn logits(model: &str, ids: &[u32], context: Option<usize>, chunk: usize) -> Vec<Vec<f32>> {
    let file = WeightFile::open(golden("models").join(model)).unwrap();
    let preparation = prepare(&file).unwrap();
    let weights = Arc::new(preparation.in_memory(&file).unwrap());
    let mut spec = preparation.bundle.spec;
    if let Some(context) = context {
        spec.context = context;
    }
    let options = LoadOptions { context: Some(ids.len()), ..LoadOptions::default() };
    let mut model = Model::load(&CpuDevice::best().unwrap(), spec, weights, &options).unwrap();
    let mut sequence = model.sequence(&[]);
    let mut rows = Vec::new();
    for tokens in ids.chunks(chunk) {
        let mut feeds = [Feed { sequence: &mut sequence, tokens, logits: LogitRows::All }];
        model.step_with(&mut feeds, &mut |_, _, row| rows.push(row.to_vec())).unwrap();
    }
    rows
}

struct References<'a> {
    floats: Vec<f32>,
    entry: &'a Entry,
}

impl References<'_> {
    fn rows(&self, case: &Case, name: &str) -> Vec<&[f32]> {
        let (at, width) = (case.references[name], self.entry.vocabulary);
        self.floats[at..at + case.positions.len() * width].chunks(width).collect()
    }
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = row.iter().map(|&x| (x as f64 - max).exp()).sum();
    row.iter().map(|&x| x as f64 - max - sum.ln()).collect()
}

/// (largest difference of a logit, mean KL divergence from the reference)
fn compare(ours: &[Vec<f32>], positions: &[usize], reference: &[&[f32]]) -> (f64, f64) {
    let (mut worst, mut kl) = (0.0f64, 0.0);
    for (&position, theirs) in positions.iter().zip(reference) {
        let row = &ours[position][..theirs.len()];
        let differences = row.iter().zip(*theirs).map(|(a, b)| f64::from((a - b).abs()));
        worst = differences.fold(worst, |w, d| if d.is_nan() { f64::INFINITY } else { w.max(d) });
        let (p, q) = (log_softmax(theirs), log_softmax(row));
        kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    }
    (worst, kl / positions.len() as f64)
}

fn check(model: &str) {
    let index = index();
    let entry = index.iter().find(|e| e.model == model).expect("a model of the index");
    let bytes = std::fs::read(golden("logits").join(&entry.file)).unwrap();
    let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let references = References { floats, entry };
    for case in &entry.cases {
        for file in std::iter::once(&entry.model).chain(&entry.same_weights) {
            // LongRoPE's list is chosen by the model's own context, so that is what the case's context stands for.
            let context = file.contains("longrope").then_some(case.context);
            let ours = logits(file, &case.ids, context, 512);
            let at = format!("{file}, {}", case.case);
            if let Some(int8) = case.agreement.get("oracle_int8") {
                // One code rounded the other way moves all that follows: only distributions can be compared.
                let (_, kl) = compare(&ours, &case.positions, &references.rows(case, "oracle_int8"));
                assert!(
                    kl <= 2.0 * int8.mean_kl,
                    "{at}: mean KL {kl:.3e} from the int8 oracle, {:.3e} between oracles",
                    int8.mean_kl
                );
                let (_, kl) = compare(&ours, &case.positions, &references.rows(case, "oracle"));
                assert!(
                    kl <= 2.0 * int8.mean_kl,
                    "{at}: mean KL {kl:.3e} from the oracle, {:.3e} between oracles",
                    int8.mean_kl
                );
            } else {
                // The yardstick is what rounding keys and values to f16 does by itself.
                let f16 = &case.agreement["oracle_f16kv"];
                let (worst, kl) = compare(&ours, &case.positions, &references.rows(case, "oracle_f16kv"));
                assert!(
                    worst <= f16.max_abs,
                    "{at}: off by {worst:.3e}, an f16 cache costs {:.3e}",
                    f16.max_abs
                );
                assert!(kl <= f16.mean_kl, "{at}: mean KL {kl:.3e}, an f16 cache costs {:.3e}", f16.mean_kl);
            }
        }
    }
}

macro_rules! models {
    ($($test:ident: $model:literal;)*) => {
        $(#[test] fn $test() { check(concat!($model, ".gguf")); })*

        #[test]
        fn every_model_is_tested() {
            let tested = [$(concat!($model, ".gguf")),*];
            for entry in index() {
                assert!(tested.contains(&entry.model.as_str()), "{} has goldens and no test", entry.model);
            }
        }
    };
}

models! {
    llama_64: "llama-64";
    mistral_80: "mistral-80";
    llama_odd_96: "llama-odd-96";
    llama_128: "llama-128";
    llama_linear: "llama-linear";
    llama_yarn: "llama-yarn";
    llama_llama3: "llama-llama3";
    qwen2_64: "qwen2-64";
    qwen3_128: "qwen3-128";
    qwen3_yarn: "qwen3-yarn";
    gemma2_256: "gemma2-256";
    gemma2_defaults: "gemma2-defaults";
    gemma3_256: "gemma3-256";
    gemma3_7: "gemma3-7";
    phi3_64: "phi3-64";
    phi3_window: "phi3-window";
    phi3_longrope: "phi3-longrope";
    llama_legacy: "llama-legacy";
    qwen3_k: "qwen3-k";
}

/// The folders hold the same weights as the GGUF files, in F32, F16 or BF16, sharded or not.
#[test]
fn hugging_face_folders_answer_as_their_gguf() {
    for entry in index() {
        let stem = entry.model.trim_end_matches(".gguf");
        let case = &entry.cases[0];
        let bytes = std::fs::read(golden("logits").join(&entry.file)).unwrap();
        let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let references = References { floats, entry: &entry };
        for folder in std::fs::read_dir(golden("models/hf")).unwrap() {
            let name = folder.unwrap().file_name().into_string().unwrap();
            if name != stem && !name.starts_with(&format!("{stem}-")) {
                continue;
            }
            let context = name.contains("longrope").then_some(case.context);
            let ours = logits(&format!("hf/{name}"), &case.ids, context, 512);
            let (worst, _) = compare(&ours, &case.positions, &references.rows(case, "oracle_f16kv"));
            let f16 = case.agreement["oracle_f16kv"].max_abs;
            assert!(worst <= f16, "{name}: off by {worst:.3e}, an f16 cache costs {f16:.3e}");
        }
    }
}

/// The same bits however the prompt is cut.
#[test]
fn chunks_do_not_change_a_bit() {
    for entry in index() {
        let case = &entry.cases[1];
        let whole = logits(&entry.model, &case.ids, None, 512);
        for chunk in [1, 7, 64] {
            let cut = logits(&entry.model, &case.ids, None, chunk);
            let same =
                whole.iter().flatten().zip(cut.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{}: chunks of {chunk} give other bits", entry.model);
        }
    }
}
