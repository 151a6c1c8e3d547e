//! The runner on recorded time: arms whose samples take as long as the test says, and a clock that moves when they do.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::json;

use super::run::Lab;
use super::*;
use crate::arms::{Answer, Arm, Ready, Taken};
use crate::clock::{Clock, Manual};
use crate::preflight::Counters;
use crate::results::{Database, Kept, Recorder, Run, RunMeta, Settings};
use crate::stats::{Random, Verdict};
use crate::{Error, Result};

/// An arm that takes `each_ns` a repetition, with uniform noise of ± `noise` and `fixed_ns` once.
struct Fake {
    label: &'static str,
    clock: Rc<Manual>,
    each_ns: f64,
    fixed_ns: f64,
    noise: f64,
    random: Random,
    ready: Ready,
    asked: Settings,
    fails_at: Option<u64>,
    calls: u64,
    /// The time of every sample doubles after so many calls.
    drifts: bool,
}

impl Arm for Fake {
    fn label(&self) -> &str {
        self.label
    }

    fn asked(&self) -> Settings {
        self.asked.clone()
    }

    fn prepare(&mut self) -> Result<Ready> {
        Ok(self.ready.clone())
    }

    fn take(&mut self, inner: u64, _turn: u64) -> Result<Taken> {
        self.calls += 1;
        if self.fails_at == Some(self.calls) {
            return Err(Error::arm(self.label, "failed"));
        }
        let uniform = self.random.word() as f64 / u64::MAX as f64 * 2.0 - 1.0;
        let drift = if self.drifts { 1.0 + self.clock.now_ns() as f64 / 20e9 } else { 1.0 };
        let ns =
            ((self.each_ns * inner as f64 * drift + self.fixed_ns) * (1.0 + self.noise * uniform)) as u64;
        self.clock.advance_ns(ns);
        Ok(Taken { elapsed_ns: ns, tokens: inner, bytes: inner * 1_000_000, ..Taken::default() })
    }

    fn bytes_per_repetition(&self) -> Option<u64> {
        Some(1_000_000)
    }
}

fn setting(value: &str) -> Settings {
    Settings::from([("threads".to_owned(), value.to_owned())])
}

fn fake(label: &'static str, clock: &Rc<Manual>, each_ns: f64, seed: u64) -> Fake {
    let answer = Answer { tokens: vec![1, 2, 3], logits_hash: Some("same".into()), ..Answer::default() };
    Fake {
        label,
        clock: Rc::clone(clock),
        each_ns,
        fixed_ns: 0.0,
        noise: 0.05,
        random: Random::new(seed),
        ready: Ready { applied: setting("2"), precision: "q4".into(), answer, notes: Vec::new() },
        asked: setting("2"),
        fails_at: None,
        calls: 0,
        drifts: false,
    }
}

struct Ran {
    outcome: Result<Outcome>,
    run: Run,
}

/// Runs a comparison that ends by itself, or is interrupted when `stop_ns` have passed.
fn ran(a: &mut Fake, b: &mut Fake, options: &Options, stop_ns: Option<u64>) -> Ran {
    let clock = Rc::clone(&a.clock);
    let mut database = Database::in_memory().unwrap();
    let meta = RunMeta { kind: "ab".into(), machine: "m".into(), ..RunMeta::default() };
    let mut recorder = Recorder::begin(&mut database, meta);
    let stop = Rc::clone(&clock);
    let watched = Cell::new(0);
    let mut lab = Lab {
        clock: clock as Rc<dyn Clock>,
        counters: &Counters::default,
        is_interrupted: &|| stop_ns.is_some_and(|ns| stop.now_ns() > ns),
        watch: &mut |_| watched.set(watched.get() + 1),
    };
    let outcome = run(a, b, options, &mut lab, &mut recorder);
    let (state, verdict) = match &outcome {
        Ok(outcome) => (outcome.state(), json!(outcome)),
        Err(_) => (crate::results::State::Failed, json!(null)),
    };
    let Kept::Run(id) = recorder.end(state, verdict, Vec::new()) else { panic!("not kept") };
    assert!(watched.get() > 0);
    Ran { run: database.run(id).unwrap(), outcome }
}

