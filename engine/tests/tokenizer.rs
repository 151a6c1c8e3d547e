//! Ids equal those of the reference implementations on the committed corpus (golden/tokenizer, made by its make.py).

mod reference;

use engine::tokenizer::{Special, Tokenizer, TokenizerSource};
use reference::{golden, metadata, model};
use tensor::files::Value;

#[derive(serde::Deserialize)]
struct Golden {
    end_of_generation: Vec<u32>,
    as_text: Vec<Vec<u32>>,
    as_tokens: Vec<Option<Vec<u32>>>,
    whole: Vec<Option<Vec<u32>>>,
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let text = std::fs::read_to_string(golden(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    serde_json::from_str(&text).unwrap()
}

/// Every text of the corpus, in both readings and as a whole text.
fn check(what: &str, tokenizer: &Tokenizer, golden: &Golden) {
    let corpus: Vec<String> = read("corpus.json");
    assert_eq!(corpus.len(), golden.as_text.len());
    let mut wrong = Vec::new();
    for (i, text) in corpus.iter().enumerate() {
        let as_text = &golden.as_text[i];
        let as_tokens = golden.as_tokens[i].as_ref().unwrap_or(as_text);
        let whole = golden.whole[i].as_ref().unwrap_or(as_tokens);
        for (special, bos, expected) in
            [(Special::AsText, false, as_text), (Special::AsTokens, false, as_tokens), (Special::AsTokens, true, whole)]
        {
            let found = tokenizer.encode(text, special, bos).unwrap();
            if found != *expected {
                wrong.push(format!("{text:?} {special:?}:\n  expected {expected:?}\n  found    {found:?}"));
            }
        }
    }
    let shown = wrong.iter().take(8).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{what}: {} of {} differ\n{shown}", wrong.len(), 3 * corpus.len());
}

fn check_model(name: &str) -> Tokenizer {
    let source = TokenizerSource::from_gguf(&metadata(&model(name))).unwrap();
    let tokenizer = Tokenizer::build(&source).unwrap();
    check(name, &tokenizer, &read(&format!("{name}.json")));
    tokenizer
}

#[test]
fn smollm2_ids_equal_the_reference() {
    check_model("smollm2-135m");
}

#[test]
fn gemma3_ids_equal_the_reference() {
    check_model("gemma3-270m");
}

#[test]
fn qwen_half_billion_ids_equal_the_reference() {
    check_model("qwen2.5-coder-0.5b");
}

#[test]
fn qwen_one_and_a_half_billion_ids_equal_the_reference() {
    check_model("qwen2.5-coder-1.5b");
}

/// One group of pre-tokenizer names that the reference treats alike.
#[derive(serde::Deserialize)]
struct PreGroup {
    names: Vec<String>,
    adds_bos: bool,
    ids: Vec<Vec<u32>>,
}

/// The small vocabulary's merges cross every boundary, so that its ids show where words are cut.
#[test]
fn every_named_pre_tokenizer_cuts_as_the_reference_does() {
    let corpus: Vec<String> = read("corpus.json");
    let groups: Vec<PreGroup> = read("pre.json");
    let mut names: Vec<&str> = groups.iter().flat_map(|g| &g.names).map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, engine::tokenizer::pre_tokenizers(), "run golden/tokenizer/make.py");
    let base = metadata(&golden("crossing.gguf"));
    let mut wrong = Vec::new();
    for group in &groups {
        for name in &group.names {
            let mut metadata = base.clone();
            metadata.0.insert("tokenizer.ggml.pre".into(), Value::Str(name.clone()));
            let tokenizer = Tokenizer::build(&TokenizerSource::from_gguf(&metadata).unwrap()).unwrap();
            assert_eq!(tokenizer.roles().add_bos, group.adds_bos, "{name}");
            for (text, expected) in corpus.iter().zip(&group.ids) {
                let found = tokenizer.encode(text, Special::AsText, false).unwrap();
                if found != *expected {
                    wrong.push(format!("{name} {text:?}:\n  expected {expected:?}\n  found    {found:?}"));
                }
            }
        }
    }
    let shown = wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} differ\n{shown}", wrong.len());
}

#[test]
fn scores_with_and_without_a_space_before_the_text() {
    let golden: std::collections::HashMap<String, Golden> = read("spaced.json");
    let base = metadata(&reference::golden("spaced.gguf"));
    for (case, key, value) in [
        ("prefix", "general.name", Value::Str("spaced".into())),
        ("no_prefix", "tokenizer.ggml.add_space_prefix", Value::Bool(false)),
        ("phi3", "general.name", Value::Str("Phi-3 like".into())),
    ] {
        let mut metadata = base.clone();
        metadata.0.insert(key.into(), value);
        let tokenizer = Tokenizer::build(&TokenizerSource::from_gguf(&metadata).unwrap()).unwrap();
        check(case, &tokenizer, &golden[case]);
    }
}
