//! Processor time that a start spends on the tokenizer:
//! `cargo test --release -p plumb-engine --test tokenizer_speed -- --ignored --nocapture`.

mod reference;

use std::time::{Duration, Instant};

use engine::tokenizer::{Special, Tokenizer, TokenizerSource};

/// Time this thread has run, which does not count waiting for a processor (Linux).
fn ran() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    ns.map_or_else(|| BEGIN.elapsed(), Duration::from_nanos)
}

static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

#[test]
#[ignore = "a measurement"]
fn start() {
    for name in ["smollm2-135m", "qwen2.5-coder-1.5b", "gemma3-270m"] {
        let source = TokenizerSource::from_gguf(&reference::metadata(&reference::model(name))).unwrap();
        let json = serde_json::to_vec(&source).unwrap();
        drop(source);
        for _ in 0..3 {
            let begin = ran();
            let source: TokenizerSource = serde_json::from_slice(&json).unwrap();
            let read = ran() - begin;
            let tokenizer = Tokenizer::build(&source).unwrap();
            let built = ran() - begin;
            let ids = tokenizer
                .encode("<|im_start|>user\nHello there<|im_end|>\n", Special::AsTokens, true)
                .unwrap();
            let first = ran() - begin;
            drop(source);
            let memory = tokenizer.memory_bytes().unwrap();
            println!(
                "{name}: {memory} bytes held, {} bytes of JSON, read {read:.1?}, build {:.1?}, first text of {} tokens {:.1?}; {first:.1?}",
                json.len(),
                built - read,
                ids.len(),
                first - built
            );
        }
        let text = std::fs::read_to_string(reference::golden("corpus.py")).unwrap().repeat(128);
        let source = TokenizerSource::from_gguf(&reference::metadata(&reference::model(name))).unwrap();
        let tokenizer = Tokenizer::build(&source).unwrap();
        let begin = ran();
        let ids = tokenizer.encode(&text, Special::AsTokens, true).unwrap();
        println!("{name}: {} bytes of text, {} tokens in {:.1?}", text.len(), ids.len(), ran() - begin);
    }
}
