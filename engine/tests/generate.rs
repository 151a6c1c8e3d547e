//! Answers of a small random model: why they end, and that they are one answer whatever was kept before.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cpu::CpuDevice;
use engine::prepare::prepare;
use engine::sample::SamplerConfig;
use engine::tokenizer::{Special, Tokenizer};
use engine::{Error, FingerprintScope, FinishReason, Finished, GenerateOptions, LoadOptions, Model};
use tensor::files::WeightFile;

fn load(name: &str, options: &LoadOptions) -> (Model, Tokenizer) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/models").join(name);
    let file = WeightFile::open(path).unwrap();
    let prepared = prepare(&file).unwrap();
    let tokenizer = Tokenizer::build(prepared.tokenizer.as_ref().unwrap()).unwrap();
    let weights = Arc::new(prepared.in_memory(&file).unwrap());
    (Model::load(&CpuDevice::best().unwrap(), prepared.bundle.spec, weights, options).unwrap(), tokenizer)
}

fn seeded(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        sampler: SamplerConfig { seed: Some(7), ..SamplerConfig::default() },
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        fingerprint: FingerprintScope::Drawn,
        ..GenerateOptions::default()
    }
}

fn run(
    model: &mut Model,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    options: GenerateOptions,
) -> (String, Finished) {
    let mut generation = model.generate(tokenizer, prompt, options).unwrap();
    let text: String = generation.by_ref().map(|chunk| chunk.unwrap().text).collect();
    (text, generation.finish())
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + 11) % 250).collect()
}

#[test]
fn a_kept_prefix_changes_neither_tokens_nor_bits() {
    for name in ["llama-64.gguf", "gemma3-7.gguf", "phi3-window.gguf"] {
        let options = LoadOptions { context: Some(600), ..LoadOptions::default() };
        let (mut model, tokenizer) = load(name, &options);
        let prompt = prompt(200);
        let (_, first) = run(&mut model, &tokenizer, &prompt, seeded(40));
        assert_eq!((first.reused_tokens, first.tokens.len()), (0, 40), "{name}");
        let (_, again) = run(&mut model, &tokenizer, &prompt, seeded(40));
        assert_eq!(again.reused_tokens, 199, "{name}");
        assert_eq!(again.tokens, first.tokens, "{name}");
        let hash = |f: &Finished| f.fingerprint.as_ref().unwrap().value();
        assert_eq!(hash(&again), hash(&first), "{name}");
        // The next turn starts where the first answer ended, or at the prompt's end where a window has moved on.
        let longer = [&prompt[..], &first.tokens, &[5, 6, 7]].concat();
        let (_, next) = run(&mut model, &tokenizer, &longer, seeded(10));
        assert!(next.reused_tokens >= 239, "{name}: {}", next.reused_tokens);
        model.forget_prefixes();
        let (_, fresh) = run(&mut model, &tokenizer, &longer, seeded(10));
        assert_eq!((fresh.reused_tokens, hash(&fresh)), (0, hash(&next)), "{name}");
    }
}

#[test]
fn the_hash_of_all_positions_does_not_depend_on_what_is_kept() {
    let (mut model, tokenizer) = load("qwen2-64.gguf", &LoadOptions::default());
    let all = GenerateOptions { fingerprint: FingerprintScope::All, ..seeded(5) };
    let (_, first) = run(&mut model, &tokenizer, &prompt(100), all.clone());
    let (_, again) = run(&mut model, &tokenizer, &prompt(100), all);
    assert_eq!(first.fingerprint.unwrap().value(), again.fingerprint.unwrap().value());
    assert_eq!(again.reused_tokens, 0);
    let (_, drawn) = run(&mut model, &tokenizer, &prompt(100), seeded(5));
    assert_eq!(drawn.tokens, first.tokens);
}

