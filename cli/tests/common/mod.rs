//! Runs the built `plumb` as a person would, with a cache of its own.

#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A `plumb` command whose packs lie in `cache`.
pub fn plumb(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plumb"));
    command
        .env("PLUMB_CACHE", cache)
        .env("PLUMB_MODELS", models())
        .env_remove("PLUMB_ISA")
        .stdin(Stdio::null());
    command
}

/// Where `cargo xtask models` puts the real models.
fn models() -> PathBuf {
    std::env::var_os("PLUMB_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let home = std::env::var_os("HOME").expect("HOME or PLUMB_MODELS is set");
        Path::new(&home).join(".cache/plumb/models")
    })
}

/// A cache that stays between tests and runs, for the real model.
pub fn kept_cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache")
}

/// A small random model with a tokenizer of single bytes and no chat template.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/models").join(name)
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it and asks for success.
#[track_caller]
pub fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, stderr(&output));
    output
}

/// Runs it with `--json` and asks for success and one object.
#[track_caller]
pub fn json(command: &mut Command) -> serde_json::Value {
    let output = ok(command.arg("--json"));
    serde_json::from_slice(&output.stdout).expect("one JSON value and nothing else")
}

/// Runs it, asks for this exit code and gives what it said.
#[track_caller]
pub fn fails(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// `plumb run` of a golden model, completing `prompt`.
pub fn complete(cache: &Path, model: &Path, prompt: &str) -> Command {
    let mut command = plumb(cache);
    command.arg("run").arg(model).args([
        prompt,
        "--raw",
        "--seed",
        "1",
        "--max-tokens",
        "24",
        "--ignore-eos",
    ]);
    command
}
