//! One comparison from the arms' preparation to the verdict.

use std::rc::Rc;

use serde::Serialize;
use serde_json::{Value, json};

use super::amortise::{Amortised, amortise};
use super::expect::Expectation;
use crate::arms::{Answer, Arm, Ready, Slowed};
use crate::clock::Clock;
use crate::preflight::{Counters, Limits, traffic};
use crate::results::{ArmRow, Figure, Recorder, SampleRow, State};
use crate::stats::{LEAST_FLOOR, Summary, Verdict, noise_floor, summarise, verdict};
use crate::{Error, Result, guards};

/// What a comparison is run with.
#[derive(Clone, Debug)]
pub struct Options {
    /// E of the verdict, as a share of 1.
    pub margin: f64,
    /// Seconds that the measurement may take, preparation apart.
    pub budget_s: f64,
    /// A slowdown to inject into A, which must be found.
    pub sensitivity: Option<f64>,
    /// What was expected.
    pub expect: Option<Expectation>,
    /// Of the bootstrap.
    pub seed: u64,
    /// Bytes that one sample moves at least.
    pub traffic_bytes: u64,
    /// Of contention while it runs.
    pub limits: Limits,
    /// Whether the arms are meant to answer differently (another cache format).
    pub may_differ: bool,
    /// The last cache, for the label of residency; 0 where unknown.
    pub last_cache_bytes: u64,
    /// What [`rotation_control`] found, where it was run.
    pub rotated_slowdown: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            margin: 0.03,
            budget_s: 20.0,
            sensitivity: None,
            expect: None,
            seed: 0x706c_756d_6221,
            traffic_bytes: 1_000_000_000,
            limits: Limits::default(),
            may_differ: false,
            last_cache_bytes: 0,
            rotated_slowdown: None,
        }
    }
}

/// Where a comparison is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// What is being done.
    pub phase: &'a str,
    /// Seconds of the budget that are gone.
    pub elapsed_s: f64,
    /// Seconds of the budget.
    pub budget_s: f64,
}

/// What a comparison needs of the world.
pub struct Lab<'a> {
    /// Time.
    pub clock: Rc<dyn Clock>,
    /// The machine's counters.
    pub counters: &'a dyn Fn() -> Counters,
    /// Whether the person has ended it.
    pub is_interrupted: &'a dyn Fn() -> bool,
    /// Told where it is, between samples.
    pub watch: &'a mut dyn FnMut(Progress<'_>),
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// A against itself.
    pub aa: Summary,
    /// The noise floor F.
    pub floor: f64,
    /// B against A.
    pub ab: Summary,
    /// A slowed against A, where it was asked for.
    pub slowed: Option<Summary>,
    /// Whether the injected slowdown was found, and why not.
    pub sensitivity: Option<std::result::Result<(), String>>,
    /// The verdict.
    pub verdict: Verdict,
    /// The margin E.
    pub margin: f64,
    /// What was expected, and whether it came so.
    pub expectation: Option<(Expectation, bool)>,
    /// How the answers compared, in words.
    pub answers: String,
    /// The work of a sample.
    pub work: Amortised,
    /// Median rates of A and B, in tokens per second.
    pub rates: [f64; 2],
    /// Where the samples' bytes were.
    pub residency: guards::Residency,
    /// Reasons to doubt it.
    pub marks: Vec<String>,
    /// Whether it was cut short.
    pub is_partial: bool,
}

impl Outcome {
    /// How the run ended.
    pub fn state(&self) -> State {
        if self.is_partial { State::Partial } else { State::Complete }
    }
}

/// Ratios of the pairs of a phase: the second role's rate over the first's. In `aa` both roles are arm 0, so the role stands in the
/// sample's detail.
pub fn ratios(samples: &[SampleRow], phase: &str) -> Vec<f64> {
    let mut pairs: std::collections::BTreeMap<u32, [Option<f64>; 2]> = std::collections::BTreeMap::new();
    for sample in samples.iter().filter(|s| s.phase == phase) {
        let role = sample.detail["role"].as_u64().unwrap_or(0) as usize;
        if let Some(slot) = pairs.entry(sample.pair).or_default().get_mut(role) {
            *slot = Some(sample.rate());
        }
    }
    let ratio = |pair: [Option<f64>; 2]| pair[0].zip(pair[1]).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
    pairs.into_values().filter_map(ratio).collect()
}

