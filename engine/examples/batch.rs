//! Steps a batch of sequences by hand: one prompt, several greedy continuations of its most probable first tokens.
//!
//! `cargo run -p plumb-engine --release --example batch -- MODEL.gguf "A prompt"`

use std::sync::Arc;

use engine::prepare::prepare;
use engine::tokenizer::{Special, Tokenizer};
use engine::{Feed, LoadOptions, LogitRows, Model, Sequence};

const BRANCHES: usize = 4;
const TOKENS: usize = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "golden/models/llama-64.gguf".into());
    let text = arguments.next().unwrap_or_else(|| "Once upon a time".into());

    let file = tensor::files::WeightFile::open(path)?;
    let prepared = prepare(&file)?;
    let tokenizer = Tokenizer::build(prepared.tokenizer.as_ref().ok_or("the file has no tokenizer")?)?;
    let weights = Arc::new(prepared.in_memory(&file)?);
    let options = LoadOptions { context: Some(512), sequences: BRANCHES, ..LoadOptions::default() };
    let mut model = Model::load(&cpu::CpuDevice::best()?, prepared.bundle.spec, weights, &options)?;
    let vocab = model.plan().vocab;

    // The prompt once; then one fork for each of its best next tokens.
    let prompt = tokenizer.encode(&text, Special::AsText, true)?;
    let mut first = model.sequence(&prompt);
    let mut logits = vec![0.0; vocab];
    let rest = &prompt[first.len()..];
    model.step(&mut [Feed { sequence: &mut first, tokens: rest, logits: LogitRows::Last }], &mut logits)?;
    let mut best: Vec<u32> = (0..vocab as u32).collect();
    best.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    let mut branches: Vec<(Sequence, Vec<u32>)> =
        best.iter().take(BRANCHES).map(|&token| (first.fork(), vec![token])).collect();

    // One step for all branches at a time: each gives the bits that it would give alone.
    let mut logits = vec![0.0; BRANCHES * vocab];
    for _ in 1..TOKENS {
        let mut feeds: Vec<Feed<'_>> = branches
            .iter_mut()
            .map(|(sequence, tokens)| Feed {
                sequence,
                tokens: &tokens[tokens.len() - 1..],
                logits: LogitRows::Last,
            })
            .collect();
        model.step(&mut feeds, &mut logits)?;
        for ((_, tokens), row) in branches.iter_mut().zip(logits.chunks(vocab)) {
            let best = (0..vocab).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or_default();
            tokens.push(best as u32);
        }
    }
    for (_, tokens) in &branches {
        println!("{text}{}", tokenizer.decode(tokens, false));
    }
    Ok(())
}
