//! `plumb inspect`: what a model is made of, and where its bytes are.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use engine::plan;
use engine::spec::ModelSpec;
use engine::tokenizer::TokenizerSource;
use serde::Serialize;
use tensor::op::Kind;

use crate::places::Places;
use crate::{models, opening};

/// Show a model's specification, tensors, bytes and chat template
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file, a folder, a known name, or OWNER/REPO of the hub
    model: String,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object, tensors included
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    name: String,
    spec: ModelSpec,
    bytes: Ledger,
    tokenizer: Option<TokenizerReport>,
    chat_template: Option<String>,
    /// The model's own generation settings.
    generation: serde_json::Map<String, serde_json::Value>,
    tensors: Vec<TensorReport>,
}

/// Where the bytes are.
#[derive(Serialize)]
struct Ledger {
    parameters: u64,
    /// Tensors as the source stores them.
    source: u64,
    /// Tensors as prepared, rows padded to whole panels.
    prepared: u64,
    /// Source bytes of matrices and vectors by encoding.
    by_encoding: BTreeMap<String, u64>,
    /// Source bytes by part of the model.
    by_part: BTreeMap<&'static str, u64>,
    /// Weights that a step of one token reads.
    weights_per_token: u64,
    /// Keys and values of one position.
    kv_per_position: u64,
}

#[derive(Serialize)]
struct TokenizerReport {
    kind: String,
    tokens: Option<usize>,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    end_of_generation: Vec<u32>,
}

#[derive(Serialize)]
struct TensorReport {
    name: String,
    encoding: String,
    shape: Vec<usize>,
    bytes: u64,
}

/// Prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let places = Places::from_env()?;
    let path = models::resolve(&args.model, &places)?;
    let report = report(opening::describe(&path)?)?;
    let text = if args.json { serde_json::to_string(&report)? } else { for_people(&report, args.tensors)? };
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("standard output")
}

fn report(model: opening::Description) -> anyhow::Result<Report> {
    let opening::Description { bundle, tokenizer, mut tensors } = model;
    // A pack holds the tokenizer's text among its tensors.
    tensors.retain(|(_, kind)| !matches!(kind, Kind::Bytes { .. }));
    let kind_of = |name: &str| tensors.iter().find(|(n, _)| n == name).map(|(_, kind)| *kind);
    let plan = plan::build(&bundle.spec, &kind_of, 1, &tensor::kv::KvSettings::default())?;
    let mut bytes = Ledger {
        parameters: 0,
        source: 0,
        prepared: 0,
        by_encoding: BTreeMap::new(),
        by_part: BTreeMap::new(),
        weights_per_token: plan.work(1, 0, 1).bytes_read.weights,
        kv_per_position: plan.kv.position_bytes(),
    };
    let tensors: Vec<TensorReport> = tensors.into_iter().map(|(name, kind)| tensor(name, kind)).collect();
    for (tensor, kind) in tensors.iter().map(|t| (t, kind_of_report(t, &plan))) {
        bytes.parameters += tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        bytes.source += tensor.bytes;
        bytes.prepared += kind.and_then(|k| k.prepared_bytes()).unwrap_or(tensor.bytes);
        *bytes.by_encoding.entry(tensor.encoding.clone()).or_default() += tensor.bytes;
        *bytes.by_part.entry(part(&tensor.name)).or_default() += tensor.bytes;
    }
    Ok(Report {
        name: bundle.name,
        spec: bundle.spec,
        bytes,
        tokenizer: tokenizer.as_ref().map(tokenizer_report),
        chat_template: bundle.chat_template,
        generation: bundle.generation,
        tensors,
    })
}

fn kind_of_report(tensor: &TensorReport, plan: &tensor::op::Plan) -> Option<Kind> {
    plan.weights.iter().find(|w| w.name == tensor.name).map(|w| w.kind)
}

fn tensor(name: String, kind: Kind) -> TensorReport {
    let (encoding, shape) = match kind {
        Kind::Panels { encoding, rows, cols } => (encoding.to_string(), vec![rows, cols]),
        Kind::Vector { len } => ("F32".to_owned(), vec![len]),
        Kind::Bytes { len } => ("bytes".to_owned(), vec![len]),
    };
    TensorReport { name, encoding, shape, bytes: kind.bytes() }
}

