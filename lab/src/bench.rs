//! How fast one model runs: prompt and generation at depths and batch sizes, beside the bytes that they move and the floor that
//! those set; on request alternating with another engine's command.
//!
//! It takes a loaded model as an arm and the other engine as a command; which command that is, it does not know.

use std::rc::Rc;

use serde::Serialize;
use serde_json::json;

use crate::ab::Progress;
use crate::arms::{Arm, Limit, Phase, PlumbArm, Reading, Unrun, Workload, run_command};
use crate::clock::Clock;
use crate::results::{ArmRow, Figure, Recorder, SampleRow, Settings};
use crate::stats::{CONFIDENCE, Interval, RESAMPLES, Summary, bootstrap, median, summarise};
use crate::{Error, Result, guards};

/// One thing that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Test {
    /// Prompt or generation.
    pub phase: Phase,
    /// Positions before it.
    pub depth: usize,
    /// Tokens of the prompt, or generated ones per sequence.
    pub tokens: usize,
    /// Sequences stepped together.
    pub batch: usize,
}

impl Test {
    fn workload(&self) -> Workload {
        Workload { phase: self.phase, depth: self.depth, prompt: self.tokens, batch: self.batch }
    }

    fn repetitions(&self) -> u64 {
        match self.phase {
            Phase::Generation => self.tokens as u64,
            Phase::Prompt => 1,
        }
    }

    /// Positions that it needs.
    pub fn positions(&self) -> usize {
        self.depth + self.tokens
    }

    /// Where it stands on a plot's axis: a generation's depth, a prompt's length.
    fn x(&self) -> f64 {
        match self.phase {
            Phase::Generation => self.depth as f64,
            Phase::Prompt => self.tokens as f64,
        }
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.phase {
            Phase::Generation => write!(f, "generation of {} at {}", self.tokens, self.depth)?,
            Phase::Prompt if self.depth == 0 => write!(f, "prompt of {}", self.tokens)?,
            Phase::Prompt => write!(f, "prompt of {} at {}", self.tokens, self.depth)?,
        }
        if self.batch > 1 { write!(f, ", batch {}", self.batch) } else { Ok(()) }
    }
}

/// Another engine.
#[derive(Clone, Debug)]
pub struct Against {
    /// Its command line.
    pub command: String,
    /// How its figures are read; llama-bench's report names its tests itself.
    pub reading: Reading,
    /// Which of ours a single figure belongs to.
    pub test: Test,
    /// What ends a run of it.
    pub limit: Limit,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Our tests; with llama-bench on the other side, its tests are added.
    pub tests: Vec<Test>,
    /// Samples of each.
    pub samples: usize,
    /// Another engine, in turn with ours.
    pub against: Option<Against>,
    /// Bytes per second that products reach on this machine (`plumb probe`), for the floor.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// The last cache; 0 where unknown.
    pub last_cache_bytes: u64,
}

/// What came of one test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub test: Test,
    /// Median rate in tokens per second.
    pub rate: f64,
    /// Its 99% interval over the samples.
    pub interval: Interval,
    /// Bytes that a step must read, per token.
    pub bytes_per_token: f64,
    /// Share of the floor's speed that is reached; none without a bandwidth, or where the bytes may lie in a cache.
    pub floor_share: Option<f64>,
    /// Where the bytes are.
    pub residency: guards::Residency,
    /// The other engine's median rate.
    pub against_rate: Option<f64>,
    /// Ours over the other's, pair by pair.
    pub against: Option<Summary>,
}

/// What came of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// A row per test.
    pub rows: Vec<Row>,
    /// Reasons to doubt them.
    pub marks: Vec<String>,
    /// Whether it was cut short.
    pub is_partial: bool,
}

/// One figure of the other engine.
#[derive(Clone, Debug, PartialEq)]
struct Theirs {
    test: Test,
    tokens: u64,
    elapsed_ns: u64,
    detail: serde_json::Value,
}

