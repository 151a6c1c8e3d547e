//! Prepared weights: made once, found again, checked, refused when they must be; and what `inspect` and `tokenize` say.

mod common;

use std::path::{Path, PathBuf};

use common::*;

/// A copy of a golden model that a test may change.
fn copy(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    std::fs::copy(golden("llama-64.gguf"), &path).unwrap();
    path
}

fn packs(cache: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(cache.join("packs")).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|end| end == "plumb")).collect()
}

fn fingerprint(command: &mut std::process::Command) -> String {
    json(command.arg("--fingerprint=all"))["fingerprint"].as_str().unwrap().to_owned()
}

#[test]
fn the_first_use_packs_and_the_next_one_maps() {
    let cache = tempfile::tempdir().unwrap();
    let model = copy(cache.path());
    ok(&mut complete(cache.path(), &model, "a"));
    let [pack] = &packs(cache.path())[..] else { panic!("one pack") };
    let made = std::fs::metadata(pack).unwrap().modified().unwrap();
    ok(&mut complete(cache.path(), &model, "a"));
    assert_eq!(std::fs::metadata(pack).unwrap().modified().unwrap(), made, "it was not made again");
    assert_eq!(packs(cache.path()).len(), 1);
}

#[test]
fn every_way_to_the_same_weights_gives_the_same_bits() {
    let cache = tempfile::tempdir().unwrap();
    let model = copy(cache.path());
    let expected = fingerprint(&mut complete(cache.path(), &model, "abc"));
    let pack = cache.path().join("own.plumb");
    ok(plumb(cache.path()).arg("pack").arg(&model).arg("-o").arg(&pack));
    assert_eq!(fingerprint(&mut complete(cache.path(), &pack, "abc")), expected, "a pack by name");
    let private = fingerprint(complete(cache.path(), &pack, "abc").args(["--weights", "private"]));
    assert_eq!(private, expected, "a private copy");
    std::fs::remove_file(&model).unwrap();
    assert_eq!(fingerprint(&mut complete(cache.path(), &pack, "abc")), expected, "a pack without its source");
    let f16 = fingerprint(&mut complete(cache.path(), &golden("hf/llama-64-f16"), "abc"));
    assert_eq!(f16.len(), 32, "a folder runs too");
}

#[test]
fn packs_are_listed_verified_and_deleted() {
    let cache = tempfile::tempdir().unwrap();
    let model = copy(cache.path());
    assert_eq!(json(plumb(cache.path()).arg("ls")), serde_json::json!([]));
    let made = stdout(&ok(plumb(cache.path()).arg("pack").arg(&model)));
    let made = Path::new(made.trim());
    let listed = json(plumb(cache.path()).arg("ls"));
    assert_eq!(listed[0]["bytes"], std::fs::metadata(made).unwrap().len());
    assert_eq!(listed[0]["state"], "current");
    assert!(listed[0]["source"].as_str().unwrap().ends_with("model.gguf"));

    ok(plumb(cache.path()).arg("verify"));
    let output = ok(plumb(cache.path()).arg("verify").arg(&model));
    assert!(stdout(&output).contains("sound"));

    let name = listed[0]["name"].as_str().unwrap();
    ok(plumb(cache.path()).args(["rm", name]));
    assert!(packs(cache.path()).is_empty());
    assert!(model.exists(), "the model stays");
    let said = fails(plumb(cache.path()).args(["rm", name]), 1);
    assert!(said.contains(name), "{said}");
    fails(plumb(cache.path()).arg("rm"), 2);
}

#[test]
fn rm_deletes_only_in_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let pack = cache.path().join("own.plumb");
    ok(plumb(cache.path()).arg("pack").arg(golden("llama-64.gguf")).arg("-o").arg(&pack));
    let said = fails(plumb(cache.path()).arg("rm").arg(&pack), 2);
    assert!(said.contains("not in the cache") && pack.exists(), "{said}");
}

