//! `cargo xtask golden`: runs the scripts that make the golden values, in a Python environment of their own.
//!
//! It knows neither what a golden value is nor how one is made: a row names a script and what it must be told. Every
//! script writes beside itself and notes the versions it used.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::command::{root, run as start};

/// Which goldens, and where the references are.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names of rows; all if none is given
    names: Vec<String>,
    /// A built llama.cpp: its source in src/, its programs in build/bin/
    #[arg(long, value_name = "FOLDER")]
    llama_cpp: Option<PathBuf>,
    /// The float64 oracle, a Python script
    #[arg(long, value_name = "FILE")]
    oracle: Option<PathBuf>,
    /// The folder of the models that `cargo xtask models` fetches
    #[arg(long, value_name = "FOLDER")]
    models: Option<PathBuf>,
}

/// One set of goldens: what makes it, with placeholders for what [`Args`] says.
struct Row {
    name: &'static str,
    script: &'static str,
    args: &'static [&'static str],
}

const ROWS: &[Row] = &[
    Row { name: "blocks", script: "golden/blocks.py", args: &[] },
    Row { name: "files", script: "golden/files.py", args: &[] },
    Row { name: "kv", script: "golden/kv/make.py", args: &[] },
    Row { name: "stats", script: "golden/stats/make.py", args: &[] },
    Row { name: "work", script: "golden/work/make.py", args: &["{models}"] },
    Row { name: "sample", script: "golden/sample/make.py", args: &[] },
    Row { name: "sample-llama", script: "golden/sample/llama.py", args: &["{llama-cpp}/build/bin"] },
    Row {
        name: "tokenizer",
        script: "golden/tokenizer/make.py",
        args: &["{models}", "{llama-cpp}/src", "{llama-cpp}/build"],
    },
    Row {
        name: "logits",
        script: "golden/scripts/make_all.sh",
        args: &["{llama-cpp}", "{oracle}", "{models}"],
    },
];

/// What the scripts import.
const PACKAGES: &[&str] = &["numpy", "scipy", "gguf", "safetensors", "tokenizers"];

/// Runs the scripts one after the other.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let rows = select(&args.names)?;
    let commands: Vec<_> = rows.iter().map(|row| command(row, args)).collect::<anyhow::Result<_>>()?;
    let bin = environment()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)))?;
    for words in commands {
        // The environment's `python3` comes first on the path, for scripts that a script starts as well.
        let program = if words[0].ends_with(".py") { "python3" } else { "bash" };
        start(Command::new(program).args(&words).env("PATH", &path).current_dir(root()))?;
    }
    Ok(())
}

/// The rows of these names, or all.
fn select(names: &[String]) -> anyhow::Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
    let find = |name: &String| {
        ROWS.iter()
            .find(|row| row.name == name)
            .with_context(|| format!("no goldens {name}; there are: {}", known()))
    };
    names.iter().map(find).collect()
}

/// The script and its arguments, the placeholders filled in; an error names the flag that is missing.
fn command(row: &Row, args: &Args) -> anyhow::Result<Vec<String>> {
    let given = [("{llama-cpp}", &args.llama_cpp), ("{oracle}", &args.oracle), ("{models}", &args.models)];
    let fill = |arg: &&str| {
        let Some((placeholder, path)) = given.iter().find(|(placeholder, _)| arg.starts_with(placeholder))
        else {
            return Ok((*arg).to_owned());
        };
        let flag = placeholder.trim_matches(['{', '}']);
        let Some(path) = path else { bail!("{} needs --{flag}", row.name) };
        let path = path.canonicalize().with_context(|| path.display().to_string())?;
        Ok(arg.replacen(placeholder, &path.display().to_string(), 1))
    };
    std::iter::once(Ok(row.script.to_owned())).chain(row.args.iter().map(fill)).collect()
}

/// The `bin` folder of a virtual environment that has the packages.
fn environment() -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let bin = target.join("golden-venv/bin");
    let python = bin.join("python3");
    if !python.exists() {
        start(Command::new("python3").args(["-m", "venv"]).arg(bin.parent().unwrap_or(Path::new("."))))?;
    }
    start(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
    Ok(bin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_script() {
        for row in ROWS {
            assert!(root().join(row.script).is_file(), "{}: {} is not there", row.name, row.script);
        }
    }

    #[test]
    fn a_missing_reference_is_named() {
        let args = Args { names: vec!["logits".into()], llama_cpp: Some(root()), oracle: None, models: None };
        let row = select(&args.names).unwrap()[0];
        assert_eq!(command(row, &args).unwrap_err().to_string(), "logits needs --oracle");
        assert!(select(&["nothing".to_owned()]).err().unwrap().to_string().contains("sample-llama"));
    }
}
