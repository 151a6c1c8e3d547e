//! Any text as a Hugging Face folder's index or configuration.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| tensor::files::fuzz_texts(text));
