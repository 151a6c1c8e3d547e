//! `plumb probe`: what this machine can do.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use cpu::CpuProbes;
use lab::machine::Machine;
use lab::probes::{self, Probe};
use lab::results::Figure;
use serde_json::{Value, json};

use super::record::{Of, Record, figure};
use crate::failure::usage;
use crate::opening;
use crate::places::Places;
use crate::progress::{self, note};

/// Measure what this machine can do
///
/// Read bandwidth by working set, threads and page size; the bandwidth that products with weights reach, from memory and
/// from caches; barriers and jobs; arithmetic peaks; each with its spread, and controls that say whether to believe it.
/// The result is kept for `roofline` and `fit`. It takes less than a minute, on an otherwise idle machine.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Threads [default: the CPUs that this process may use]
    #[arg(short, long, value_name = "N", value_parser = super::at_least_one)]
    threads: Option<usize>,
    /// Write the curves as a picture (.svg or .png); may be repeated
    #[arg(long, value_name = "FILE")]
    plot: Vec<PathBuf>,
    /// Show the newest kept run and measure nothing
    #[arg(long)]
    show: bool,
    /// Print one JSON object, raw samples included
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: super::lab::Store,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let places = Places::from_env()?;
    let machine = Machine::here();
    let (kernels, threads) = table(args.threads)?;
    let kept = probes::load(&places.probes, &machine)?;
    let probe = if args.show {
        kept.newest(kernels, threads).cloned().with_context(|| {
            format!("this machine was not probed yet with the {kernels} kernels on {threads} threads")
        })?
    } else {
        let record = Record::begin("probe");
        let probe = measure(&places, machine, kernels, threads)?;
        let workload = json!({ "threads": threads, "seconds": probe.elapsed_s });
        let of = Of { kernels, model: None, workload, prediction: Value::Null };
        record.keep(&args.store, of, figures(&probe), Vec::new());
        probe
    };
    let earlier: Vec<&Probe> = kept
        .runs
        .iter()
        .filter(|p| p.kernels == probe.kernels && p.threads == probe.threads && **p != probe)
        .collect();
    for file in &args.plot {
        probe.chart().write(file)?;
        note(format!("wrote {}", file.display()));
    }
    let text = if args.json { serde_json::to_string(&probe)? } else { probe.text(&earlier) };
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("standard output")
}

/// What goes into the database.
fn figures(probe: &Probe) -> Vec<Figure> {
    let mut all = Vec::new();
    for r in &probe.readings {
        let (x, f) = (Some(r.set_bytes as f64), &r.figure);
        let detail = json!({ "threads": r.threads, "huge_pages": r.huge_pages, "samples": f.samples });
        all.push(Figure { detail, ..figure("read_bandwidth", "bytes/s", x, f.per_second, Some(f.noise)) });
    }
    for p in &probe.products {
        let (x, f) = (Some(p.set_bytes as f64), &p.figure);
        let detail = json!({ "encoding": p.encoding, "rows": p.rows, "cols": p.cols, "residency": p.residency,
            "samples": f.samples });
        all.push(Figure { detail, ..figure("product_bandwidth", "bytes/s", x, f.per_second, Some(f.noise)) });
    }
    for p in &probe.peaks {
        let detail = json!({ "kernels": p.kernels, "threads": p.threads, "arithmetic": p.arithmetic,
            "samples": p.figure.samples });
        let f = &p.figure;
        all.push(Figure { detail, ..figure("peak", "operations/s", None, f.per_second, Some(f.noise)) });
    }
    for (name, f) in [("barrier", &probe.barriers), ("job", &probe.jobs)] {
        all.push(figure(name, "s", None, 1.0 / f.per_second, Some(f.noise)));
    }
    all
}

/// The kernel table and threads that are meant.
fn table(threads: Option<usize>) -> anyhow::Result<(&'static str, usize)> {
    Ok((opening::isa()?.name(), threads.unwrap_or_else(cpu::default_threads)))
}

/// Measures and keeps the result.
fn measure(places: &Places, machine: Machine, kernels: &str, threads: usize) -> anyhow::Result<Probe> {
    if cfg!(debug_assertions) {
        note(
            "this plumb was built for development, with checks in every loop: the figures are not the machine's",
        );
    }
    let bar = progress::steps("probing", 0);
    let mut watch = |what: &str, done: usize, total: usize| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(what.to_owned());
    };
    let probe = probes::run(&CpuProbes, kernels, threads, machine, &mut watch)?;
    bar.finish_and_clear();
    match probes::save(&places.probes, &probe) {
        Ok(path) => note(format!("kept in {}", path.display())),
        // The figures are there all the same.
        Err(error) => note(format!("the probe could not be kept: {error}")),
    }
    Ok(probe)
}

/// The newest kept probe of this machine, or a new one.
pub(crate) fn kept_or_new(places: &Places, threads: Option<usize>) -> anyhow::Result<Probe> {
    let machine = Machine::here();
    let (kernels, threads) = table(threads)?;
    if threads == 0 {
        return Err(usage("--threads: expected at least 1, found 0"));
    }
    if let Some(probe) = probes::load(&places.probes, &machine)?.newest(kernels, threads) {
        return Ok(probe.clone());
    }
    note("this machine was not probed yet with these kernels and threads: probing it now");
    measure(places, machine, kernels, threads)
}
