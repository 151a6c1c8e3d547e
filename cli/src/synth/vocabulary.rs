//! A tokenizer for a model that has learned nothing: every byte a token, a few merges, names for the rest.
//!
//! Byte-level BPE, so that any text can be encoded and any token printed.

use super::gguf::Value;
use super::shape::Arch;

/// Merges, so that the merge table is not empty; each makes one token. `Ġ` is how byte-level BPE writes a space.
const MERGES: &[(&str, &str)] = &[("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("Ġ", "a")];

/// The tokens that begin and end a text.
const CONTROL: &[&str] = &["<|begin|>", "<|end|>"];

/// The smallest vocabulary: bytes, merges and control tokens.
pub(crate) const LEAST: u32 = 256 + MERGES.len() as u32 + CONTROL.len() as u32;

// GGUF's token types.
const NORMAL: i32 = 1;
const CONTROL_TYPE: i32 = 3;
const UNUSED: i32 = 5;

/// The tokenizer's metadata for a vocabulary of `size` tokens, at least [`LEAST`].
pub(crate) fn metadata(size: u32, arch: Arch) -> Vec<(String, Value)> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_symbol(byte).to_string()).collect();
    tokens.extend(MERGES.iter().map(|(left, right)| format!("{left}{right}")));
    let mut types = vec![NORMAL; tokens.len()];
    let begin = tokens.len() as u32;
    tokens.extend(CONTROL.iter().map(|&name| name.to_owned()));
    types.resize(tokens.len(), CONTROL_TYPE);
    tokens.extend((tokens.len()..size as usize).map(|id| format!("<|unused_{id}|>")));
    types.resize(tokens.len(), UNUSED);

    let pre = if arch == Arch::Llama { "llama-bpe" } else { "qwen2" };
    let merges = MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    vec![
        (key("model"), Value::Str("gpt2".into())),
        (key("pre"), Value::Str(pre.into())),
        (key("tokens"), Value::Strs(tokens)),
        (key("token_type"), Value::I32s(types)),
        (key("merges"), Value::Strs(merges)),
        (key("bos_token_id"), Value::U32(begin)),
        (key("eos_token_id"), Value::U32(begin + 1)),
        (key("add_bos_token"), Value::Bool(arch == Arch::Llama)),
    ]
}

/// The character that stands for a byte in byte-level BPE (GPT-2's `bytes_to_unicode`): printable Latin-1 stands for
/// itself, the others take the code points from 256 on, in order.
fn byte_symbol(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bytes_have_the_symbols_of_gpt2() {
        let expected =
            [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'\t', 'ĉ'), (0, 'Ā'), (b'A', 'A'), (0xad, 'Ń'), (0xff, 'ÿ')];
        for (byte, symbol) in expected {
            assert_eq!(byte_symbol(byte), symbol, "{byte}");
        }
    }

    #[test]
    fn tokens_are_distinct_and_as_many_as_asked() {
        for size in [LEAST, 1000] {
            let metadata = metadata(size, Arch::Llama);
            let get =
                |name: &str| metadata.iter().find(|(key, _)| key.ends_with(name)).map(|(_, value)| value);
            let (Some(Value::Strs(tokens)), Some(Value::I32s(types))) = (get(".tokens"), get(".token_type"))
            else {
                panic!("tokens or types are missing");
            };
            assert_eq!((tokens.len(), types.len()), (size as usize, size as usize));
            assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len());
        }
    }
}