#[test]
fn each_end_has_its_reason() {
    let options = LoadOptions { context: Some(64), ..LoadOptions::default() };
    let (mut model, tokenizer) = load("llama-64.gguf", &options);
    let (text, length) = run(&mut model, &tokenizer, &prompt(20), seeded(30));
    assert_eq!((length.reason, length.tokens.len()), (FinishReason::Length, 30));
    let (_, none) = run(&mut model, &tokenizer, &prompt(20), seeded(0));
    assert_eq!((none.reason, none.tokens.len()), (FinishReason::Length, 0));

    // Positions 0 to 63 are held; the token that follows the last is drawn and cannot be stepped.
    let (_, full) = run(&mut model, &tokenizer, &prompt(20), seeded(1000));
    assert_eq!((full.reason, full.tokens.len()), (FinishReason::Context, 45));
    assert_eq!(full.tokens[..30], length.tokens);

    let middle: String = text.chars().skip(4).take(3).collect();
    let stop = GenerateOptions { stop: vec![middle.clone()], ..seeded(30) };
    let (shown, stopped) = run(&mut model, &tokenizer, &prompt(20), stop);
    assert_eq!(stopped.reason, FinishReason::Stop);
    assert_eq!(Some(shown.as_str()), text.split(middle.as_str()).next());

    let interrupt = Some(Arc::new(AtomicBool::new(true)));
    let (_, interrupted) =
        run(&mut model, &tokenizer, &prompt(20), GenerateOptions { interrupt, ..seeded(30) });
    assert_eq!((interrupted.reason, interrupted.tokens.len()), (FinishReason::Interrupted, 0));

    let end = tokenizer.end_of_generation()[0];
    let sampler = SamplerConfig { logit_bias: [(end, 1000.0)].into(), ..seeded(0).sampler };
    let (_, ended) = run(
        &mut model,
        &tokenizer,
        &prompt(20),
        GenerateOptions { sampler: sampler.clone(), ignore_eos: false, ..seeded(30) },
    );
    assert_eq!((ended.reason, ended.tokens.len()), (FinishReason::Eog, 0));
    let (_, ignored) = run(&mut model, &tokenizer, &prompt(20), GenerateOptions { sampler, ..seeded(3) });
    assert_eq!(ignored.tokens, [end; 3]);
}

#[test]
fn a_prompt_that_cannot_be_held_is_refused_before_any_work() {
    let options = LoadOptions { context: Some(64), ..LoadOptions::default() };
    let (mut model, tokenizer) = load("llama-64.gguf", &options);
    let e = model.generate(&tokenizer, &prompt(65), seeded(1)).unwrap_err();
    assert!(matches!(e, Error::ContextFull { tokens: 65, position: 0, context: 64 }), "{e}");
    assert!(model.generate(&tokenizer, &[], seeded(1)).is_err());
    let e = model.generate(&tokenizer, &[100_000], seeded(1)).unwrap().next().unwrap().unwrap_err();
    assert!(e.to_string().contains("100000"), "{e}");
}

#[test]
fn text_of_prompt_and_answer_is_the_tokens_text() {
    let (mut model, tokenizer) = load("gemma2-256.gguf", &LoadOptions::default());
    let ids = tokenizer.encode("Hello", Special::AsText, true).unwrap();
    let (text, finished) = run(&mut model, &tokenizer, &ids, seeded(50));
    let bytes: Vec<u8> = finished
        .tokens
        .iter()
        .filter(|&&id| !tokenizer.is_control(id))
        .flat_map(|&id| tokenizer.piece(id).into_owned())
        .collect();
    assert_eq!(text, String::from_utf8_lossy(&bytes));
}

#[test]
fn a_broken_model_is_an_error_that_names_the_position() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/models/llama-64.gguf");
    let file = WeightFile::open(path).unwrap();
    let prepared = prepare(&file).unwrap();
    let tokenizer = Tokenizer::build(prepared.tokenizer.as_ref().unwrap()).unwrap();
    let mut spec = prepared.bundle.spec.clone();
    spec.embed_scale = f32::MAX; // infinities, and from the first norm on NaN
    let weights = Arc::new(prepared.in_memory(&file).unwrap());
    let mut model = Model::load(&CpuDevice::best().unwrap(), spec, weights, &LoadOptions::default()).unwrap();
    let mut generation = model.generate(&tokenizer, &prompt(20), seeded(5)).unwrap();
    let e = generation.next().unwrap().unwrap_err();
    assert!(matches!(&e, Error::Sample(_)) && e.to_string().contains("position 20"), "{e}");
    assert!(generation.next().is_none());
}
