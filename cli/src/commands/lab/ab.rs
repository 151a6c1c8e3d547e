//! `plumb ab`: two settings, two commands or two servers, interleaved, and whether their difference is real.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use lab::ab::{self, Expectation, Lab, Options, Outcome};
use lab::arms::{Arm, CommandArm, Limit, Pattern, Phase, Reading, ServerArm, ServerWork, Slowed, Workload};
use lab::clock::Clock;
use lab::results::{Filter, Kept, Recorder, RunMeta, State};
use serde_json::{Value, json};

use super::loading::{self, Source};
use super::{Bench, Fitness, Store, bytes, counters, interrupt_flag, seconds, share};
use crate::failure::{Interrupted, usage};
use crate::progress::note;

/// Compare two arms and say whether their difference is real
///
/// Arms are settings of plumb on a MODEL (--a threads=1 --b threads=2), commands (--a-cmd, --b-cmd, with --rate or --tokens and
/// --seconds to read their figures) or OpenAI-compatible servers (--a-url, --b-url). They run alternately, A against itself first. The verdict
/// is faster, slower, the same within the margin, or not resolved. Ctrl-C keeps what was measured.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The model, for arms that are settings of plumb
    model: Option<String>,
    /// Arm A: threads=N, kernels=NAME, context=N, weights=shared|private; commas between; empty for the defaults
    #[arg(long, value_name = "SETTINGS")]
    a: Option<String>,
    /// Arm B
    #[arg(long, value_name = "SETTINGS")]
    b: Option<String>,
    /// Arm A is a command for the shell
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["a", "b", "a_url", "b_url", "model"], requires = "b_cmd")]
    a_cmd: Option<String>,
    /// Arm B is a command
    #[arg(long, value_name = "COMMAND", requires = "a_cmd")]
    b_cmd: Option<String>,
    /// Arm A is a server, such as http://localhost:8080
    #[arg(long, value_name = "URL", conflicts_with_all = ["a", "b", "model"], requires = "b_url")]
    a_url: Option<String>,
    /// Arm B is a server
    #[arg(long, value_name = "URL", requires = "a_url")]
    b_url: Option<String>,
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    figures: Figures,
    #[command(flatten)]
    judging: Judging,
    #[command(flatten)]
    fitness: Fitness,
    #[command(flatten)]
    store: Store,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What the arms do.
#[derive(clap::Args, Debug)]
struct Work {
    /// Which part of a model's work is timed: generation or prompt
    #[arg(long, value_name = "PHASE", default_value = "generation", value_parser = phase)]
    phase: Phase,
    /// Positions before the timed ones
    #[arg(long, value_name = "N", default_value_t = 128)]
    depth: usize,
    /// Tokens of a timed prompt
    #[arg(long, value_name = "N", default_value_t = 256)]
    prompt: usize,
    /// Sequences stepped together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// The servers' model
    #[arg(long, value_name = "NAME", default_value = "default")]
    server_model: String,
    /// What servers are asked
    #[arg(long, value_name = "TEXT", default_value = "Explain how a plumb line works, in a few paragraphs.")]
    ask: String,
    /// Most tokens of a server's answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: u64,
}

/// How commands' figures are read. A pattern that begins with / is a JSON pointer into the last JSON value printed; any other is a
/// regular expression whose first group is the number.
#[derive(clap::Args, Debug)]
pub(super) struct Figures {
    /// Where a command prints its tokens per second; llama-bench reads the only test of its `-o json`
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["tokens", "seconds"])]
    rate: Option<String>,
    /// Where it prints how many tokens it did
    #[arg(long, value_name = "PATTERN", requires = "seconds")]
    tokens: Option<String>,
    /// Where it prints how many seconds they took
    #[arg(long, value_name = "PATTERN", requires = "tokens")]
    seconds: Option<String>,
    /// Where it prints its answer, which must be the same for both
    #[arg(long, value_name = "PATTERN")]
    answer: Option<String>,
    /// Seconds that one run or request may take
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    limit: f64,
}