impl Against {
    /// Runs it once and gives its figures.
    fn take(&self, clock: &dyn Clock) -> Result<Vec<Theirs>> {
        let failed = |why: String| Error::arm("against", format!("`{}`: {why}", self.command));
        let output = run_command(&self.command, &self.limit, clock).map_err(|unrun| match unrun {
            Unrun::Interrupted => Error::Interrupted,
            Unrun::Failed(why) => failed(why),
        })?;
        if !matches!(self.reading, Reading::LlamaBench { .. }) {
            let (tokens, elapsed_ns, detail) =
                self.reading.read(&output.stdout, output.wall_ns).map_err(failed)?;
            return Ok(vec![Theirs { test: self.test, tokens, elapsed_ns, detail }]);
        }
        llama_bench(&output.stdout).map_err(failed)
    }
}

/// Every test of llama-bench's JSON report.
fn llama_bench(output: &str) -> std::result::Result<Vec<Theirs>, String> {
    let value = crate::arms::last_json(output).ok_or("no JSON in its output; llama-bench needs -o json")?;
    let rows = value.as_array().ok_or("its JSON is no list of tests")?;
    let mut found = Vec::new();
    for row in rows {
        let count = |key: &str| row.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let (prompt, generated, ns) = (count("n_prompt"), count("n_gen"), count("avg_ns"));
        let (phase, tokens) = match (prompt, generated) {
            (n, 0) if n > 0 => (Phase::Prompt, n),
            (0, n) if n > 0 => (Phase::Generation, n),
            _ => {
                return Err(format!(
                    "a test of {prompt} prompt and {generated} generated tokens at once: use -p and -n, not -pg"
                ));
            }
        };
        if ns == 0 {
            return Err("a test without avg_ns".into());
        }
        let test = Test { phase, depth: count("n_depth") as usize, tokens: tokens as usize, batch: 1 };
        let kept = [
            "build_commit",
            "n_threads",
            "flash_attn",
            "type_k",
            "type_v",
            "samples_ns",
            "backends",
            "model_type",
        ];
        let detail = kept.iter().filter_map(|k| Some(((*k).to_owned(), row.get(k)?.clone()))).collect();
        found.push(Theirs { test, tokens, elapsed_ns: ns, detail: serde_json::Value::Object(detail) });
    }
    if found.is_empty() { Err("its list of tests is empty".into()) } else { Ok(found) }
}

/// Tests that the other engine's command runs, found by running it once; its first run is not counted.
///
/// # Errors
/// It fails, hangs or prints no figure.
pub fn tests_of(against: &Against, clock: &dyn Clock) -> Result<Vec<Test>> {
    Ok(against.take(clock)?.into_iter().map(|theirs| theirs.test).collect())
}

/// What a bench needs of the world.
pub struct World<'a> {
    /// Time.
    pub clock: Rc<dyn Clock>,
    /// Whether the person has ended it.
    pub is_interrupted: &'a dyn Fn() -> bool,
    /// Told where it is.
    pub watch: &'a mut dyn FnMut(Progress<'_>),
}