fn options() -> Options {
    Options { traffic_bytes: 10_000_000, ..Options::default() }
}

fn verdict_of(b_ns: f64, options: &Options) -> Outcome {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, b_ns, 2));
    ran(&mut a, &mut b, options, None).outcome.unwrap()
}

#[test]
fn an_arm_against_its_like_is_the_same() {
    let outcome = verdict_of(5e6, &options());
    assert_eq!(outcome.verdict, Verdict::Same, "{outcome:?}");
    assert!(outcome.ab.pairs > 50 && outcome.floor >= 0.01);
    assert!(outcome.marks.is_empty(), "{:?}", outcome.marks);
    assert!(outcome.answers.contains("same bits"));
}

#[test]
fn a_true_five_per_cent_is_called_the_right_way() {
    assert_eq!(verdict_of(5e6 / 1.05, &options()).verdict, Verdict::Faster);
    assert_eq!(verdict_of(5e6 * 1.05, &options()).verdict, Verdict::Slower);
}

#[test]
fn many_comparisons_keep_the_promised_shares() {
    // As the contract has it: no false call of 100 alike, 95 of them the same; 90 of 100 true differences called, none wrongly.
    // Six hundredths of uniform noise give a standard error of about 0.65% in the pairs that fit.
    let count = |b_ns: f64, base: u64| {
        let (mut right, mut same, mut open, mut wrong) = (0, 0, 0, 0);
        for seed in 0..100 {
            let clock = Rc::new(Manual::default());
            let (mut a, mut b) =
                (fake("a", &clock, 5e6, base + 2 * seed), fake("b", &clock, b_ns, base + 2 * seed + 1));
            (a.noise, b.noise) = (0.04, 0.04);
            let options = Options { seed, ..options() };
            match ran(&mut a, &mut b, &options, None).outcome.unwrap().verdict {
                Verdict::Faster => wrong += 1,
                Verdict::Slower => right += 1,
                Verdict::Same => same += 1,
                Verdict::NotResolved { .. } => open += 1,
            }
        }
        (right, same, open, wrong)
    };
    let (slower, same, _, faster) = count(5e6, 1000);
    assert!(same >= 95 && slower == 0 && faster == 0, "{slower} {same} {faster}");
    let (slower, same, _, faster) = count(5e6 * 1.05, 5000);
    assert!(slower >= 90 && same == 0 && faster == 0, "{slower} {same} {faster}");
}

#[test]
fn drift_is_not_read_as_an_effect() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    (a.drifts, b.drifts) = (true, true);
    let outcome = ran(&mut a, &mut b, &options(), None).outcome.unwrap();
    assert_eq!(outcome.verdict, Verdict::Same, "{outcome:?}");
}

#[test]
fn samples_alternate_and_their_order_flips() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    let run = ran(&mut a, &mut b, &options(), None).run;
    let order: Vec<usize> = run.samples.iter().filter(|s| s.phase == "ab").map(|s| s.arm.unwrap()).collect();
    assert_eq!(order[..8], [0, 1, 1, 0, 0, 1, 1, 0]);
    let first_ab = run.samples.iter().position(|s| s.phase == "ab").unwrap();
    assert!(run.samples[..first_ab].iter().all(|s| s.phase == "aa" && s.arm == Some(0)));
}

#[test]
fn the_budget_is_kept() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    let options = Options { budget_s: 7.0, ..options() };
    ran(&mut a, &mut b, &options, None).outcome.unwrap();
    let seconds = clock.now_ns() as f64 / 1e9;
    assert!((6.0..7.3).contains(&seconds), "{seconds}");
}