/// How the difference is judged.
#[derive(clap::Args, Debug)]
struct Judging {
    /// The difference within which arms count as the same, fixed before the run
    #[arg(long, value_name = "SHARE", default_value = "3%", value_parser = share)]
    margin: f64,
    /// Seconds that the measurement may take
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds)]
    budget: f64,
    /// Inject a slowdown into A as well, which must be found
    #[arg(long, value_name = "SHARE", value_parser = share)]
    sensitivity: Option<f64>,
    /// Slow B down by so much: a known difference, to try the comparison itself
    #[arg(long, value_name = "SHARE", value_parser = share)]
    slow_b: Option<f64>,
    /// What is expected of B's speed over A's: 1.05, +5%, or 1.02..1.10
    #[arg(long, value_name = "RATIO", allow_hyphen_values = true)]
    expect: Option<String>,
    /// Bytes that a sample moves at least
    #[arg(long, value_name = "BYTES", default_value = "1GB", value_parser = bytes)]
    traffic: u64,
    /// Seed of the bootstrap
    #[arg(long, value_name = "N", default_value_t = Options::default().seed)]
    seed: u64,
    /// The arms are meant to answer differently: compare them by KL instead of bit by bit
    #[arg(long)]
    may_differ: bool,
    /// Compare so many times, each a run of its own, and count the verdicts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Draw the pairs, .svg or .png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn phase(text: &str) -> Result<Phase, String> {
    match text {
        "generation" => Ok(Phase::Generation),
        "prompt" => Ok(Phase::Prompt),
        _ => Err(format!("expected generation or prompt, found {text:?}")),
    }
}

impl Figures {
    /// How a command's output is read.
    pub(super) fn reading(&self) -> anyhow::Result<Reading> {
        Ok(match (&self.rate, &self.tokens, &self.seconds) {
            (Some(rate), _, _) if rate == "llama-bench" => Reading::LlamaBench { test: None },
            (Some(rate), _, _) => Reading::Rate(Pattern::parse(rate)?),
            (_, Some(tokens), Some(seconds)) => Reading::TokensAndSeconds {
                tokens: Pattern::parse(tokens)?,
                seconds: Pattern::parse(seconds)?,
            },
            _ => Reading::WholeRun,
        })
    }

    /// What ends a command.
    pub(super) fn limit(&self, interrupt: &Arc<AtomicBool>) -> Limit {
        Limit { longest: Duration::from_secs_f64(self.limit), interrupt: Arc::clone(interrupt) }
    }
}

/// Two arms and what is known of them.
struct Arms {
    /// How much slower copies that rotate through more than the cache are, where the model would fit it.
    rotated_slowdown: Option<f64>,
    a: Box<dyn Arm>,
    b: Box<dyn Arm>,
    model: Option<lab::results::ModelId>,
    kernels: String,
    workload: Value,
}

/// Compares, says what came of it, and stores it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let expect = args.judging.expect.as_deref().map(Expectation::parse).transpose();
    let expect = expect.map_err(|e| usage(e.to_string()))?;
    let mut database = args.store.open()?;
    let mut source = match (&args.model, &args.a_cmd, &args.a_url) {
        (Some(name), None, None) => Some(Source::open(name)?),
        (None, None, None) => {
            return Err(usage(
                "what is to be compared? A MODEL with --a and --b, --a-cmd and --b-cmd, or --a-url and --b-url",
            ));
        }
        _ => None,
    };
    let needed = source.as_ref().map_or(0, |s| s.opened.weights.len_bytes());
    let bench = Bench::start(args.fitness, needed)?;
    let interrupt = interrupt_flag()?;
    let mut arms = arms(args, source.as_mut(), &bench, &interrupt)?;
    let options = Options {
        margin: args.judging.margin,
        budget_s: args.judging.budget,
        sensitivity: args.judging.sensitivity,
        expect,
        seed: args.judging.seed,
        traffic_bytes: args.judging.traffic,
        limits: bench.limits,
        may_differ: args.judging.may_differ,
        last_cache_bytes: bench.machine.last_cache_bytes,
        rotated_slowdown: arms.rotated_slowdown,
    };
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for repetition in 0..args.judging.repeat {
        let mut meta = bench.meta("ab", &arms.kernels, arms.model.clone(), arms.workload.clone());
        meta.prediction = json!(expect);
        let options = Options { seed: options.seed.wrapping_add(u64::from(repetition)), ..options.clone() };
        let (outcome, kept) =
            once(&mut arms, args.judging.slow_b, &options, &bench, &interrupt, &mut database, meta)?;
        show(args, &outcome, &kept, &database)?;
        *counts.entry(word(&outcome)).or_default() += 1;
        if interrupt.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
    }
    if args.judging.repeat > 1 {
        let counts: Vec<String> = counts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
        writeln!(std::io::stdout(), "of {}: {}", args.judging.repeat, counts.join(", "))
            .context("standard output")?;
    }
    Ok(())
}