/// Runs the plan on a loaded model and writes every sample to `recorder`.
///
/// # Errors
/// The model or the other engine fails. [`Error::Interrupted`] before there was a sample.
pub fn run(
    arm: &mut PlumbArm,
    plan: &Plan,
    world: &mut World<'_>,
    recorder: &mut Recorder<'_>,
) -> Result<Outcome> {
    let ready = arm.prepare()?;
    recorder.arm(ArmRow {
        label: "plumb".into(),
        asked: arm.asked(),
        applied: ready.applied,
        precision: ready.precision,
        fingerprint: ready.answer.logits_hash,
    });
    if let Some(against) = &plan.against {
        let asked = Settings::from([("command".to_owned(), against.command.clone())]);
        recorder.arm(ArmRow {
            label: "against".into(),
            asked: asked.clone(),
            applied: asked,
            ..ArmRow::default()
        });
    }
    let start = world.clock.now_ns();
    let mut is_partial = false;
    let steps: Vec<(usize, Option<usize>)> = match plan.against {
        // With another engine a round is all of ours and one run of its command, in turn; without, a test's samples come together.
        Some(_) => (0..plan.samples)
            .flat_map(|round| {
                let mut order: Vec<(usize, Option<usize>)> =
                    (0..plan.tests.len()).map(|t| (round, Some(t))).collect();
                order.insert(if round % 2 == 0 { order.len() } else { 0 }, (round, None));
                order
            })
            .collect(),
        None => {
            (0..plan.tests.len()).flat_map(|t| (0..plan.samples).map(move |round| (round, Some(t)))).collect()
        }
    };
    let mut current = None;
    let mut place = 0;
    for (done, &(round, what)) in steps.iter().enumerate() {
        if (world.is_interrupted)() {
            is_partial = true;
            break;
        }
        let text = what.map_or_else(|| "against".to_owned(), |t| plan.tests[t].to_string());
        let elapsed_s = (world.clock.now_ns() - start) as f64 / 1e9;
        let budget_s = elapsed_s / done.max(1) as f64 * steps.len() as f64;
        (world.watch)(Progress { phase: &text, elapsed_s, budget_s });
        let at_ns = world.clock.now_ns() - start;
        let taken = match what {
            Some(index) => {
                ours(arm, &plan.tests[index], current != Some(index), round as u64).map(|t| vec![t])
            }
            None => match &plan.against {
                Some(against) => {
                    against.take(world.clock.as_ref()).map(|all| all.into_iter().map(theirs_row).collect())
                }
                None => Ok(Vec::new()),
            },
        };
        current = what;
        match taken {
            Ok(rows) => {
                for row in rows {
                    recorder.sample(SampleRow { pair: round as u32, place, at_ns, ..row });
                }
                place += 1;
            }
            Err(Error::Interrupted) => {
                is_partial = true;
                break;
            }
            Err(error) => return Err(error),
        }
        recorder.flush();
    }
    let outcome = conclude(recorder.samples(), plan, is_partial)?;
    for figure in figures(&outcome) {
        recorder.figure(figure);
    }
    Ok(outcome)
}

fn ours(arm: &mut PlumbArm, test: &Test, is_new: bool, round: u64) -> Result<SampleRow> {
    if is_new {
        arm.set_workload(test.workload());
        // What happens only once (pages, threads waking) belongs to no sample.
        arm.take(test.repetitions().min(4), u64::MAX - round)?;
        arm.forget_expected();
    }
    let taken = arm.take(test.repetitions(), round)?;
    guards::long_enough(taken.elapsed_ns, 100)?;
    Ok(SampleRow {
        arm: Some(0),
        phase: test.phase.name().into(),
        elapsed_ns: taken.elapsed_ns,
        tokens: taken.tokens,
        bytes: taken.bytes,
        detail: json!({ "test": test }),
        ..SampleRow::default()
    })
}

fn theirs_row(theirs: Theirs) -> SampleRow {
    SampleRow {
        arm: Some(1),
        phase: theirs.test.phase.name().into(),
        elapsed_ns: theirs.elapsed_ns,
        tokens: theirs.tokens,
        detail: json!({ "test": theirs.test, "report": theirs.detail }),
        ..SampleRow::default()
    }
}

