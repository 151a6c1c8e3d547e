//! Weight files read as the reference packages (gguf, safetensors) wrote and read them: golden/files.py.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tensor::Error;
use tensor::files::{Array, Description, Metadata, Value, WeightFile};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/files").join(name)
}

fn golden_json(name: &str) -> Json {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn metadata(file: &WeightFile) -> &Metadata {
    match file.description() {
        Description::Gguf(metadata) => metadata,
        other => panic!("expected GGUF metadata, found {other:?}"),
    }
}

/// As golden/files.py shows values: numbers as text, floats so that their text gives them back.
fn shown(value: &Value) -> Json {
    fn all<T>(values: &[T], show: impl Fn(&T) -> Json) -> Json {
        values.iter().map(show).collect()
    }
    match value {
        Value::Uint(v) => json!(v.to_string()),
        Value::Int(v) => json!(v.to_string()),
        Value::Float(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::Str(v) => json!(v),
        Value::Array(Array::Uint(v)) => all(v, |v| json!(v.to_string())),
        Value::Array(Array::Int(v)) => all(v, |v| json!(v.to_string())),
        Value::Array(Array::Float(v)) => all(v, |v| json!(v)),
        Value::Array(Array::Bool(v)) => all(v, |v| json!(v)),
        Value::Array(Array::Str(v)) => all(v, |v| json!(v)),
    }
}

/// Golden floats are texts; parsed, they are the same doubles.
fn same(expected: &Json, found: &Json) -> bool {
    match (expected, found) {
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Json::String(a), Json::Number(b)) => a.parse::<f64>().ok() == b.as_f64(),
        _ => expected == found,
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn assert_tensors(file: &WeightFile, expected: &Json) {
    let expected = expected.as_array().unwrap();
    assert_eq!(file.tensors().len(), expected.len());
    for want in expected {
        let info = file.tensor(want["name"].as_str().unwrap()).expect("a tensor of that name");
        assert_eq!(json!(info.encoding.name()), want["encoding"], "{}", info.name);
        assert_eq!(json!(info.shape), want["shape"], "{}", info.name);
        assert_eq!(info.rows * info.cols, info.shape.iter().product::<usize>());
        assert_eq!(Some(&info.cols), info.shape.last());
        assert_eq!(json!(sha256(file.bytes(info))), want["sha256"], "{}", info.name);
    }
}

#[test]
fn a_gguf_reads_as_the_reference_reader_reads_it() {
    let file = WeightFile::open(golden("small.bin")).unwrap();
    let golden = golden_json("small.json");
    let values = golden["values"].as_object().unwrap();
    assert_eq!(metadata(&file).0.len(), values.len());
    for (key, expected) in values {
        let found = shown(metadata(&file).get(key).expect("the key"));
        assert!(same(expected, &found), "{key}: expected {expected}, found {found}");
    }
    assert_tensors(&file, &golden["tensors"]);
    let names: Vec<&str> = file.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["matrix", "vector", "cube", "blocks"], "in the file's order");
    assert_eq!((file.tensor("cube").unwrap().rows, file.tensor("vector").unwrap().rows), (6, 1));
    assert!(file.tensor("absent").is_none());
}

/// Version 2 differs from 3 only in that 3 may be big endian.
#[test]
fn version_2_reads_like_version_3() {
    let mut bytes = std::fs::read(golden("small.bin")).unwrap();
    bytes[4] = 2;
    let file = WeightFile::from_gguf_bytes("v2", bytes).unwrap();
    assert_tensors(&file, &golden_json("small.json")["tensors"]);
}

#[test]
fn a_big_endian_file_is_refused_by_name() {
    let error = WeightFile::open(golden("big_endian.bin")).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("big-endian"), "{error}");
}

#[test]
fn a_sharded_folder_reads_as_the_reference_package_wrote_it() {
    let file = WeightFile::open(golden("huggingface")).unwrap();
    assert_tensors(&file, &golden_json("huggingface.json"));
    let Description::HuggingFace(folder) = file.description() else { panic!("a folder") };
    assert_eq!(folder.config["hidden_size"], 5);
    assert_eq!(folder.generation_config.as_ref().unwrap()["eos_token_id"], json!([1, 2]));
    assert_eq!(folder.tokenizer_config.as_ref().unwrap()["bos_token"], "<s>");
    assert!(folder.tokenizer_json.as_ref().unwrap().contains("version"));
    assert_eq!(folder.chat_template.as_deref(), Some("{{ messages }}\n"));
    assert_eq!(file.paths().len(), 8, "every file that makes the model identifies it");
}

fn copy_folder(from: &Path) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

#[test]
fn shards_without_an_index_are_all_read() {
    let folder = copy_folder(&golden("huggingface"));
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    let file = WeightFile::open(folder.path()).unwrap();
    assert_tensors(&file, &golden_json("huggingface.json"));
}

#[test]
fn only_config_and_weights_are_required() {
    let folder = copy_folder(&golden("huggingface"));
    for name in ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    let file = WeightFile::open(folder.path()).unwrap();
    let Description::HuggingFace(found) = file.description() else { panic!("a folder") };
    assert!(found.generation_config.is_none() && found.tokenizer_json.is_none());
    assert!(found.tokenizer_config.is_none() && found.chat_template.is_none());
}

/// The errors that a person meets; each must say what to do about it.
mod opening_errors {
    use super::*;

    fn message(path: impl AsRef<Path>) -> String {
        WeightFile::open(path).unwrap_err().to_string()
    }

    fn assert_says(message: &str, parts: &[&str]) {
        for part in parts {
            assert!(message.contains(part), "{part:?} should be in {message:?}");
        }
    }

    #[test]
    fn a_missing_file() {
        assert_says(&message("/no/such/model.gguf"), &["/no/such/model.gguf", "No such file"]);
    }

    #[test]
    fn an_empty_file_and_one_of_another_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, "").unwrap();
        assert_says(&message(&path), &["m.gguf", "an empty file"]);
        std::fs::write(&path, "GG").unwrap();
        assert_says(&message(&path), &["m.gguf", "GGUF", "2 bytes"]);
        std::fs::write(&path, "<!DOCTYPE html>").unwrap();
        assert_says(&message(&path), &["expected a GGUF file", "[3c, 21, 44, 4f]"]);
        std::fs::write(&path, b"PK\x03\x04....").unwrap();
        assert_says(&message(&path), &["PyTorch", "safetensors"]);
    }

    #[test]
    fn a_pipe_is_refused_instead_of_waited_for() {
        assert_says(&message("/dev/null"), &["/dev/null", "a regular file"]);
    }

    #[test]
    fn a_safetensors_file_instead_of_its_folder() {
        let path = golden("huggingface/model-00001-of-00002.safetensors");
        assert_says(&message(path), &["opened by the folder"]);
    }

    #[test]
    fn a_folder_that_is_no_model() {
        let folder = tempfile::tempdir().unwrap();
        assert_says(&message(folder.path()), &["config.json", "an empty folder"]);
        std::fs::write(folder.path().join("m.gguf"), "GGUF").unwrap();
        assert_says(&message(folder.path()), &["config.json", "m.gguf", "name that file instead"]);
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        assert_says(&message(folder.path()), &["*.safetensors", "none"]);
        std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
        assert_says(&message(folder.path()), &["pytorch_model.bin", "not supported", "safetensors"]);
        std::fs::write(folder.path().join("config.json"), "{").unwrap();
        assert_says(&message(folder.path()), &["config.json", "JSON", "EOF"]);
        std::fs::write(folder.path().join("config.json"), "[]").unwrap();
        assert_says(&message(folder.path()), &["config.json", "a JSON object"]);
    }

    #[test]
    fn a_truncated_gguf_says_how_much_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let bytes = std::fs::read(golden("small.bin")).unwrap();
        let end = bytes.len() - padding(&bytes);
        std::fs::write(&path, &bytes[..end - 10]).unwrap();
        assert_says(&message(&path), &["m.gguf", "blocks", "10 are missing"]);
        std::fs::write(&path, &bytes[..40]).unwrap();
        assert_says(&message(&path), &["m.gguf", "truncated"]);
    }

    /// The reference writer pads the last tensor.
    fn padding(bytes: &[u8]) -> usize {
        let last = golden_json("small.json")["tensors"][3].clone();
        bytes.len() - (last["offset"].as_u64().unwrap() as usize + 3 * 2 * 34)
    }

    #[test]
    fn a_truncated_or_missing_shard() {
        let name = "model-00002-of-00002.safetensors";
        let folder = copy_folder(&golden("huggingface"));
        let shard = folder.path().join(name);
        let bytes = std::fs::read(&shard).unwrap();
        std::fs::write(&shard, &bytes[..bytes.len() - 3]).unwrap();
        assert_says(&message(folder.path()), &[name, "3 are missing"]);
        std::fs::remove_file(&shard).unwrap();
        assert_says(&message(folder.path()), &[name, "No such file"]);
        std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
        assert_says(&message(folder.path()), &["missing", name]);
    }

    /// As an interrupted download into the hub's cache leaves them.
    #[test]
    fn a_dangling_link_is_not_an_absent_file() {
        let folder = copy_folder(&golden("huggingface"));
        let tokenizer = folder.path().join("tokenizer.json");
        std::fs::remove_file(&tokenizer).unwrap();
        std::os::unix::fs::symlink("../blobs/absent", &tokenizer).unwrap();
        assert_says(&message(folder.path()), &["tokenizer.json", "No such file"]);
    }

    #[test]
    fn an_index_that_disagrees_with_its_shards_or_leaves_the_folder() {
        let folder = copy_folder(&golden("huggingface"));
        let index = folder.path().join("model.safetensors.index.json");
        let shard = "model-00001-of-00002.safetensors";
        std::fs::write(&index, json!({"weight_map": {"nowhere": shard}}).to_string()).unwrap();
        assert_says(&message(folder.path()), &["nowhere", shard]);
        for name in ["../secret.safetensors", "/etc/x.safetensors", "config.json", ""] {
            std::fs::write(&index, json!({"weight_map": {"a.weight": name}}).to_string()).unwrap();
            assert_says(&message(folder.path()), &["a.weight", "same folder"]);
        }
        std::fs::write(&index, "{}").unwrap();
        assert_says(&message(folder.path()), &["index.json", "weight_map"]);
    }
}
