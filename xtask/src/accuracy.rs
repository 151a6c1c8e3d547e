//! `cargo xtask accuracy`: the real models against the oracles over the whole text, as a table in `docs/accuracy.md`.
//!
//! It knows neither a model nor a measure: the engine's example `accuracy` computes the rows and judges them.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context, bail};

use crate::command::{cargo, root};

/// Which models.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names of models; every one that has goldens if none is given
    models: Vec<String>,
}

const FILE: &str = "docs/accuracy.md";
const GOLDENS: &str = "golden/accuracy";

const HEAD: &str = "\
# Accuracy

Written by `cargo xtask accuracy`. Each real model reads a fixed text of 2,048 tokens (`golden/accuracy/text.txt`), and the logits after
every token are compared with two float64 references that share nothing with plumb (`golden/README.md`): the **oracle** computes over the
dequantised weights; the **int8 oracle** also quantises activations per block of 32, as plumb's arithmetic does. What the second loses
against the first is the price of that arithmetic; plumb may lose little more.

- KL: mean divergence in nats per token, over the reference's 64 best tokens and one bucket for all others, ± its standard error.
- ratio: plumb's KL from the oracle over the int8 oracle's; at most 1.2.
- to int8: plumb's KL from the int8 oracle, and that over its KL from the oracle; at most 2.
- log-probability: mean over the text's own tokens, less the int8 oracle's, ± its paired standard error; within three of them.
- same best: positions at which the most probable token is the oracle's.
- fingerprint: XXH3-128 over the bits of all logits. It must be the same on every machine, kernel table and number of threads; this one was seen on an AVX-512 table without VNNI.

| model | KL, int8 oracle | KL, plumb | ratio | KL to int8 | of own | log-probability | same best | fingerprint |
|---|---|---|---|---|---|---|---|---|
";

/// Runs the models, prints their rows and puts them into the table; rows of other models stay as they are.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let known = known()?;
    if let Some(name) = args.models.iter().find(|name| !known.contains(name)) {
        bail!("no goldens for {name}; there are: {}", known.join(", "));
    }
    let models = if args.models.is_empty() { &known } else { &args.models };
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "--package", "plumb-engine", "--example", "accuracy", "--"])
        .args(models);
    eprintln!("+ the example accuracy of plumb-engine on {}", models.join(", "));
    let out = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    let fresh = String::from_utf8(out.stdout).context("the example printed something that is not UTF-8")?;
    print!("{fresh}");
    if !out.status.success() {
        bail!("a bar is missed, or the example failed: {}; {FILE} is as it was", out.status);
    }
    let path = root().join(FILE);
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::create_dir_all(root().join("docs"))?;
    std::fs::write(&path, page(&known, &[&old, &fresh])).with_context(|| path.display().to_string())?;
    eprintln!("{FILE} is written");
    Ok(())
}

/// Models with goldens, by name.
fn known() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join(GOLDENS)).context(GOLDENS)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".json").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The page with one row for each known model that one of the texts has; the last text counts.
fn page(known: &[String], texts: &[&str]) -> String {
    let mut rows = BTreeMap::new();
    for line in texts.iter().flat_map(|text| text.lines()) {
        let name = line.strip_prefix("| ").and_then(|rest| rest.split_once(" |"));
        rows.extend(name.filter(|(name, _)| known.iter().any(|k| k == name)).map(|(name, _)| (name, line)));
    }
    let rows: String = rows.values().flat_map(|row| [row, "\n"]).collect();
    format!(
        "{HEAD}{rows}\nplumb {}; the references' versions stand in `golden/README.md`.\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_replaces_its_model_s_and_no_other() {
        let known = ["a".to_owned(), "b".to_owned()];
        let first = page(&known, &["| a | 1 |\n| b | 2 |\n| gone | 3 |\n"]);
        let second = page(&known, &[&first, "| b | 4 |\n"]);
        let rows: Vec<&str> =
            second.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| model")).collect();
        assert_eq!(rows, ["| a | 1 |", "| b | 4 |"]);
        assert!(second.starts_with("# Accuracy\n"));
    }
}
