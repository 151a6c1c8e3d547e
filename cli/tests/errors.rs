//! Bad input gets a clear error and loses nothing.

mod common;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::*;

/// The bytes of a golden model after `change`, as a file.
fn changed(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = std::fs::read(golden("llama-64.gguf")).unwrap();
    change(&mut bytes);
    let path = folder.join("changed.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn at(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|w| w == text).unwrap()
}

#[test]
fn a_missing_file_is_named_and_the_known_models_listed() {
    let cache = tempfile::tempdir().unwrap();
    let said = fails(&mut complete(cache.path(), Path::new("/nowhere/model.gguf"), "a"), 1);
    assert!(said.contains("/nowhere/model.gguf") && said.contains("smollm2-135m"), "{said}");
}

#[test]
fn a_truncated_file_is_refused_and_leaves_no_pack() {
    let cache = tempfile::tempdir().unwrap();
    for length in [3, 100, 5000, 200_000] {
        let file = changed(cache.path(), |bytes| bytes.truncate(length));
        let said = fails(&mut complete(cache.path(), &file, "a"), 1);
        assert!(said.contains("changed.gguf") || said.contains("expected"), "{length}: {said}");
    }
    let packs = std::fs::read_dir(cache.path().join("packs")).into_iter().flatten().flatten();
    assert!(packs.map(|e| e.path()).all(|p| p.extension().is_none_or(|end| end != "plumb")));
}

#[test]
fn an_unknown_architecture_is_named_beside_the_known_ones() {
    let cache = tempfile::tempdir().unwrap();
    let file = changed(cache.path(), |bytes| {
        let key = at(bytes, b"general.architecture");
        let value = key + at(&bytes[key..], b"llama");
        bytes[value] = b'x';
    });
    let said = fails(&mut complete(cache.path(), &file, "a"), 1);
    assert!(said.contains("xlama") && said.contains("qwen2") && said.contains("gemma3"), "{said}");
}

#[test]
fn broken_weights_are_reported_as_such() {
    let cache = tempfile::tempdir().unwrap();
    // The last bytes are a tensor's; these make its numbers NaN.
    let file = changed(cache.path(), |bytes| {
        let len = bytes.len();
        bytes[len - 256..].fill(0xff);
    });
    let said = fails(&mut complete(cache.path(), &file, "a"), 1);
    assert!(said.contains("broken") && said.contains("NaN"), "{said}");
}

#[test]
fn a_prompt_longer_than_the_context_says_both_lengths() {
    let cache = tempfile::tempdir().unwrap();
    let prompt = "x".repeat(100);
    let said = fails(complete(cache.path(), &golden("llama-64.gguf"), &prompt).args(["--ctx", "64"]), 1);
    assert!(said.contains("102 tokens") && said.contains("64"), "{said}");
}

#[test]
fn a_context_beyond_the_models_says_the_models() {
    let cache = tempfile::tempdir().unwrap();
    let said = fails(complete(cache.path(), &golden("llama-64.gguf"), "a").args(["--ctx", "5000"]), 1);
    assert!(said.contains("5000") && said.contains("1024"), "{said}");
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let with = |flags: &[&str]| fails(complete(cache.path(), &model, "a").args(flags), 2);
    assert!(with(&["--threads", "0"]).contains("at least 1, found 0"));
    assert!(with(&["--ctx", "0"]).contains("at least 1, found 0"));
    assert!(with(&["--system", "x"]).contains("--raw"));
    assert!(with(&["--nonsense"]).contains("--nonsense"));
    let empty = fails(plumb(cache.path()).arg("run").arg(&model), 2);
    assert!(empty.contains("prompt is empty"), "{empty}");
}

#[test]
fn settings_out_of_range_are_named() {
    let cache = tempfile::tempdir().unwrap();
    let with = |flags: &[&str]| fails(complete(cache.path(), &golden("llama-64.gguf"), "a").args(flags), 1);
    assert!(with(&["--top-p", "1.5"]).contains("top_p"));
    assert!(with(&["--temp=-1"]).contains("temperature"));
    assert!(with(&["--hlg", "width=4,nonsense=1"]).contains("nonsense"));
    let curve = cache.path().join("curve.json");
    let points = r#"[{"x_pct":1,"y_pct":1},{"x_pct":50,"y_pct":40},{"x_pct":50,"y_pct":60},{"x_pct":100,"y_pct":100}]"#;
    std::fs::write(&curve, format!(r#"{{"space":"logprob","points":{points},"monotonic":true}}"#)).unwrap();
    let said = with(&["--curve", curve.to_str().unwrap()]);
    assert!(said.contains("curve.json") && said.contains("50"), "{said}");
}

#[test]
fn a_cache_that_cannot_be_written_is_said_and_the_answer_still_given() {
    let folder = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let expected = json(complete(folder.path(), &model, "abc").arg("--fingerprint"));
    // A file where the cache folder should be stops every user, root too.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = ok(complete(&file, &model, "abc").args(["--json", "--fingerprint"]));
    assert!(stderr(&output).contains("prepared in memory"), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["fingerprint"], expected["fingerprint"]);
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let said = fails(plumb(cache.path()).arg("pack").arg(&model).args(["-o", "/nowhere/x.plumb"]), 1);
    assert!(said.contains("/nowhere"), "{said}");
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let said = fails(complete(cache.path(), &model, "a").arg("--json").stdout(Stdio::from(full)), 1);
        assert!(said.contains("standard output"), "{said}");
    }
}

#[test]
fn an_unknown_instruction_set_is_refused_by_name() {
    let cache = tempfile::tempdir().unwrap();
    let said = fails(complete(cache.path(), &golden("llama-64.gguf"), "a").env("PLUMB_ISA", "mmx"), 1);
    assert!(said.contains("PLUMB_ISA") && said.contains("mmx") && said.contains("portable"), "{said}");
}