fn once(
    arms: &mut Arms,
    slow_b: Option<f64>,
    options: &Options,
    bench: &Bench,
    interrupt: &Arc<AtomicBool>,
    database: &mut lab::results::Database,
    meta: RunMeta,
) -> anyhow::Result<(Outcome, Kept)> {
    let mut recorder = Recorder::begin(database, meta);
    let bar = RefCell::new(super::budget_bar(options.budget_s));
    let mut watch = |progress: ab::Progress<'_>| {
        let bar = bar.borrow_mut();
        bar.set_message(progress.phase.to_owned());
        bar.set_position((progress.elapsed_s * 10.0) as u64);
    };
    let mut lab = Lab {
        clock: Rc::clone(&bench.clock),
        counters: &counters,
        is_interrupted: &|| interrupt.load(Ordering::Relaxed),
        watch: &mut watch,
    };
    let outcome = match slow_b {
        None => ab::run(arms.a.as_mut(), arms.b.as_mut(), options, &mut lab, &mut recorder),
        Some(share) => {
            let mut slowed = Slowed::new(arms.b.as_mut(), share, Rc::clone(&bench.clock));
            ab::run(arms.a.as_mut(), &mut slowed, options, &mut lab, &mut recorder)
        }
    };
    bar.borrow().finish_and_clear();
    match outcome {
        Ok(outcome) => {
            let kept = recorder.end(outcome.state(), json!(outcome), outcome.marks.clone());
            Ok((outcome, kept))
        }
        Err(error) => {
            let state = if matches!(error, lab::Error::Interrupted) { State::Partial } else { State::Failed };
            let kept = recorder.end(state, json!({ "error": error.to_string() }), Vec::new());
            note(format!("{}: {kept}", state.name()));
            if state == State::Partial { Err(Interrupted.into()) } else { Err(error.into()) }
        }
    }
}

fn arms(
    args: &Args,
    source: Option<&mut Source>,
    bench: &Bench,
    interrupt: &Arc<AtomicBool>,
) -> anyhow::Result<Arms> {
    let clock = || Rc::clone(&bench.clock) as Rc<dyn Clock>;
    let limit = || args.figures.limit(interrupt);
    if let (Some(a), Some(b)) = (&args.a_cmd, &args.b_cmd) {
        let reading = args.figures.reading()?;
        let answer = args.figures.answer.as_deref().map(Pattern::parse).transpose()?;
        let arm = |label: &str, command: &String| -> Box<dyn Arm> {
            Box::new(CommandArm::new(label, command, reading.clone(), answer.clone(), limit(), clock()))
        };
        let workload = json!({ "reading": format!("{reading:?}") });
        return Ok(Arms {
            rotated_slowdown: None,
            a: arm("a", a),
            b: arm("b", b),
            model: None,
            kernels: String::new(),
            workload,
        });
    }
    if let (Some(a), Some(b)) = (&args.a_url, &args.b_url) {
        let work = ServerWork {
            model: args.work.server_model.clone(),
            prompt: args.work.ask.clone(),
            max_tokens: args.work.max_tokens,
        };
        let arm = |label: &str, url: &String| -> Box<dyn Arm> {
            Box::new(ServerArm::new(label, url, work.clone(), limit(), clock()))
        };
        let workload = json!({ "ask": work.prompt, "max_tokens": work.max_tokens });
        return Ok(Arms {
            rotated_slowdown: None,
            a: arm("a", a),
            b: arm("b", b),
            model: None,
            kernels: String::new(),
            workload,
        });
    }
    let source = source.context("no model")?;
    let w = &args.work;
    let workload = Workload { phase: w.phase, depth: w.depth, prompt: w.prompt, batch: usize::from(w.batch) };
    let settings_of = |text: &Option<String>| loading::settings(text.as_deref().unwrap_or(""));
    let (asked_a, asked_b) = (settings_of(&args.a)?, settings_of(&args.b)?);
    let described = json!({
        "phase": w.phase.name(), "depth": w.depth, "prompt": (w.phase == Phase::Prompt).then_some(w.prompt),
        "batch": w.batch, "traffic_bytes": args.judging.traffic, "slow_b": args.judging.slow_b,
    });
    // Room for a sample's tokens and for the doubled check, found from what a step reads.
    let step = source.opened.weights.entries().iter().map(|e| e.kind.bytes()).sum::<u64>().max(1);
    let inner = args.judging.traffic.div_ceil(step).min(1 << 20) as usize;
    let positions = match w.phase {
        Phase::Generation => w.depth + 8 * inner + 64,
        Phase::Prompt => w.depth + w.prompt + 32,
    };
    let a = source.arm("a", &asked_a, workload, positions, clock())?;
    let b = source.arm("b", &asked_b, workload, positions, clock())?;
    let cache = bench.machine.last_cache_bytes;
    let mut rotated_slowdown = None;
    if w.phase == Phase::Generation && a.bytes_per_repetition().is_some_and(|bytes| bytes <= cache) {
        note("the model would fit the last cache: trying whether it lies there");
        let mut copies = source.copies(&asked_a, workload, w.depth + 8, 2 * cache, &bench.clock)?;
        let mut copies: Vec<&mut dyn Arm> = copies.iter_mut().map(|copy| copy as &mut dyn Arm).collect();
        rotated_slowdown = Some(ab::rotation_control(&mut copies)?);
    }
    let kernels =
        |arm: &lab::arms::PlumbArm| arm.loaded().applied.get("kernels").cloned().unwrap_or_default();
    let names = (kernels(&a), kernels(&b));
    let kernels = if names.0 == names.1 { names.0 } else { format!("{} | {}", names.0, names.1) };
    Ok(Arms {
        rotated_slowdown,
        a: Box::new(a),
        b: Box::new(b),
        model: Some(source.id()),
        kernels,
        workload: described,
    })
}