/// How much slower one repetition is when it goes round copies of the same arm than when it stays with one: the control by which a
/// working set is known to lie in a cache. The copies together should be at least twice the cache.
///
/// # Errors
/// An arm fails; there are fewer than two.
pub fn rotation_control(copies: &mut [&mut dyn Arm]) -> Result<f64> {
    const TIMES: usize = 31;
    let count = copies.len();
    if count < 2 {
        return Err(Error::invalid("copies of an arm", "at least 2", count));
    }
    let mut times = |pick: &dyn Fn(usize) -> usize| -> Result<f64> {
        let mut taken = Vec::new();
        // The first round brings in what comes only once.
        for turn in 0..count + TIMES {
            let elapsed = copies[pick(turn)].take(1, turn as u64)?.elapsed_ns;
            if turn >= count {
                taken.push(elapsed as f64);
            }
        }
        Ok(crate::stats::median(&taken))
    };
    let rotating = times(&|turn| turn % count)?;
    let staying = times(&|_| 0)?;
    Ok(rotating / staying)
}

/// Compares two arms and writes every sample to `recorder`. A failure of an arm after samples were taken is an error, but the samples
/// stay with the recorder.
///
/// # Errors
/// An arm that cannot run or was not applied as asked; answers that differ though they should not; fixed cost that no amount of work
/// amortises. [`Error::Interrupted`] before any pair was complete.
pub fn run(
    a: &mut dyn Arm,
    b: &mut dyn Arm,
    options: &Options,
    lab: &mut Lab<'_>,
    recorder: &mut Recorder<'_>,
) -> Result<Outcome> {
    (lab.watch)(Progress { phase: "preparing", elapsed_s: 0.0, budget_s: options.budget_s });
    let ready = [a.prepare()?, b.prepare()?];
    let mut marks: Vec<String> = Vec::new();
    for (arm, ready) in [&*a, &*b].into_iter().zip(&ready) {
        guards::applied(&arm.asked(), &ready.applied)?;
        recorder.arm(ArmRow {
            label: arm.label().to_owned(),
            asked: arm.asked(),
            applied: ready.applied.clone(),
            precision: ready.precision.clone(),
            fingerprint: ready.answer.logits_hash.clone().or_else(|| ready.answer.text.clone()),
        });
        for note in &ready.notes {
            if !marks.contains(note) {
                marks.push(note.clone());
            }
        }
    }
    let answers = compare_answers(&ready, options.may_differ)?;
    if !(ready[0].answer.is_shown() && ready[1].answer.is_shown()) {
        marks.push(answers.clone());
    }

    let before = (lab.counters)();
    let start = lab.clock.now_ns();
    (lab.watch)(Progress { phase: "amortising", elapsed_s: 0.0, budget_s: options.budget_s });
    let work = amortise(&mut [&mut *a, &mut *b], options.traffic_bytes)?;
    let mut session =
        Session { lab, recorder, start, inner: work.inner, turn: 0, place: 0, is_partial: false };
    // The floor needs half the pairs of the effect: its interval is wider by the root of two, which is what makes "faster" and "the same"
    // equally hard to reach.
    let used = session.elapsed_s().min(options.budget_s);
    let rest = options.budget_s - used;
    let shares = if options.sensitivity.is_some() { [0.25, 0.25] } else { [1.0 / 3.0, 0.0] };
    session.phase("aa", None, a, b, options, used + rest * shares[0])?;
    if let Some(share) = options.sensitivity {
        session.phase("slowed", Some(share), a, b, options, used + rest * (shares[0] + shares[1]))?;
    }
    session.phase("ab", None, a, b, options, options.budget_s)?;
    let is_partial = session.is_partial;
    let seconds = session.elapsed_s();
    recorder.flush();

    let mut limits = options.limits;
    if a.is_elsewhere() || b.is_elsewhere() {
        limits.others_cpus = f64::INFINITY;
        marks.push("a server's own work cannot be told from other processes'".into());
    }
    if let Err(caught) = guards::undisturbed(&traffic(&before, &(lab.counters)(), seconds), &limits) {
        marks.push(caught.to_string());
    }
    let samples = recorder.samples().to_vec();
    let outcome = conclude(&samples, options, work, answers, marks, is_partial)?;
    for figure in outcome_figures(&outcome) {
        recorder.figure(figure);
    }
    Ok(outcome)
}

/// A comparison while it is measured.
struct Session<'s, 'l, 'd> {
    lab: &'s mut Lab<'l>,
    recorder: &'s mut Recorder<'d>,
    start: u64,
    inner: u64,
    turn: u64,
    place: u32,
    is_partial: bool,
}

