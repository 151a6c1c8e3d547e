//! `plumb fit`: what a model needs, whether it fits, and how fast it would be.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use engine::open::Opened;
use engine::{Feed, LoadOptions, LogitRows, Model, memory, plan};
use lab::fit::{self, Asked, Fit, Target};
use lab::machine::Machine;
use lab::probes;
use lab::results::Figure;
use serde::Serialize;
use serde_json::json;
use tensor::device::{Device, WeightStore};
use tensor::kv::KvSettings;

use super::lab::loading::Source;
use super::record::{Of, Record, figure};
use crate::failure::usage;
use crate::opening;
use crate::places::Places;
use crate::progress::{self, note};

/// Say what memory a model needs at a context, whether it fits, and how fast it would be
///
/// For this machine, or for one that --memory and --bandwidth describe. `need` is what is reserved at most, by which `run`
/// admits; `expected` is what the process is expected to hold, which --measure compares with its peak.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file, a folder, a known name, or OWNER/REPO of the hub
    model: String,
    /// Positions of each sequence, separated by commas [default: 512, 4096, 16384 and the model's own]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = super::at_least_one)]
    ctx: Vec<usize>,
    #[command(flatten)]
    kv: super::kv::KvFlags,
    /// Sequences that are full at once
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = super::at_least_one)]
    batch: usize,
    /// The memory of another machine, such as 16GB
    #[arg(long, value_name = "SIZE", conflicts_with = "measure")]
    memory: Option<String>,
    /// What another machine reads, such as 100GB/s
    #[arg(long, value_name = "RATE", requires = "memory")]
    bandwidth: Option<String>,
    /// Run the model to each context that fits, and compare the process's peak
    #[arg(long)]
    measure: bool,
    /// Threads of a step [default: the CPUs that this process may use]
    #[arg(short, long, value_name = "N", value_parser = super::at_least_one)]
    threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: super::lab::Store,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    fit: &'a Fit,
}

/// Counts, perhaps measures, and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let wrong = |e: lab::Error| usage(e.to_string());
    let memory = args.memory.as_deref().map(fit::parse_bytes).transpose().map_err(wrong)?;
    let bandwidth = args.bandwidth.as_deref().map(fit::parse_bandwidth).transpose().map_err(wrong)?;
    let places = Places::from_env()?;
    let source = Source::open(&args.model)?;
    let opened = &source.opened;
    let device = opening::device(args.threads)?;
    let spec = &opened.bundle.spec;
    let kind_of = |name: &str| opened.weights.entry(name).map(|entry| entry.kind);
    let kv = args.kv.settings(spec.context)?;
    let plan = plan::build(spec, &kind_of, args.batch, &kv)?;
    let contexts = contexts(&args.ctx, spec.context);
    // An executor without a cache says what scratch this device takes for the plan.
    let store: Arc<dyn WeightStore> = Arc::clone(&opened.weights) as _;
    let no_blocks = vec![0; plan.kv.groups.len()];
    let scratch_bytes = device.load(Arc::new(plan.clone()), store, &no_blocks)?.memory().scratch_bytes;
    let info = device.info();
    let probe = match memory {
        Some(_) => None,
        None => probes::load(&places.probes, &Machine::here())?.newest(&info.kernels, info.threads).cloned(),
    };
    if memory.is_none() && probe.is_none() {
        note("this machine was not probed yet (`plumb probe`): no speed is foretold");
    }
    let target = match memory {
        Some(memory_bytes) => Target::Described { memory_bytes, read_bandwidth: bandwidth },
        None => Target::Here {
            probe: probe.as_ref(),
            available_bytes: memory::available()
                .context("the system does not say what memory it has: --memory")?,
        },
    };
    let asked = Asked {
        plan: &plan,
        weight_bytes: weight_bytes(opened, &plan),
        model_context: spec.context,
        batch: args.batch,
        base_bytes: resident().saturating_sub(opened.weights.resident_bytes()),
        scratch_bytes,
    };
    let mut fit = fit::fit(&asked, &contexts, &target);
    if args.measure {
        let record = Record::begin("fit");
        measure(&mut fit, opened, &device, args.batch, kv)?;
        let peak = |row: &fit::Row| {
            let measured = row.measured_peak_bytes? as f64;
            let expected = Some(row.expected.total() as f64);
            let detail =
                json!({ "batch": row.batch, "kv": kv.class(), "need": row.need, "expected": row.expected });
            let at = Some(row.context as f64);
            Some(Figure { predicted: expected, detail, ..figure("peak_memory", "bytes", at, measured, None) })
        };
        let figures: Vec<Figure> = fit.rows.iter().filter_map(peak).collect();
        let of = Of {
            kernels: &info.kernels,
            model: Some(source.id()),
            workload: json!({ "batch": args.batch, "kv": kv.class() }),
            prediction: json!({ "rows": fit.rows }),
        };
        record.keep(&args.store, of, figures, Vec::new());
    }
    let text = if args.json {
        serde_json::to_string(&Report { model: &opened.bundle.name, fit: &fit })?
    } else {
        format!("{}\n{}", opened.bundle.name, fit.text())
    };
    writeln!(std::io::stdout(), "{}", text.trim_end()).context("standard output")
}