#[test]
fn an_arm_that_fell_back_is_an_error() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    b.asked = setting("4");
    let error = ran(&mut a, &mut b, &options(), None).outcome.unwrap_err().to_string();
    assert!(error.contains("threads: asked 4, applied 2"), "{error}");
}

#[test]
fn arms_that_answer_differently_are_not_timed() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    b.ready.answer.tokens = vec![1, 2, 4];
    let ran_once = ran(&mut a, &mut b, &options(), None);
    assert!(ran_once.outcome.unwrap_err().to_string().contains("place 2"));
    assert!(ran_once.run.samples.is_empty());
    b.ready.answer.tokens = vec![1, 2, 3];
    b.ready.answer.logits_hash = Some("other".into());
    assert!(ran(&mut a, &mut b, &options(), None).outcome.unwrap_err().to_string().contains("KL"));
}

#[test]
fn arms_of_other_precision_are_compared_by_kl() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    b.ready.precision = "q4/kv-q8".into();
    b.ready.answer.tokens = vec![9];
    (a.ready.answer.logits, b.ready.answer.logits) = (vec![vec![0.0, 0.0]], vec![vec![0.0, 1.0986123]]);
    let outcome = ran(&mut a, &mut b, &options(), None).outcome.unwrap();
    // KL((1/2, 1/2) ‖ (1/4, 3/4)) = ln 2 − ln 3 / 2 = 0.1438.
    assert!(outcome.answers.contains("1.44e-1") && outcome.answers.contains("kv-q8"), "{}", outcome.answers);
}

#[test]
fn fixed_cost_is_amortised_or_refused() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    for arm in [&mut a, &mut b] {
        (arm.fixed_ns, arm.noise) = (3e6, 0.0);
    }
    let work = ran(&mut a, &mut b, &options(), None).outcome.unwrap().work;
    // 3 ms of 5·n ms are at most 2% from n = 30 on; by traffic it was 10.
    assert_eq!(work.inner, 40);
    assert!(work.fixed_share.unwrap() <= 0.02);
    a.each_ns = 0.1;
    (a.fixed_ns, b.each_ns, b.fixed_ns) = (5e6, 0.1, 5e6);
    let error = ran(&mut a, &mut b, &options(), None).outcome.unwrap_err().to_string();
    assert!(error.contains("fixed cost"), "{error}");
}

#[test]
fn an_injected_slowdown_is_found_and_its_absence_too() {
    let with = Options { sensitivity: Some(0.05), budget_s: 40.0, ..options() };
    let outcome = verdict_of(5e6, &with);
    assert_eq!(outcome.sensitivity, Some(Ok(())), "{outcome:?}");
    assert!(outcome.slowed.unwrap().interval.high < 1.0);
    // So much noise that five per cent cannot be seen.
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    (a.noise, b.noise) = (0.6, 0.6);
    let outcome = ran(&mut a, &mut b, &Options { budget_s: 8.0, ..with }, None).outcome;
    if let Ok(outcome) = outcome {
        assert!(outcome.sensitivity.unwrap().is_err());
        assert!(outcome.marks.iter().any(|m| m.contains("sensitivity")));
    }
}

#[test]
fn an_interrupted_comparison_keeps_what_was_measured() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    let Ran { outcome, run } = ran(&mut a, &mut b, &options(), Some(12_000_000_000));
    let outcome = outcome.unwrap();
    assert!(outcome.is_partial && outcome.marks.iter().any(|m| m.contains("interrupted")));
    assert_eq!(run.state, crate::results::State::Partial);
    assert!(run.samples.len() > 50);
}

#[test]
fn a_failing_arm_keeps_what_was_measured() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    b.fails_at = Some(40);
    let Ran { outcome, run } = ran(&mut a, &mut b, &options(), None);
    assert!(outcome.unwrap_err().to_string().contains("arm b: failed"));
    assert_eq!(run.state, crate::results::State::Failed);
    assert!(run.samples.len() > 40);
}