/// What follows from the samples alone.
fn conclude(samples: &[SampleRow], plan: &Plan, is_partial: bool) -> Result<Outcome> {
    let mut rows = Vec::new();
    let mut marks = Vec::new();
    for test in &plan.tests {
        let key = json!(test);
        let of = |arm: usize| {
            samples.iter().filter(move |s| s.arm == Some(arm)).filter(|s| s.detail["test"] == key)
        };
        let rates: Vec<f64> = of(0).map(SampleRow::rate).collect();
        if rates.is_empty() {
            continue;
        }
        let rate = median(&rates);
        let bytes: Vec<f64> = of(0).map(|s| s.bytes as f64 / s.tokens.max(1) as f64).collect();
        let bytes_per_token = median(&bytes);
        let step_bytes = (bytes_per_token * test.batch as f64) as u64;
        let residency = guards::residency(step_bytes, plan.last_cache_bytes, None);
        let mut floor_share = None;
        if let (Phase::Generation, Some(bandwidth)) = (test.phase, plan.bandwidth_bytes_per_s) {
            match guards::from_memory(residency, step_bytes, plan.last_cache_bytes) {
                Ok(()) => floor_share = Some(rate * bytes_per_token / bandwidth),
                Err(caught) => marks.push(format!("{test}: {caught}")),
            }
            if floor_share.is_some_and(|share| share > 1.05) {
                let caught = guards::below_ceiling((rate * bytes_per_token) as u64, 1_000_000_000, bandwidth);
                marks.extend(caught.err().map(|c| format!("{test}: {c}; or the bandwidth given is too low")));
            }
        }
        let pairs: Vec<f64> = of(0)
            .filter_map(|mine| {
                let other = of(1).find(|s| s.pair == mine.pair)?;
                (other.rate() > 0.0).then(|| mine.rate() / other.rate())
            })
            .collect();
        let their_rates: Vec<f64> = of(1).map(SampleRow::rate).collect();
        rows.push(Row {
            test: *test,
            rate,
            interval: bootstrap(&rates, CONFIDENCE, RESAMPLES, 1),
            bytes_per_token,
            floor_share,
            residency,
            against_rate: (!their_rates.is_empty()).then(|| median(&their_rates)),
            against: (!pairs.is_empty()).then(|| summarise(&pairs, 2)),
        });
    }
    if rows.is_empty() {
        return Err(Error::Interrupted);
    }
    if is_partial {
        marks.push("interrupted before all samples were taken".into());
    }
    Ok(Outcome { rows, marks, is_partial })
}

fn figures(outcome: &Outcome) -> Vec<Figure> {
    let mut figures = Vec::new();
    for row in &outcome.rows {
        let detail = json!({ "tokens": row.test.tokens, "batch": row.test.batch, "depth": row.test.depth });
        // A generation's depth stands on the axis already, and would part the points of a line.
        let detail = match row.test.phase {
            Phase::Generation => json!({ "tokens": row.test.tokens, "batch": row.test.batch }),
            Phase::Prompt => json!({ "batch": row.test.batch, "depth": detail["depth"] }),
        };
        let figure = |name: &str, unit: &str, value: f64, interval: Option<Interval>| Figure {
            name: name.into(),
            unit: unit.into(),
            x: Some(row.test.x()),
            value,
            low: interval.map(|i| i.low),
            high: interval.map(|i| i.high),
            predicted: None,
            detail: detail.clone(),
        };
        let name = row.test.phase.name();
        figures.push(figure(name, "tokens/s", row.rate, Some(row.interval)));
        if row.test.phase == Phase::Prompt && row.test.batch == 1 && row.test.depth == 0 {
            figures.push(figure("first_token", "s", row.test.tokens as f64 / row.rate, None));
        }
        if row.test.phase == Phase::Generation {
            figures.push(figure("bytes_per_token", "bytes", row.bytes_per_token, None));
            figures.extend(row.floor_share.map(|share| figure("floor_share", "share", share, None)));
        }
        if let (Some(rate), Some(ratio)) = (row.against_rate, &row.against) {
            figures.push(figure(&format!("{name}_against"), "tokens/s", rate, None));
            figures.push(figure(&format!("{name}_ratio"), "ratio", ratio.ratio, Some(ratio.interval)));
        }
    }
    figures
}