/// What was asked for within the model's context, or the usual ones and the model's own.
fn contexts(asked: &[usize], model: usize) -> Vec<usize> {
    let mut all: Vec<usize> = if asked.is_empty() { vec![512, 4096, 16_384, model] } else { asked.to_vec() };
    if let Some(beyond) = asked.iter().find(|&&c| c > model) {
        note(format!("context {beyond} is taken for {model}, the model's own"));
    }
    all.iter_mut().for_each(|c| *c = (*c).min(model));
    all.sort_unstable();
    all.dedup();
    all
}

/// The weights that the plan uses, as mapped.
fn weight_bytes(opened: &Opened, plan: &tensor::op::Plan) -> u64 {
    plan.weights.iter().filter_map(|w| opened.weights.entry(&w.name)).map(|entry| entry.bytes).sum()
}

/// Runs the model to each context that fits and notes the process's peak.
fn measure(
    fit: &mut Fit,
    opened: &Opened,
    device: &dyn Device,
    batch: usize,
    kv: KvSettings,
) -> anyhow::Result<()> {
    let fitting = fit.rows.iter_mut().filter(|row| row.fits);
    let rows: Vec<_> = fitting.collect();
    let total: usize = rows.iter().map(|row| row.context * batch).sum();
    let bar = progress::steps("running", total as u64);
    for row in rows {
        if !reset_peak() {
            note("the system does not let the peak be reset: it may be an earlier one");
        }
        let options = LoadOptions {
            context: Some(row.context),
            sequences: batch,
            keep_prefixes: false,
            kv,
            ..LoadOptions::default()
        };
        let weights: Arc<dyn WeightStore> = Arc::clone(&opened.weights) as _;
        let mut model = Model::load(device, opened.bundle.spec.clone(), weights, &options)?;
        let vocab = model.plan().vocab;
        let mut sequences: Vec<_> = (0..batch).map(|_| model.sequence(&[])).collect();
        for from in (0..row.context).step_by(512) {
            let to = (from + 512).min(row.context);
            // Every row of the table is met in turn, as a long text would.
            let tokens: Vec<u32> = (from..to).map(|i| (i * 7919 % vocab) as u32).collect();
            for sequence in &mut sequences {
                let feed = Feed { sequence, tokens: &tokens, logits: LogitRows::Last };
                model.step_with(&mut [feed], &mut |_, _, _| {})?;
                bar.inc(tokens.len() as u64);
            }
        }
        row.measured_peak_bytes =
            Some(status("VmHWM").context("the system does not say what a process holds")?);
    }
    bar.finish_and_clear();
    Ok(())
}

/// A size of `/proc/self/status`, in bytes.
fn status(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|n| n * 1024)
}

fn resident() -> u64 {
    status("VmRSS").unwrap_or(0)
}

/// Sets the process's peak back to what it holds now.
fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}
