//! `plumb bench`: a model's speed at depths and batch sizes, its load, first token and memory, beside another engine if asked.

use std::io::Write;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context;
use lab::arms::{Phase, PlumbArm, Reading, Workload};
use lab::bench::{Against, Outcome, Plan, Test, World, peak_memory, run as measure, tests_of};
use lab::machine::system;
use lab::results::{Figure, Kept, Recorder, State};
use serde_json::json;

use super::ab::Figures;
use super::loading::{self, Source};
use super::{Bench, Fitness, Store, budget_bar, bytes, interrupt_flag};
use crate::failure::{Interrupted, usage};
use crate::places::Places;
use crate::progress::note;

/// Measure how fast a model runs
///
/// Prompt and generation speed at depths and batch sizes, the time to load and to the first token, peak memory, bytes per token and, with
/// a bandwidth, the share of the floor that is reached. --against runs another engine's command in turn with it: llama-bench with `-o json`
/// is read test by test (and the same tests are run here); any other by --rate, or --tokens and --seconds.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A file, a folder, a known name, or OWNER/REPO of the hub
    model: String,
    /// Settings: threads=N, kernels=NAME, context=N, weights=shared|private; commas between
    #[arg(long, value_name = "SETTINGS", default_value = "")]
    set: String,
    /// Lengths of prompts, commas between; 0 for none
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Depths at which tokens are generated, commas between
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "0,512")]
    depth: Vec<usize>,
    /// Batch sizes of the generation, commas between
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Tokens generated per sample and sequence; 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    generate: usize,
    /// Samples of each
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    samples: u16,
    /// Bytes per second that products reach on this machine, such as 20GB, for the share of the floor [default: what `plumb probe`
    /// kept for this machine]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    bandwidth: Option<u64>,
    /// Another engine's command, run in turn
    #[arg(long, value_name = "COMMAND")]
    against: Option<String>,
    #[command(flatten)]
    figures: Figures,
    #[command(flatten)]
    fitness: Fitness,
    #[command(flatten)]
    store: Store,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    fn tests(&self) -> anyhow::Result<Vec<Test>> {
        let mut tests: Vec<Test> = Vec::new();
        for &tokens in self.prompt.iter().filter(|&&n| n > 0) {
            tests.push(Test { phase: Phase::Prompt, depth: 0, tokens, batch: 1 });
        }
        if self.batch.contains(&0) {
            return Err(usage("--batch: expected at least 1, found 0"));
        }
        if self.generate > 0 {
            for &batch in &self.batch {
                let at = |&depth| Test { phase: Phase::Generation, depth, tokens: self.generate, batch };
                tests.extend(self.depth.iter().map(at));
            }
        }
        if tests.is_empty() {
            return Err(usage("nothing to measure: neither prompts nor generated tokens"));
        }
        Ok(tests)
    }
}

/// Measures, prints and stores.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let settings = loading::settings(&args.set)?;
    let mut tests = args.tests()?;
    let mut database = args.store.open()?;
    let opening = Instant::now();
    let mut source = Source::open(&args.model)?;
    let opened = opening.elapsed();
    let bench = Bench::start(args.fitness, source.opened.weights.len_bytes())?;
    let interrupt = interrupt_flag()?;
    let against = match &args.against {
        None => None,
        Some(command) => {
            // llama-bench needs no pattern; its report says what it did.
            let reading = match args.figures.reading()? {
                Reading::WholeRun => Reading::LlamaBench { test: None },
                other => other,
            };
            let test = tests[0];
            let against =
                Against { command: command.clone(), reading, test, limit: args.figures.limit(&interrupt) };
            note("running the other engine's command once, uncounted");
            let theirs = tests_of(&against, bench.clock.as_ref())?;
            if matches!(against.reading, Reading::LlamaBench { .. }) {
                tests = theirs;
            }
            Some(against)
        }
    };
    let (positions, sequences) =
        tests.iter().fold((1, 1), |(p, s), t| (p.max(t.positions() + 8), s.max(t.batch)));
    let loading = Instant::now();
    let loaded = source.load(&settings, positions.max(64), sequences)?;
    let load_s = (opened + loading.elapsed()).as_secs_f64();
    let kernels = loaded.applied.get("kernels").cloned().unwrap_or_default();
    let bandwidth =
        args.bandwidth.map(|b| b as f64).or_else(|| probed_bandwidth(&source, &bench, &loaded.applied));
    if bandwidth.is_none() {
        note(
            "no bandwidth is known, so no share of the floor: `plumb probe` measures one, --bandwidth gives one",
        );
    }
    let first = Workload { phase: tests[0].phase, depth: 0, prompt: 1, batch: 1 };
    let mut arm = PlumbArm::new("plumb", settings, loaded, first, Rc::clone(&bench.clock));
    let workload = json!({ "tests": tests, "samples": args.samples, "against": args.against, "bandwidth_bytes_per_s": bandwidth });
    let meta = bench.meta("bench", &kernels, Some(source.id()), workload);
    let plan = Plan {
        tests,
        samples: usize::from(args.samples),
        against,
        bandwidth_bytes_per_s: bandwidth,
        last_cache_bytes: bench.machine.last_cache_bytes,
    };
    let mut recorder = Recorder::begin(&mut database, meta);
    let bar = budget_bar(1.0);
    let mut world = World {
        clock: Rc::clone(&bench.clock),
        is_interrupted: &|| interrupt.load(Ordering::Relaxed),
        watch: &mut |progress| {
            bar.set_length((progress.budget_s.max(0.1) * 10.0) as u64);
            bar.set_position((progress.elapsed_s * 10.0) as u64);
            bar.set_message(progress.phase.to_owned());
        },
    };
    let outcome = measure(&mut arm, &plan, &mut world, &mut recorder);
    bar.finish_and_clear();
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            let is_interrupt = matches!(error, lab::Error::Interrupted);
            let state = if is_interrupt { State::Partial } else { State::Failed };
            let kept = recorder.end(state, json!({ "error": error.to_string() }), Vec::new());
            note(format!("{}: {kept}", state.name()));
            return if is_interrupt { Err(Interrupted.into()) } else { Err(error.into()) };
        }
    };
    let alone = |name: &str, unit: &str, value: f64| Figure {
        name: name.into(),
        unit: unit.into(),
        value,
        ..Figure::default()
    };
    recorder.figure(alone("load", "s", load_s));
    let peak = peak_memory(&system);
    if let Some(peak) = peak {
        recorder.figure(alone("peak_memory", "bytes", peak as f64));
    }
    let state = if outcome.is_partial { State::Partial } else { State::Complete };
    let kept = recorder.end(state, json!(null), outcome.marks.clone());
    show(args, &outcome, load_s, peak, &kept)?;
    note(kept.to_string());
    if outcome.is_partial { Err(Interrupted.into()) } else { Ok(()) }
}