impl Session<'_, '_, '_> {
    fn elapsed_s(&self) -> f64 {
        (self.lab.clock.now_ns() - self.start) as f64 / 1e9
    }

    /// Pairs of a phase until `until_s` of the budget: first role A; second role A (`aa`), A slowed, or B.
    fn phase(
        &mut self,
        phase: &str,
        slowed: Option<f64>,
        a: &mut dyn Arm,
        b: &mut dyn Arm,
        options: &Options,
        until_s: f64,
    ) -> Result<()> {
        let mut longest: f64 = 0.0;
        for pair in 0.. {
            let begun = self.elapsed_s();
            // Two pairs are the least that an interval can be made of; more only where they fit.
            if self.is_partial || pair >= 2 && begun + longest > until_s {
                break;
            }
            (self.lab.watch)(Progress { phase, elapsed_s: begun, budget_s: options.budget_s });
            let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
            for role in order {
                if (self.lab.is_interrupted)() {
                    self.is_partial = true;
                    break;
                }
                let is_b = role == 1 && phase == "ab";
                let sampled = match (role, slowed) {
                    (1, Some(share)) => {
                        let clock = Rc::clone(&self.lab.clock);
                        self.sample(phase, pair, role, 0, &mut Slowed::new(a, share, clock))
                    }
                    _ if is_b => self.sample(phase, pair, role, 1, b),
                    _ => self.sample(phase, pair, role, 0, a),
                };
                match sampled {
                    Err(Error::Interrupted) => {
                        self.is_partial = true;
                        break;
                    }
                    other => other?,
                }
            }
            if pair % 16 == 15 {
                self.recorder.flush();
            }
            longest = longest.max(self.elapsed_s() - begun);
        }
        self.recorder.flush();
        Ok(())
    }

    fn sample(&mut self, phase: &str, pair: u32, role: usize, index: usize, arm: &mut dyn Arm) -> Result<()> {
        self.turn += 1;
        let at_ns = self.lab.clock.now_ns() - self.start;
        let taken = arm.take(self.inner, self.turn)?;
        guards::long_enough(taken.elapsed_ns, 100)?;
        let mut detail = match taken.detail {
            Value::Object(map) => map,
            Value::Null => serde_json::Map::new(),
            other => serde_json::Map::from_iter([("detail".to_owned(), other)]),
        };
        detail.insert("role".into(), json!(role));
        self.recorder.sample(SampleRow {
            arm: Some(index),
            phase: phase.into(),
            pair,
            place: self.place,
            at_ns,
            elapsed_ns: taken.elapsed_ns,
            tokens: taken.tokens,
            bytes: taken.bytes,
            detail: Value::Object(detail),
        });
        self.place += 1;
        Ok(())
    }
}

/// Rule 3, in words; an error where the answers should be equal and are not.
fn compare_answers(ready: &[Ready; 2], may_differ: bool) -> Result<String> {
    let [
        Answer { tokens: ta, text: xa, logits_hash: ha, logits: la },
        Answer { tokens: tb, text: xb, logits_hash: hb, logits: lb },
    ] = [&ready[0].answer, &ready[1].answer];
    let classes_differ = ready[0].precision != ready[1].precision;
    if may_differ || classes_differ {
        let kl = kl_divergence(la, lb);
        let classes = format!("precision classes {:?} and {:?}", ready[0].precision, ready[1].precision);
        return match kl {
            Some(kl) => Ok(format!(
                "compared by KL: mean {kl:.2e} nats over {} positions; {classes}",
                la.len().min(lb.len())
            )),
            None => Ok(format!("the answers were not compared (no logits to compare by KL); {classes}")),
        };
    }
    if let (Some(a), Some(b)) = (xa, xb)
        && a != b
    {
        let first = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
        let short = |text: &str| text.chars().skip(first.saturating_sub(10)).take(40).collect::<String>();
        let why =
            format!("the arms' answers differ from character {first} on: {:?} and {:?}", short(a), short(b));
        return Err(Error::Caught(guards::Caught { guard: "same answer", message: why }));
    }
    guards::same_answer(ta, tb, ha.as_deref(), hb.as_deref())?;
    Ok(match (ha, hb, xa, xb) {
        (Some(hash), Some(_), _, _) => {
            format!("the same tokens and the same bits of logits ({} positions, {hash})", la.len())
        }
        (_, _, Some(_), Some(_)) => "the same text".into(),
        _ => "the answers were not compared: an arm does not show its answer".into(),
    })
}

