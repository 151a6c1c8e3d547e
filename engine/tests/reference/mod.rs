//! Metadata of GGUF files for the tokenizer and template tests, and where the models are.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};

use tensor::files::{Description, Metadata, WeightFile};

/// A development model's file; a missing one is a failure, never a skipped test.
pub fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("PLUMB_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME or PLUMB_MODELS is set");
        PathBuf::from(home).join(".cache/plumb/models")
    });
    let path = folder.join(format!("{name}.gguf"));
    assert!(path.is_file(), "{} is missing: run `cargo xtask models`", path.display());
    path
}

/// A file of the golden folder.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../golden/tokenizer").join(name)
}

/// The metadata of a GGUF file.
pub fn metadata(path: &Path) -> Metadata {
    match WeightFile::open(path).unwrap().description() {
        Description::Gguf(metadata) => metadata.clone(),
        Description::HuggingFace(_) => panic!("{} is a folder", path.display()),
    }
}