/// The part of a model that a tensor belongs to.
fn part(name: &str) -> &'static str {
    match name {
        n if n.starts_with("token_embd.") => "embedding",
        n if n.starts_with("output.") => "head",
        n if n.contains("norm") => "norms",
        n if n.contains(".attn_") => "attention",
        n if n.contains(".ffn_") => "feed-forward",
        _ => "other",
    }
}

fn tokenizer_report(source: &TokenizerSource) -> TokenizerReport {
    let (kind, tokens) = match source {
        TokenizerSource::Vocabulary(v) => (format!("{:?}", v.style), Some(v.tokens.len())),
        _ => ("tokenizer.json".to_owned(), None),
    };
    let roles = source.roles();
    TokenizerReport {
        kind,
        tokens,
        bos: roles.bos,
        eos: roles.eos,
        adds_bos: roles.add_bos,
        end_of_generation: roles.end_of_generation.clone(),
    }
}

fn for_people(report: &Report, all_tensors: bool) -> anyhow::Result<String> {
    use std::fmt::Write;
    let mut out = String::new();
    let bytes = &report.bytes;
    let mb = |n: u64| format!("{:.1} MB", n as f64 / 1e6);
    writeln!(out, "{}: {:.1} million parameters", report.name, bytes.parameters as f64 / 1e6)?;
    writeln!(out, "\nspecification")?;
    let serde_json::Value::Object(fields) = serde_json::to_value(&report.spec)? else { return Ok(out) };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        writeln!(out, "  {name:18} {}", shown(name, value))?;
    }
    writeln!(out, "\nbytes")?;
    for (part, n) in &bytes.by_part {
        writeln!(out, "  {part:18} {:>12}", mb(*n))?;
    }
    writeln!(out, "  {:18} {:>12}  ({} prepared)", "all", mb(bytes.source), mb(bytes.prepared))?;
    for (encoding, n) in &bytes.by_encoding {
        writeln!(out, "  of them in {encoding:8} {:>10}", mb(*n))?;
    }
    writeln!(out, "  a token reads      {:>12}", mb(bytes.weights_per_token))?;
    writeln!(out, "  a position's KV    {:>9.1} KiB", bytes.kv_per_position as f64 / 1024.0)?;
    match &report.tokenizer {
        None => writeln!(out, "\nno tokenizer")?,
        Some(t) => {
            writeln!(out, "\ntokenizer\n  {}", t.kind)?;
            let tokens = t.tokens.map_or(String::new(), |n| format!("{n} tokens, "));
            writeln!(
                out,
                "  {tokens}begin {:?}{}, end {:?}, generation ends at {:?}",
                t.bos,
                if t.adds_bos { " (added)" } else { "" },
                t.eos,
                t.end_of_generation
            )?;
        }
    }
    if !report.generation.is_empty() {
        writeln!(out, "\ngeneration settings\n  {}", serde_json::to_string(&report.generation)?)?;
    }
    match &report.chat_template {
        None => writeln!(out, "\nno chat template")?,
        Some(template) => writeln!(out, "\nchat template\n{template}")?,
    }
    if all_tensors {
        writeln!(out, "\ntensors")?;
        for t in &report.tensors {
            writeln!(out, "  {:34} {:8} {:?} {}", t.name, t.encoding, t.shape, mb(t.bytes))?;
        }
    } else {
        writeln!(out, "\n{} tensors (--tensors lists them)", report.tensors.len())?;
    }
    Ok(out)
}

/// A field's value in one line; a list of the same value many times as one.
fn shown(name: &str, value: &serde_json::Value) -> String {
    match value.as_array() {
        Some(items) if name == "windows" => {
            let layers = items.iter().filter(|w| !w.is_null()).count();
            match items.iter().find(|w| !w.is_null()) {
                None => format!("none, {} layers", items.len()),
                Some(window) => format!("{window} in {layers} of {} layers", items.len()),
            }
        }
        _ => value.to_string(),
    }
}