/// Most bytes that this process has held, from the system; none where it does not say.
pub fn peak_memory(read: crate::machine::Read<'_>) -> Option<u64> {
    crate::machine::kib(&read("/proc/self/status")?, "VmHWM")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATION: Test = Test { phase: Phase::Generation, depth: 512, tokens: 64, batch: 1 };

    fn sample(arm: usize, pair: u32, tokens_per_s: u64) -> SampleRow {
        SampleRow {
            arm: Some(arm),
            pair,
            phase: "generation".into(),
            elapsed_ns: 64_000_000_000 / tokens_per_s,
            tokens: 64,
            bytes: if arm == 0 { 64 * 100_000_000 } else { 0 },
            detail: json!({ "test": GENERATION }),
            ..SampleRow::default()
        }
    }

    fn plan() -> Plan {
        Plan {
            tests: vec![GENERATION],
            samples: 3,
            against: None,
            bandwidth_bytes_per_s: Some(20e9),
            last_cache_bytes: 32 << 20,
        }
    }

    #[test]
    fn a_row_has_its_rate_bytes_and_share_of_the_floor() {
        let samples: Vec<SampleRow> =
            [100, 80, 120].iter().enumerate().map(|(i, &r)| sample(0, i as u32, r)).collect();
        let outcome = conclude(&samples, &plan(), false).unwrap();
        let row = &outcome.rows[0];
        assert!((row.rate - 100.0).abs() < 1e-6 && row.bytes_per_token == 1e8);
        // 100 tokens of 100 MB a second are half of 20 GB/s.
        assert!((row.floor_share.unwrap() - 0.5).abs() < 1e-6);
        assert!(outcome.marks.is_empty());
    }

    #[test]
    fn weights_that_may_lie_in_a_cache_have_no_share_of_the_floor() {
        let samples = [sample(0, 0, 100)];
        let outcome = conclude(&samples, &Plan { last_cache_bytes: 1 << 30, ..plan() }, false).unwrap();
        assert_eq!(outcome.rows[0].floor_share, None);
        assert!(outcome.marks[0].contains("residency"), "{:?}", outcome.marks);
    }

    #[test]
    fn a_share_above_one_is_marked() {
        let outcome = conclude(&[sample(0, 0, 300)], &plan(), false).unwrap();
        assert!(outcome.marks[0].contains("ceiling"), "{:?}", outcome.marks);
    }

    #[test]
    fn another_engine_is_compared_pair_by_pair() {
        let samples =
            [sample(0, 0, 100), sample(1, 0, 50), sample(1, 1, 40), sample(0, 1, 100), sample(0, 2, 100)];
        let row = conclude(&samples, &plan(), true).unwrap().rows.remove(0);
        let ratio = row.against.unwrap();
        assert_eq!((ratio.pairs, ratio.win_rate), (2, 1.0));
        assert!((ratio.ratio - 2.25).abs() < 1e-6 && (row.against_rate.unwrap() - 45.0).abs() < 1e-6);
    }

    #[test]
    fn figures_carry_depth_and_batch() {
        let outcome = conclude(&[sample(0, 0, 100)], &plan(), false).unwrap();
        let figures = figures(&outcome);
        let names: Vec<&str> = figures.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["generation", "bytes_per_token", "floor_share"]);
        assert_eq!((figures[0].x, &figures[0].detail["batch"]), (Some(512.0), &json!(1)));
    }

    #[test]
    fn llama_benchs_tests_are_matched_by_their_numbers() {
        let output = r#"[{"n_prompt":512,"n_gen":0,"n_depth":0,"avg_ns":1000},
            {"n_prompt":0,"n_gen":64,"n_depth":512,"avg_ns":2000,"n_threads":2}]"#;
        let found = llama_bench(output).unwrap();
        assert_eq!(found[0].test, Test { phase: Phase::Prompt, depth: 0, tokens: 512, batch: 1 });
        assert_eq!(found[1].test, GENERATION);
        assert!(llama_bench(r#"[{"n_prompt":5,"n_gen":5,"avg_ns":1}]"#).unwrap_err().contains("-pg"));
        assert!(llama_bench("[]").unwrap_err().contains("empty"));
        assert!(llama_bench("x").unwrap_err().contains("-o json"));
    }

    #[test]
    fn the_peak_is_read_in_bytes() {
        let read = |_: &str| Some("VmPeak: 9 kB\nVmHWM:\t  2048 kB\n".to_owned());
        assert_eq!(peak_memory(&read), Some(2 << 20));
    }
}