#[test]
fn a_changed_source_is_packed_anew_in_the_cache_and_refused_by_name() {
    let cache = tempfile::tempdir().unwrap();
    let model = copy(cache.path());
    let pack = cache.path().join("own.plumb");
    ok(plumb(cache.path()).arg("pack").arg(&model).arg("-o").arg(&pack));
    let before = fingerprint(&mut complete(cache.path(), &model, "abc"));

    let other = std::fs::read(golden("llama-linear.gguf")).unwrap();
    std::fs::write(&model, other).unwrap();
    assert_eq!(json(plumb(cache.path()).arg("ls"))[0]["state"], "stale");
    let output = ok(complete(cache.path(), &model, "abc").args(["--json", "--fingerprint=all"]));
    assert!(stderr(&output).contains("source has changed"), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_ne!(report["fingerprint"], before);

    let said = fails(&mut complete(cache.path(), &pack, "abc"), 1);
    assert!(said.contains("own.plumb") && said.contains("model.gguf"), "{said}");
}

#[test]
fn a_damaged_pack_is_found_by_verify_and_names_the_tensor() {
    let cache = tempfile::tempdir().unwrap();
    let pack = cache.path().join("own.plumb");
    ok(plumb(cache.path()).arg("pack").arg(golden("llama-64.gguf")).arg("-o").arg(&pack));
    ok(plumb(cache.path()).arg("verify").arg(&pack));
    let mut bytes = std::fs::read(&pack).unwrap();
    // The data region begins at 2 MiB.
    bytes[(2 << 20) + 1000] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let said = fails(plumb(cache.path()).arg("verify").arg(&pack), 1);
    assert!(said.contains("tensor") && said.contains("checksum"), "{said}");
}

#[test]
fn a_pack_of_another_version_is_refused_by_name_and_replaced_in_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let model = copy(cache.path());
    let expected = fingerprint(&mut complete(cache.path(), &model, "abc"));
    let [pack] = &packs(cache.path())[..] else { panic!("one pack") };
    let mut bytes = std::fs::read(pack).unwrap();
    bytes[8] = 99;
    std::fs::write(pack, &bytes).unwrap();
    let named = cache.path().join("old.plumb");
    std::fs::write(&named, &bytes).unwrap();

    let said = fails(&mut complete(cache.path(), &named, "abc"), 1);
    assert!(said.contains("99"), "{said}");
    let output = ok(complete(cache.path(), &model, "abc").args(["--json", "--fingerprint=all"]));
    assert!(stderr(&output).contains("99"), "a note tells why: {}", stderr(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["fingerprint"], expected);
}

#[test]
fn two_processes_may_pack_the_same_model_at_once() {
    let cache = tempfile::tempdir().unwrap();
    let model = copy(cache.path());
    let spawn = || {
        let mut command = complete(cache.path(), &model, "abc");
        command.arg("--json").stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let children = [spawn(), spawn(), spawn()];
    let texts = children.map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["token_ids"].clone()
    });
    assert!(texts.iter().all(|text| *text == texts[0]));
    assert_eq!(packs(cache.path()).len(), 1);
    ok(plumb(cache.path()).arg("verify"));
}

#[test]
fn inspect_shows_specification_bytes_and_tensors() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let report = json(plumb(cache.path()).arg("inspect").arg(&model));
    assert_eq!(report["spec"]["architecture"], "llama");
    assert_eq!(report["spec"]["head_dim"], 64);
    assert_eq!(report["tensors"].as_array().unwrap().len(), 20);
    let by_part = report["bytes"]["by_part"].as_object().unwrap();
    let sum: u64 = by_part.values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(report["bytes"]["source"], sum, "the parts are all the bytes");
    // Two layers, one KV head of 64 channels, keys and values of two bytes.
    assert_eq!(report["bytes"]["kv_per_position"], 2 * 2 * 64 * 2);

    let pack = cache.path().join("own.plumb");
    ok(plumb(cache.path()).arg("pack").arg(&model).arg("-o").arg(&pack));
    let mut of_pack = json(plumb(cache.path()).arg("inspect").arg(&pack));
    assert_eq!(of_pack["bytes"], report["bytes"], "a pack tells the same");
    assert_eq!(of_pack["spec"].take(), report["spec"]);

    let text = stdout(&ok(plumb(&kept_cache()).args(["inspect", "smollm2-135m"])));
    assert!(text.contains("<|im_start|>"), "the chat template is shown: {text}");
}

#[test]
fn tokenize_shows_ids_and_pieces() {
    let cache = tempfile::tempdir().unwrap();
    let tokens = |args: &[&str]| json(plumb(cache.path()).args(["tokenize", "smollm2-135m"]).args(args));
    // Ids of the model's own vocabulary: <|im_start|> is 1.
    assert_eq!(tokens(&["<|im_start|>", "--special"])["ids"], serde_json::json!([1]));
    let as_text = tokens(&["<|im_start|>"]);
    assert!(as_text["ids"].as_array().unwrap().len() > 1);
    let pieces = as_text["pieces"].as_array().unwrap().iter().map(|p| p.as_str().unwrap());
    assert_eq!(pieces.collect::<String>(), "<|im_start|>");
    let lines = stdout(&ok(plumb(cache.path()).args(["tokenize", "smollm2-135m", "a\nb"])));
    assert!(lines.contains("\"\\n\""), "{lines}");
}
