//! `plumb roofline`: how fast a model should decode on this machine, how fast it does, and where the difference is.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use engine::plan;
use lab::probes::Probe;
use lab::results::{Figure, SampleRow};
use lab::roofline::{self, Driver, Headroom, Options, Point};
use serde::Serialize;
use serde_json::json;
use tensor::device::WeightStore;

use super::lab::loading::Source;
use super::probe;
use super::record::{Of, Record, figure};
use crate::failure::usage;
use crate::opening;
use crate::places::Places;
use crate::progress::{self, note};

/// Show how fast a model should decode, how fast it does, and where the time goes
///
/// For each context: bytes of a step, its least time by what memory gives (ceiling) and by what products reach (floor), what
/// it takes, and each part's time against its own floor. The machine's figures come from `plumb probe`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file, a folder, a known name, or OWNER/REPO of the hub
    model: String,
    /// Positions before the token, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,512,4096")]
    ctx: Vec<usize>,
    #[command(flatten)]
    kv: super::kv::KvFlags,
    /// Sequences of a step
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = super::at_least_one)]
    batch: usize,
    /// List every operation
    #[arg(long)]
    operations: bool,
    /// Show what the machine would allow over what is reached, per projection shape and 1 to 128 rows
    #[arg(long)]
    headroom: bool,
    /// Seconds for each context
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Threads of a step [default: the CPUs that this process may use]
    #[arg(short, long, value_name = "N", value_parser = super::at_least_one)]
    threads: Option<usize>,
    /// Write speed over context as a picture (.svg or .png); may be repeated
    #[arg(long, value_name = "FILE")]
    plot: Vec<PathBuf>,
    /// Print one JSON object, raw samples included
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: super::lab::Store,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    machine: &'a lab::machine::Machine,
    kernels: &'a str,
    threads: usize,
    probe_taken_unix_s: u64,
    /// The cache's format.
    kv: String,
    points: &'a [Point],
    #[serde(skip_serializing_if = "Option::is_none")]
    headroom: Option<&'a [Headroom]>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !(0.0..=3600.0).contains(&args.seconds) {
        return Err(usage(format!("--seconds: expected 0 to 3600, found {}", args.seconds)));
    }
    let places = Places::from_env()?;
    let source = Source::open(&args.model)?;
    let opened = &source.opened;
    let probe = probe::kept_or_new(&places, args.threads)?;
    let device = opening::device(args.threads)?;
    opened.weights.touch();
    let store: Arc<dyn WeightStore> = Arc::clone(&opened.weights) as _;
    let kind_of = |name: &str| opened.weights.entry(name).map(|entry| entry.kind);
    let kv = args.kv.settings(opened.bundle.spec.context)?;
    let plan = Arc::new(plan::build(&opened.bundle.spec, &kind_of, args.batch, &kv)?);
    // A step adds one position, which must still be the model's.
    let most = opened.bundle.spec.context - 1;
    let (contexts, beyond): (Vec<usize>, Vec<usize>) = args.ctx.iter().partition(|&&ctx| ctx <= most);
    if let Some(ctx) = beyond.first() {
        note(format!("context {ctx} is left out: the model's is {}", most + 1));
    }
    let deepest = contexts.iter().copied().max().context("no context within the model's")?;
    let need = engine::memory::need(&plan, opened.weights.len_bytes(), deepest + 1, args.batch, 0);
    if let Some(available) = engine::memory::available().filter(|&a| need.total() > a) {
        anyhow::bail!(
            "{} needs {} MB at context {deepest}, {} MB are available",
            args.model,
            need.total() / 1_000_000,
            available / 1_000_000
        );
    }
    let mut driver = Driver::new(&device, Arc::clone(&plan), store, args.batch, deepest)?;
    let bar = progress::steps("measuring", contexts.len() as u64);
    let options =
        Options { contexts, budget: Duration::from_secs_f64(args.seconds), operations: args.operations };
    let record = Record::begin("roofline");
    let points = roofline::measure(&mut driver, args.batch, &probe, &options, &mut |done| {
        bar.set_position(done as u64)
    })?;
    bar.finish_and_clear();
    drop(driver);
    keep(record, args, &source, &probe, &points);
    let headroom = args.headroom.then(|| headroom(&device, &plan, &probe)).transpose()?;
    let name = &opened.bundle.name;
    for file in &args.plot {
        roofline::chart(name, &probe.machine, &points).write(file)?;
        note(format!("wrote {}", file.display()));
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let report = Report {
            model: name,
            machine: &probe.machine,
            kernels: &probe.kernels,
            threads: probe.threads,
            probe_taken_unix_s: probe.taken_unix_s,
            kv: kv.class(),
            points: &points,
            headroom: headroom.as_deref(),
        };
        return writeln!(out, "{}", serde_json::to_string(&report)?).context("standard output");
    }
    let failed = probe.controls.iter().filter(|c| !c.holds).count();
    let mut text = format!(
        "{name} on {}\n{} kernels, {} threads, f16 cache; {failed} controls of the probe failed\n{}\n",
        probe.machine,
        probe.kernels,
        probe.threads,
        roofline::LEGEND
    );
    points.iter().for_each(|p| text.push_str(&format!("\n{}", p.text())));
    if let Some(headroom) = &headroom {
        text.push_str(&format!("\n{}", roofline::headroom_text(headroom)));
    }
    writeln!(out, "{}", text.trim_end()).context("standard output")
}

/// Keeps the points, their floors as what was expected.
fn keep(record: Record, args: &Args, source: &Source, probe: &Probe, points: &[Point]) {
    let at = |p: &Point| Figure {
        predicted: Some(p.batch as f64 / p.floor_ns * 1e9),
        detail: json!({ "batch": p.batch, "ceiling": p.batch as f64 / p.ceiling_ns * 1e9, "residency": p.residency,
            "unattributed_ns": p.unattributed_ns, "parts": p.parts }),
        ..figure("generation", "tokens/s", Some(p.context as f64), p.tokens_per_s(), Some(p.noise))
    };
    let sample = |(p, (place, &ns)): (&Point, (usize, &f64))| SampleRow {
        phase: format!("generation at {}", p.context),
        pair: place as u32,
        place: place as u32,
        elapsed_ns: ns as u64,
        tokens: p.batch as u64,
        bytes: p.work.streamed_bytes(),
        ..SampleRow::default()
    };
    let samples = points.iter().flat_map(|p| p.samples_ns.iter().enumerate().map(move |s| (p, s)));
    let of = Of {
        kernels: &probe.kernels,
        model: Some(source.id()),
        workload: json!({ "batch": args.batch, "threads": probe.threads }),
        prediction: json!({ "probe_taken_unix_s": probe.taken_unix_s }),
    };
    record.keep(&args.store, of, points.iter().map(at).collect(), samples.map(sample).collect());
}

fn headroom(
    device: &cpu::CpuDevice,
    plan: &tensor::op::Plan,
    probe: &Probe,
) -> anyhow::Result<Vec<Headroom>> {
    let bar = progress::steps("headroom", 0);
    let found = roofline::headroom(device, plan, probe, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    Ok(found)
}
