//! A model with a broken number in its weights says so: NaN reaches the logits on every kernel table, touches no position
//! before it, leaves nothing behind in the cache, and the answer ends in an error that names the position.

use std::path::PathBuf;
use std::sync::Arc;

use cpu::{CpuDevice, Isa};
use engine::prepare::prepare;
use engine::sample::SamplerConfig;
use engine::tokenizer::Tokenizer;
use engine::{Error, Feed, GenerateOptions, LoadOptions, LogitRows, Model};
use tensor::Encoding;
use tensor::files::WeightFile;

/// Longer than a tile, so that a break in the second leaves a whole tile before it.
const TOKENS: usize = 90;

fn golden(model: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/models").join(model);
    std::fs::read(path).unwrap()
}

/// Where a block's f16 scale lies, or a float itself, with a NaN of that width.
fn scale(encoding: Encoding) -> (usize, &'static [u8]) {
    let f16: &[u8] = &[0x00, 0x7e];
    match encoding {
        Encoding::F32 => (0, &[0x00, 0x00, 0xc0, 0x7f]),
        Encoding::BF16 => (0, &[0xc0, 0x7f]),
        Encoding::Q2_K => (80, f16),
        Encoding::Q3_K => (108, f16),
        Encoding::Q6_K => (208, f16),
        _ => (0, f16),
    }
}

/// The model with the first block of a row of a tensor broken.
fn broken(model: &str, tensor: &str, row: usize) -> WeightFile {
    let mut bytes = golden(model);
    let file = WeightFile::from_gguf_bytes(model, bytes.clone()).unwrap();
    let info = file.tensor(tensor).unwrap();
    let data = file.bytes(info);
    let starts: Vec<usize> =
        (0..=bytes.len() - data.len()).filter(|&at| bytes[at..].starts_with(data)).collect();
    let [start] = starts[..] else { panic!("{tensor} lies at {starts:?}") };
    let (offset, nan) = scale(info.encoding);
    bytes[start + row * info.row_bytes() + offset..][..nan.len()].copy_from_slice(nan);
    WeightFile::from_gguf_bytes(model, bytes).unwrap()
}

fn load(file: &WeightFile, isa: Isa) -> Model {
    let preparation = prepare(file).unwrap();
    let weights = Arc::new(preparation.in_memory(file).unwrap());
    let options = LoadOptions { context: Some(TOKENS + 8), ..LoadOptions::default() };
    Model::load(&CpuDevice::new(isa, 2).unwrap(), preparation.bundle.spec, weights, &options).unwrap()
}

/// Logits after each token, in chunks.
fn logits(model: &mut Model, ids: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut sequence = model.sequence(&[]);
    let mut rows = Vec::new();
    for tokens in ids.chunks(chunk) {
        let mut feeds = [Feed { sequence: &mut sequence, tokens, logits: LogitRows::All }];
        model.step_with(&mut feeds, &mut |_, _, row| rows.push(row.to_vec())).unwrap();
    }
    rows
}

/// Tokens 1 to 250, never the broken one.
fn prompt() -> Vec<u32> {
    (0..TOKENS as u32).map(|t| 1 + (t * t + 31 * t) % 250).collect()
}

/// Token whose embedding is broken.
const BROKEN: u32 = 255;

/// Every matrix of a layer, in every encoding that a golden model has.
#[test]
fn a_broken_matrix_reaches_every_logit_on_every_table() {
    for model in
        ["llama-legacy.gguf", "qwen3-k.gguf", "llama-64.gguf", "llama-64-half.gguf", "gemma3-256.gguf"]
    {
        let names: Vec<String> = WeightFile::from_gguf_bytes(model, golden(model))
            .unwrap()
            .tensors()
            .iter()
            .filter(|t| t.name.starts_with("blk.") && t.rows > 1)
            .map(|t| t.name.clone())
            .collect();
        assert!(names.len() >= 7, "{model}: {names:?}");
        for name in names {
            // A row that is neither the first nor the last of its panel.
            let file = broken(model, &name, 21);
            for isa in Isa::supported() {
                for (position, row) in logits(&mut load(&file, isa), &prompt()[..5], 4).iter().enumerate() {
                    let numbers = row.iter().filter(|x| !x.is_nan()).count();
                    assert_eq!(numbers, 0, "{model}, {name} broken, {}, position {position}", isa.name());
                }
            }
        }
    }
}

