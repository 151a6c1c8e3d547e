//! Steps a batch of sequences by hand: prompts of different lengths together, then one token of each per step, always the
//! most probable one.
//!
//! `cargo run --release -p plumb-engine --example batch -- model.gguf "Once upon a time" "The sky is"`

use std::path::Path;

use cpu::CpuDevice;
use engine::open::open;
use engine::tokenizer::Special;
use engine::{Feed, LoadOptions, LogitRows, Model, Sequence};

const TOKENS: usize = 24;

fn main() -> engine::Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("a model, then the prompts");
    let mut prompts: Vec<String> = args.collect();
    if prompts.is_empty() {
        prompts = vec!["Once upon a time".into(), "The sky is".into()];
    }

    let opened = open(Path::new(&path), None, &mut |_| {})?;
    let tokenizer = opened.tokenizer()?;
    let options = LoadOptions { context: Some(512), sequences: prompts.len(), ..LoadOptions::default() };
    let mut model = Model::load(&CpuDevice::best()?, opened.bundle.spec, opened.weights, &options)?;
    let vocab = model.spec().vocab;

    // What each sequence is fed next: its whole prompt at first.
    let mut next = Vec::new();
    for prompt in &prompts {
        next.push(tokenizer.encode(prompt, Special::AsText, true)?);
    }
    let mut sequences: Vec<Sequence> = next.iter().map(|_| model.sequence(&[])).collect();
    let mut answers = vec![Vec::new(); prompts.len()];
    let mut logits = vec![0.0; prompts.len() * vocab]; // [sequences, vocabulary]
    for _ in 0..TOKENS {
        let mut feeds: Vec<Feed<'_>> = sequences
            .iter_mut()
            .zip(&next)
            .map(|(sequence, tokens)| Feed { sequence, tokens, logits: LogitRows::Last })
            .collect();
        model.step(&mut feeds, &mut logits)?;
        for (i, row) in logits.chunks_exact(vocab).enumerate() {
            let best = (0..vocab).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as u32;
            answers[i].push(best);
            next[i] = vec![best];
        }
    }
    for (prompt, answer) in prompts.iter().zip(&answers) {
        println!("{prompt} → {}", tokenizer.decode(answer, false));
    }
    Ok(())
}