/// Mean KL divergence of b from a, in nats, over rows for the same tokens; none where there are none.
fn kl_divergence(a: &[Vec<f32>], b: &[Vec<f32>]) -> Option<f64> {
    let rows = a.len().min(b.len());
    if rows == 0 {
        return None;
    }
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        row.iter().map(|&x| f64::from(x) - max - sum.ln()).collect()
    };
    let of = |(a, b): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let (p, q) = (log_softmax(a), log_softmax(b));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    Some(a.iter().zip(b).map(of).sum::<f64>() / rows as f64)
}

/// Everything that follows from the samples: a function of them alone, so that a stored run can be concluded again.
pub(super) fn conclude(
    samples: &[SampleRow],
    options: &Options,
    work: Amortised,
    answers: String,
    mut marks: Vec<String>,
    is_partial: bool,
) -> Result<Outcome> {
    let (aa, ab) = (ratios(samples, "aa"), ratios(samples, "ab"));
    if aa.is_empty() && ab.is_empty() {
        return Err(Error::Interrupted);
    }
    let (aa, ab) = (summarise(&aa, options.seed), summarise(&ab, options.seed.wrapping_add(1)));
    let floor = noise_floor(&aa);
    let roles: Vec<usize> = samples
        .iter()
        .filter(|s| s.phase == "ab")
        .map(|s| s.detail["role"].as_u64().unwrap_or(0) as usize)
        .collect();
    if let Err(caught) = guards::interleaved(&roles) {
        marks.push(caught.to_string());
    }
    let mut called = verdict(&ab, floor, options.margin);
    // An arm that differs from itself shows a fault of the set-up, and then a difference between two arms shows nothing.
    if matches!(verdict(&aa, LEAST_FLOOR, options.margin), Verdict::Faster | Verdict::Slower) {
        marks.push(format!(
            "A against itself came out at {:.3}: the set-up favours one place of a pair",
            aa.ratio
        ));
        called = Verdict::NotResolved { pairs_needed: None };
    }
    if work.fixed_share.is_some_and(|share| share > guards::MOST_FIXED) {
        marks.push("too noisy to show that the fixed cost of a sample is at most 2%".into());
    }
    if is_partial {
        marks.push("interrupted before its budget was spent".into());
    }
    let slowed =
        options.sensitivity.map(|_| summarise(&ratios(samples, "slowed"), options.seed.wrapping_add(2)));
    let sensitivity = options
        .sensitivity
        .zip(slowed)
        .map(|(share, found)| guards::sensitive(share, found.interval).map_err(|caught| caught.to_string()));
    if let Some(Err(why)) = &sensitivity {
        marks.push(why.clone());
    }
    let rate = |index: usize| {
        let rates: Vec<f64> =
            samples.iter().filter(|s| s.arm == Some(index) && s.phase == "ab").map(SampleRow::rate).collect();
        crate::stats::median(&rates)
    };
    let bytes =
        samples.iter().filter(|s| s.phase == "ab").map(|s| s.bytes / work.inner.max(1)).min().unwrap_or(0);
    let residency = if bytes == 0 {
        guards::Residency::Unclear
    } else {
        guards::residency(bytes, options.last_cache_bytes, options.rotated_slowdown)
    };
    let expectation = options.expect.map(|e| (e, e.holds(ab.ratio)));
    Ok(Outcome {
        aa,
        floor,
        ab,
        slowed,
        sensitivity,
        verdict: called,
        margin: options.margin,
        expectation,
        answers,
        work,
        rates: [rate(0), rate(1)],
        residency,
        marks,
        is_partial,
    })
}

fn outcome_figures(outcome: &Outcome) -> Vec<Figure> {
    let of = |name: &str, summary: &Summary| Figure {
        name: name.into(),
        unit: "ratio".into(),
        value: summary.ratio,
        low: Some(summary.interval.low),
        high: Some(summary.interval.high),
        detail: json!({ "pairs": summary.pairs, "win_rate": summary.win_rate }),
        ..Figure::default()
    };
    let mut figures = vec![of("ratio_a_a", &outcome.aa), of("ratio", &outcome.ab)];
    figures[1].predicted = outcome.expectation.map(|(e, _)| (e.low + e.high) / 2.0);
    figures.extend(outcome.slowed.as_ref().map(|s| of("ratio_slowed", s)));
    for (name, value) in ["rate_a", "rate_b"].into_iter().zip(outcome.rates) {
        figures.push(Figure { name: name.into(), unit: "tokens/s".into(), value, ..Figure::default() });
    }
    figures.retain(|f| f.value.is_finite());
    for figure in &mut figures {
        // SQLite keeps no NaN: an interval of too few pairs is none.
        figure.low = figure.low.filter(|v| v.is_finite());
        figure.high = figure.high.filter(|v| v.is_finite());
    }
    figures
}
