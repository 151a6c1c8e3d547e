//! `plumb traps`: false measurements made on purpose, and the guards that catch them.

use std::io::Write;

use anyhow::{Context, bail};
use lab::clock::System;
use lab::machine::Machine;
use lab::results::Settings;
use lab::traps::{Field, Needs, TRAPS, Trap, TrapModel, find};
use serde_json::json;

use super::loading::Source;
use crate::failure::usage;
use crate::models::{self, catalogue};
use crate::places::Places;
use crate::progress::note;

/// Make false measurements on purpose, and see them caught
///
/// Each trap is a small program that really produces its false figure on this machine; then its guard is switched on. On an idle machine
/// every guard must catch its trap: exit code 1 if one does not.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The traps to spring
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Every trap
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Only list them
    #[arg(long, conflicts_with_all = ["names", "all"])]
    list: bool,
    /// A model for the traps that need one [default: smollm2-135m, if it is here]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Lists or springs traps.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.list {
        if args.json {
            let rows: Vec<_> = TRAPS
                .iter()
                .map(|t| json!({ "name": t.name, "about": t.about, "once": t.once, "guard": t.guard }))
                .collect();
            return writeln!(out, "{}", serde_json::to_string(&rows)?).context("standard output");
        }
        for trap in TRAPS {
            let needs = if trap.needs == Needs::Model { " (needs a model)" } else { "" };
            writeln!(
                out,
                "{:<18} {}{needs}\n{:18} once showed {}; guard: {}",
                trap.name, trap.about, "", trap.once, trap.guard
            )
            .context("standard output")?;
        }
        return Ok(());
    }
    let traps: Vec<&Trap> = if args.all {
        TRAPS.iter().collect()
    } else {
        args.names
            .iter()
            .map(|name| find(name).map_err(|e| usage(e.to_string())))
            .collect::<anyhow::Result<_>>()?
    };
    if traps.is_empty() {
        return Err(usage("which traps? --list shows them; --all means every one"));
    }
    let clock = System::default();
    let machine = Machine::here();
    let model = match traps.iter().any(|t| t.needs == Needs::Model) {
        true => model(args.model.as_deref())?,
        false => None,
    };
    let mut field =
        Field { clock: &clock, last_cache_bytes: machine.last_cache_bytes, cores: machine.cores, model };
    let (mut missed, mut skipped, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for trap in &traps {
        if trap.needs == Needs::Model && field.model.is_none() {
            skipped.push(trap.name);
            note(format!(
                "{}: needs a model; `plumb pull {}` fetches one, --model names one",
                trap.name,
                catalogue::DEFAULT
            ));
            continue;
        }
        let sprung = (trap.spring)(&mut field).with_context(|| trap.name)?;
        let caught = sprung.guarded.as_ref().err().map(ToString::to_string);
        if caught.is_none() {
            missed.push(trap.name);
        }
        if args.json {
            rows.push(
                json!({ "name": trap.name, "shown": sprung.shown, "truth": sprung.truth, "caught": caught }),
            );
            continue;
        }
        let caught = caught.unwrap_or_else(|| "NOT CAUGHT".into());
        let text = format!(
            "{}: {}\n  guard off  {}\n  truth      {}\n  guard on   {caught}",
            trap.name, trap.about, sprung.shown, sprung.truth
        );
        writeln!(out, "{text}").context("standard output")?;
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&rows)?).context("standard output")?;
    }
    if !missed.is_empty() {
        bail!("{} of {} traps were not caught: {}", missed.len(), traps.len(), missed.join(", "));
    }
    note(format!("{} traps sprung and caught, {} not run", traps.len() - skipped.len(), skipped.len()));
    Ok(())
}

/// A model that keeps prefixes, where there is one.
fn model(name: Option<&str>) -> anyhow::Result<Option<TrapModel>> {
    let name = match name {
        Some(name) => name,
        None if models::find(catalogue::DEFAULT, &Places::from_env()?).is_some() => catalogue::DEFAULT,
        None => return Ok(None),
    };
    let mut source = Source::open(name)?;
    let file_bytes = source.opened.weights.source().len_bytes();
    let model = source.load_keeping_prefixes(&Settings::new(), 600)?;
    Ok(Some(TrapModel { model, file_bytes }))
}