#[test]
fn an_expectation_is_shown_beside_the_result() {
    let expect = |text| Options { expect: Some(Expectation::parse(text).unwrap()), ..options() };
    assert!(verdict_of(5e6 / 1.05, &expect("+5%")).expectation.unwrap().1);
    assert!(!verdict_of(5e6 / 1.05, &expect("1.5..2.0")).expectation.unwrap().1);
}

#[test]
fn contention_during_the_run_marks_it() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 5e6, 2));
    let mut database = Database::in_memory().unwrap();
    let mut recorder = Recorder::begin(&mut database, RunMeta { kind: "ab".into(), ..RunMeta::default() });
    let ticks = Cell::new(0);
    let counters = || {
        ticks.set(ticks.get() + 4000);
        Counters { busy_ticks: Some(ticks.get()), own_ticks: Some(ticks.get() / 2), ..Counters::default() }
    };
    let time = Rc::clone(&clock) as Rc<dyn Clock>;
    let mut lab = Lab { clock: time, counters: &counters, is_interrupted: &|| false, watch: &mut |_| {} };
    let outcome = run(&mut a, &mut b, &options(), &mut lab, &mut recorder).unwrap();
    assert!(outcome.marks.iter().any(|m| m.contains("other processes: 1.0")), "{:?}", outcome.marks);
}

#[test]
fn a_working_set_in_a_cache_shows_when_copies_rotate() {
    /// Takes long when another copy was used in between.
    struct Cached {
        fake: Fake,
        number: usize,
        last: Rc<Cell<usize>>,
        cold: f64,
    }
    impl Arm for Cached {
        fn label(&self) -> &str {
            "copy"
        }
        fn asked(&self) -> Settings {
            self.fake.asked()
        }
        fn prepare(&mut self) -> Result<Ready> {
            self.fake.prepare()
        }
        fn take(&mut self, inner: u64, turn: u64) -> Result<Taken> {
            let is_warm = self.last.replace(self.number) == self.number;
            self.fake.each_ns = if is_warm { 1e6 } else { 1e6 * self.cold };
            self.fake.take(inner, turn)
        }
        fn bytes_per_repetition(&self) -> Option<u64> {
            Some(1)
        }
    }
    for (cold, expected) in [(3.0, crate::guards::Residency::Cache), (1.0, crate::guards::Residency::Unclear)]
    {
        let clock = Rc::new(Manual::default());
        let last = Rc::new(Cell::new(0));
        let mut copies: Vec<Cached> = (0..4)
            .map(|number| Cached {
                fake: fake("copy", &clock, 1e6, number),
                number: number as usize,
                last: Rc::clone(&last),
                cold,
            })
            .collect();
        let mut arms: Vec<&mut dyn Arm> = copies.iter_mut().map(|c| c as &mut dyn Arm).collect();
        let slowdown = rotation_control(&mut arms).unwrap();
        assert!((slowdown / cold - 1.0).abs() < 0.1, "{slowdown}");
        assert_eq!(crate::guards::residency(1 << 20, 36 << 20, Some(slowdown)), expected);
    }
}

#[test]
fn a_claim_is_about_the_models_it_was_seen_on() {
    let clock = Rc::new(Manual::default());
    let (mut a, mut b) = (fake("a", &clock, 5e6, 1), fake("b", &clock, 4e6, 2));
    let mut run = ran(&mut a, &mut b, &options(), None).run;
    let named = |run: &mut Run, name: &str| {
        run.meta.model =
            Some(crate::results::ModelId { hash: "h".into(), name: name.into(), precision: "q4".into() });
        run.clone()
    };
    let mut runs = vec![named(&mut run, "one"), named(&mut run, "two")];
    assert!(claim(&runs, &run).says.contains("2 of the 3"));
    runs.push(named(&mut run, "three"));
    assert_eq!(claim(&runs, &run).says, "held on 3 models");
    runs[0].meta.machine = "another".into();
    assert_eq!(claim(&runs, &run).effects.len(), 2);
}
