//! `plumb tokenize`: what a model sees of a text.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use engine::tokenizer::{Piece, Special, Tokenizer, TokenizerSource};
use serde::Serialize;

use crate::failure::usage;
use crate::places::Places;
use crate::{models, opening};

/// Show a text's tokens: ids and pieces
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file, a folder, a known name, or OWNER/REPO of the hub
    model: String,
    /// The text [default: standard input]
    text: Option<String>,
    /// Read special tokens where the text has theirs; otherwise it is text like any other
    #[arg(long)]
    special: bool,
    /// Begin with the token that begins a text, if the model wants one
    #[arg(long)]
    bos: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    ids: Vec<u32>,
    /// One for each id, with what cannot be seen escaped.
    pieces: Vec<String>,
}

/// Prints the tokens, one a line.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let text = match &args.text {
        Some(text) => text.clone(),
        None if std::io::stdin().is_terminal() => return Err(usage("which text?")),
        None => std::io::read_to_string(std::io::stdin()).context("standard input")?,
    };
    let places = Places::from_env()?;
    let path = models::resolve(&args.model, &places)?;
    let tokenizer = Tokenizer::build(&source(&path, &args.model)?)?;
    let special = if args.special { Special::AsTokens } else { Special::AsText };
    let ids = tokenizer.encode(&text, special, args.bos)?;
    let pieces = tokenizer.pieces(&ids);
    let mut out = std::io::stdout().lock();
    if args.json {
        let pieces = pieces.into_iter().map(|piece| piece.printable).collect();
        let line = serde_json::to_string(&Report { ids, pieces })?;
        return writeln!(out, "{line}").context("standard output");
    }
    for Piece { id, printable, control } in pieces {
        let marker = if control { "  (special)" } else { "" };
        writeln!(out, "{id:>8}  {printable:?}{marker}").context("standard output")?;
    }
    Ok(())
}

/// The tokenizer's source, without preparing any weights.
fn source(path: &std::path::Path, name: &str) -> anyhow::Result<TokenizerSource> {
    opening::describe(path)?.tokenizer.with_context(|| format!("{name} has no tokenizer"))
}