/// The verdict without its numbers.
fn word(outcome: &Outcome) -> String {
    let text = outcome.verdict.to_string();
    text.split(';').next().unwrap_or(&text).to_owned()
}

fn show(
    args: &Args,
    outcome: &Outcome,
    kept: &Kept,
    database: &lab::results::Database,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let stored = match kept {
        Kept::Run(id) => Some(database.run(*id)?),
        _ => None,
    };
    let claim = stored
        .as_ref()
        .filter(|run| run.meta.model.is_some() && !outcome.is_partial)
        .map(|run| {
            Ok::<_, lab::Error>(ab::claim(
                &database.runs(&Filter { kind: Some("ab".into()), ..Filter::default() })?,
                run,
            ))
        })
        .transpose()?;
    if args.json {
        let value = json!({ "outcome": outcome, "claim": claim, "run": stored.as_ref().map(|r| r.id) });
        writeln!(out, "{value}").context("standard output")?;
    } else {
        writeln!(out, "{}", described(outcome, claim.as_ref())).context("standard output")?;
    }
    note(kept.to_string());
    if let (Some(path), Some(run)) = (&args.judging.plot, &stored) {
        lab::results::pairs(run)?.chart.write(path)?;
        note(path.display().to_string());
    }
    Ok(())
}

fn described(outcome: &Outcome, claim: Option<&ab::Claim>) -> String {
    let per_cent = |share: f64| format!("{:.2}%", share * 100.0);
    let summary = |s: &lab::stats::Summary| {
        format!(
            "{:.4}  (99% {:.4} to {:.4}; {} pairs; won {:.0}%)",
            s.ratio,
            s.interval.low,
            s.interval.high,
            s.pairs,
            s.win_rate * 100.0
        )
    };
    let mut lines = vec![
        format!("same answer   {}", outcome.answers),
        format!("A against A   {}", summary(&outcome.aa)),
        format!("noise floor   ±{}", per_cent(outcome.floor)),
    ];
    if let (Some(slowed), Some(found)) = (&outcome.slowed, &outcome.sensitivity) {
        let found = found.as_ref().map_or_else(Clone::clone, |()| "found".to_owned());
        lines.push(format!("A slowed      {}: {found}", summary(slowed)));
    }
    lines.push(format!("speed         A {:.2}/s, B {:.2}/s", outcome.rates[0], outcome.rates[1]));
    let work = &outcome.work;
    let fixed = work.fixed_share.map_or_else(
        || "not checked".into(),
        |share| format!("{} ± {}", per_cent(share), per_cent(work.uncertainty)),
    );
    lines.push(format!(
        "a sample      {} repetitions, fixed cost {fixed}, bytes from {}",
        outcome.work.inner,
        outcome.residency.name()
    ));
    lines.push(format!("B over A      {}", summary(&outcome.ab)));
    if let Some((expected, holds)) = &outcome.expectation {
        lines.push(format!(
            "expected      {expected}: {}",
            if *holds { "as expected" } else { "not as expected" }
        ));
    }
    lines.push(format!("verdict       B is {} (margin ±{})", outcome.verdict, per_cent(outcome.margin)));
    lines.extend(claim.map(|claim| format!("models        {}", claim.says)));
    lines.extend(outcome.marks.iter().map(|mark| format!("marked        {mark}")));
    lines.join("\n")
}
