//! How long a start spends on the tokenizer: `cargo test --release -p plumb-engine --test tokenizer_speed -- --ignored --nocapture`.

mod reference;

use std::time::Instant;

use engine::tokenizer::{Special, Tokenizer, TokenizerSource};

#[test]
#[ignore = "a measurement"]
fn start() {
    for name in ["smollm2-135m", "qwen2.5-coder-1.5b", "gemma3-270m"] {
        let source = TokenizerSource::from_gguf(&reference::metadata(&reference::model(name))).unwrap();
        let json = serde_json::to_vec(&source).unwrap();
        drop(source);
        for _ in 0..3 {
            let begin = Instant::now();
            let source: TokenizerSource = serde_json::from_slice(&json).unwrap();
            let read = begin.elapsed();
            let tokenizer = Tokenizer::build(&source).unwrap();
            let built = begin.elapsed();
            let ids = tokenizer
                .encode("<|im_start|>user\nHello there<|im_end|>\n", Special::AsTokens, true)
                .unwrap();
            let first = begin.elapsed();
            drop(source);
            println!(
                "{name}: {} bytes of JSON, read {read:.1?}, build {:.1?}, first text of {} tokens {:.1?}; {first:.1?}",
                json.len(),
                built - read,
                ids.len(),
                first - built
            );
        }
    }
}