/// A broken embedding concerns the positions from its token on: those before it keep their bits, in the same tile and chunk
/// too, where its key and value are masked.
#[test]
fn a_broken_token_touches_nothing_before_it() {
    for model in
        ["llama-legacy.gguf", "qwen3-k.gguf", "llama-64-half.gguf", "gemma3-256.gguf", "gemma2-256.gguf"]
    {
        let file = broken(model, "token_embd.weight", BROKEN as usize);
        let whole = WeightFile::from_gguf_bytes(model, golden(model)).unwrap();
        let at = 70;
        let mut ids = prompt();
        ids[at] = BROKEN;
        for isa in Isa::supported() {
            let expected = logits(&mut load(&whole, isa), &prompt(), 512);
            let mut model_with_nan = load(&file, isa);
            for chunk in [512, 64, 1] {
                let found = logits(&mut model_with_nan, &ids, chunk);
                for (position, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let context = format!("{model}, {}, chunks of {chunk}, position {position}", isa.name());
                    // The head is the embedding: the token's own logit is broken everywhere.
                    let others = || (0..expected.len()).filter(|&t| t != BROKEN as usize);
                    if position < at {
                        let same = others().all(|t| found[t].to_bits() == expected[t].to_bits());
                        assert!(same, "{context}: other bits before the broken token");
                    } else {
                        assert!(
                            others().all(|t| found[t].is_nan()),
                            "{context}: numbers after the broken token"
                        );
                    }
                }
            }
            // Its blocks go to the next sequence, which sees nothing of it.
            let after = logits(&mut model_with_nan, &prompt(), 7);
            for (position, (found, expected)) in after.iter().zip(&expected).enumerate() {
                let mut others = (0..expected.len()).filter(|&t| t != BROKEN as usize);
                assert!(
                    others.all(|t| found[t].to_bits() == expected[t].to_bits()),
                    "{model}, {}: position {position} of a later sequence",
                    isa.name()
                );
            }
        }
    }
}

/// Two layers with windows of 24 see 46 positions back; what lies further is masked, and masked is not multiplied by zero.
#[test]
fn a_broken_token_is_gone_behind_the_window() {
    let model = "gemma3-256.gguf";
    let file = broken(model, "token_embd.weight", BROKEN as usize);
    let whole = WeightFile::from_gguf_bytes(model, golden(model)).unwrap();
    let at = 5;
    let mut ids = prompt();
    ids[at] = BROKEN;
    for isa in Isa::supported() {
        let expected = logits(&mut load(&whole, isa), &prompt(), 512);
        for chunk in [512, 64, 1] {
            let found = logits(&mut load(&file, isa), &ids, chunk);
            for position in at + 47..TOKENS {
                let (found, expected) = (&found[position], &expected[position]);
                let mut others = (0..expected.len()).filter(|&t| t != BROKEN as usize);
                assert!(
                    others.all(|t| found[t].to_bits() == expected[t].to_bits()),
                    "{}, chunks of {chunk}, position {position}",
                    isa.name()
                );
            }
        }
    }
}

/// What a person sees.
#[test]
fn the_error_names_the_position() {
    for isa in Isa::supported() {
        let file = broken("llama-legacy.gguf", "blk.1.ffn_down.weight", 21);
        let source = prepare(&file).unwrap().tokenizer.unwrap();
        let tokenizer = Tokenizer::build(&source).unwrap();
        let mut model = load(&file, isa);
        for temperature in [0.0, 1.0] {
            let sampler = SamplerConfig { temperature, seed: Some(1), ..SamplerConfig::default() };
            let options = GenerateOptions { sampler, ..GenerateOptions::default() };
            let mut generation = model.generate(&tokenizer, &prompt()[..9], options).unwrap();
            let error = generation.next().expect("an item").expect_err("an error");
            assert!(error.to_string().contains("position 9"), "{}: {error}", isa.name());
            let Error::Sample(engine::sample::Error::BrokenLogits { position, found, .. }) = error else {
                panic!("{}: {error}", isa.name());
            };
            assert!(position == 9 && found.is_nan(), "{}: position {position}, {found}", isa.name());
            assert!(generation.next().is_none(), "{}: an answer goes on after an error", isa.name());
        }
    }
}