/// The bandwidth of products with this model's weights that `plumb probe` kept for this machine with these kernels and threads:
/// encodings weighted by their bytes.
fn probed_bandwidth(source: &Source, bench: &Bench, applied: &lab::results::Settings) -> Option<f64> {
    let probes = lab::probes::load(&Places::from_env().ok()?.probes, &bench.machine).ok()?;
    let threads = applied.get("threads")?.parse().ok()?;
    let probe = probes.newest(applied.get("kernels")?, threads)?;
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for (encoding, count) in &source.opened.bundle.encodings {
        bytes += *count as f64;
        seconds += *count as f64 / probe.product_bandwidth(*encoding, lab::probes::Residency::Cold);
    }
    Some(bytes / seconds).filter(|b| b.is_finite() && *b > 0.0)
}

fn show(args: &Args, outcome: &Outcome, load_s: f64, peak: Option<u64>, kept: &Kept) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let id = match kept {
            Kept::Run(id) => Some(id),
            _ => None,
        };
        let value = json!({ "rows": outcome.rows, "marks": outcome.marks, "load_s": load_s, "peak_bytes": peak, "run": id });
        return writeln!(out, "{value}").context("standard output");
    }
    let mut lines = vec![format!(
        "{:<34} {:>12} {:>23} {:>14} {:>10}  {}",
        "test", "tokens/s", "99%", "MB a token", "of floor", "against"
    )];
    for row in &outcome.rows {
        let share = row.floor_share.map_or_else(|| "-".to_owned(), |s| format!("{:.0}%", s * 100.0));
        let against = match (&row.against, row.against_rate) {
            (Some(ratio), Some(rate)) => {
                format!(
                    "{rate:.2}/s, {:.3}× ({:.3} to {:.3})",
                    ratio.ratio, ratio.interval.low, ratio.interval.high
                )
            }
            _ => String::new(),
        };
        lines.push(format!(
            "{:<34} {:>12.2} {:>23} {:>14.2} {:>10}  {against}",
            row.test.to_string(),
            row.rate,
            format!("{:.2} to {:.2}", row.interval.low, row.interval.high),
            row.bytes_per_token / 1e6,
            share
        ));
    }
    let first = outcome.rows.iter().find(|r| r.test.phase == Phase::Prompt);
    if let Some(row) = first {
        lines.push(format!(
            "first token after a prompt of {}: {:.3} s",
            row.test.tokens,
            row.test.tokens as f64 / row.rate
        ));
    }
    let peak = peak.map_or_else(|| "not shown by the system".into(), |p| format!("{:.1} MB", p as f64 / 1e6));
    lines.push(format!("load {load_s:.3} s, peak memory {peak}"));
    if outcome.rows.iter().any(|r| r.against.is_some()) {
        lines.push(
            "the ratios are ours over the other's, pair by pair; whether they are real, `plumb ab` says"
                .into(),
        );
    }
    lines.extend(outcome.marks.iter().map(|mark| format!("marked: {mark}")));
    writeln!(out, "{}", lines.join("\n")).context("standard output")
}
