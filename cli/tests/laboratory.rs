//! `roofline`'s driver, `fit` and `quality` on small models: what they count and compare, never how long it took.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};

use common::*;
use cpu::{CpuDevice, Isa};
use engine::{Feed, Fingerprint, LoadOptions, LogitRows, Model, open::open};
use lab::roofline::Driver;
use tensor::device::{OpSink, StepTimes};

fn device() -> CpuDevice {
    CpuDevice::new(Isa::best(), 2).unwrap()
}

#[derive(Clone, Default)]
struct Counts(Arc<Mutex<Vec<usize>>>);

impl OpSink for Counts {
    fn step(&mut self, times: &StepTimes<'_>) {
        assert!(times.setup_ns + times.ops_ns.iter().sum::<u64>() <= times.total_ns);
        self.0.lock().unwrap().push(times.ops_ns.len());
    }
}

/// Timing tells of every operation of every step, and changes no bit.
#[test]
fn timed_steps_give_the_same_logits() {
    let opened = open(&golden("gemma3-256.gguf"), None, &mut |_| {}).unwrap();
    let mut model =
        Model::load(&device(), opened.bundle.spec, opened.weights, &LoadOptions::default()).unwrap();
    let ops = model.plan().ops.len();
    let counts = Counts::default();
    let mut answers = Vec::new();
    for is_timed in [false, true, false] {
        model.time_operations(is_timed.then(|| Box::new(counts.clone()) as Box<dyn OpSink>)).unwrap();
        model.forget_prefixes();
        let mut sequence = model.sequence(&[]);
        let mut fingerprint = Fingerprint::new();
        for tokens in [&[1u32, 2, 3][..], &[4]] {
            let feed = Feed { sequence: &mut sequence, tokens, logits: LogitRows::Last };
            model.step_with(&mut [feed], &mut |_, _, row| fingerprint.update(row)).unwrap();
        }
        answers.push(fingerprint.value());
    }
    assert!(answers.iter().all(|a| *a == answers[0]));
    assert_eq!(*counts.0.lock().unwrap(), vec![ops; 2]);
}

/// Any depth within the context can be stepped at, without a prompt, beyond windows and for several sequences.
#[test]
fn the_driver_steps_at_any_depth() {
    for name in ["gemma3-256.gguf", "llama-64.gguf"] {
        let opened = open(&golden(name), None, &mut |_| {}).unwrap();
        let kind_of = |name: &str| opened.weights.entry(name).map(|e| e.kind);
        let plan = Arc::new(
            engine::plan::build(&opened.bundle.spec, &kind_of, 3, &tensor::kv::KvSettings::default())
                .unwrap(),
        );
        let mut driver = Driver::new(&device(), Arc::clone(&plan), opened.weights.clone(), 3, 200).unwrap();
        for context in [0, 1, 63, 64, 127, 128, 200] {
            let steps = driver.steps(context, 2, true).unwrap();
            assert_eq!(steps.len(), 2);
            assert!(steps.iter().all(|s| s.ops_ns.len() == plan.ops.len() && s.wall_ns > 0));
        }
        assert!(driver.steps(3, 1, false).unwrap()[0].ops_ns.is_empty());
        assert!(driver.steps(201, 1, false).unwrap_err().to_string().contains("at most 200"));
    }
}

fn command(cache: &Path) -> std::process::Command {
    let mut command = plumb(cache);
    command.env("PLUMB_DATA", cache);
    command
}

#[test]
fn fit_counts_for_a_described_machine() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let model = model.to_str().unwrap();
    let fit = |more: &[&str]| json(command(cache.path()).args(["fit", model]).args(more));
    let small = fit(&["--memory", "66MiB", "--bandwidth", "1GB/s", "--ctx", "64,128"]);
    let rows = small["fit"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let need = |row: &serde_json::Value| {
        let part = |name: &str| row["need"][name].as_u64().unwrap();
        part("weight_bytes") + part("kv_bytes") + part("overhead_bytes")
    };
    for row in rows {
        assert_eq!(row["fits"].as_bool().unwrap(), need(row) <= 66 << 20);
    }
    assert!(need(&rows[1]) > need(&rows[0]));
    // Twice the bandwidth is twice the speed.
    let speed =
        |report: &serde_json::Value| report["fit"]["rows"][0]["ceiling_tokens_per_s"].as_f64().unwrap();
    let fast = fit(&["--memory", "66MiB", "--bandwidth", "2GB/s", "--ctx", "64"]);
    assert!((speed(&fast) / speed(&small) - 2.0).abs() < 1e-9);
    // With less than the overhead nothing fits.
    assert_eq!(fit(&["--memory", "1MB"])["fit"]["largest_context"], 0);
}

#[test]
fn fit_refuses_what_it_cannot_mean() {
    let cache = tempfile::tempdir().unwrap();
    let model = golden("llama-64.gguf");
    let fit = |more: &[&str]| fails(command(cache.path()).arg("fit").arg(&model).args(more), 2);
    assert!(fit(&["--kv", "q1"]).contains("found q1"));
    assert!(fit(&["--memory", "much"]).contains("much"));
    assert!(fit(&["--bandwidth", "1GB/s"]).contains("--memory"));
    assert!(fit(&["--memory", "1GB", "--bandwidth", "1GB"]).contains("100GB/s"));
}

/// Two ways to run a model that must give the same bits: the instrument shows no difference.
#[test]
fn quality_finds_no_difference_where_there_is_none() {
    let cache = tempfile::tempdir().unwrap();
    let text = cache.path().join("text.txt");
    std::fs::write(&text, "the ferry left at six, before the fog had decided whether to stay. ".repeat(4))
        .unwrap();
    let mut quality = command(cache.path());
    quality.arg("quality").arg(golden("llama-64.gguf")).arg("--text").arg(&text);
    let report = json(quality.args(["--window", "64", "--against", "kernels=portable,threads=1"]));
    let arms = report["texts"][0]["arms"].as_array().unwrap();
    assert_eq!(arms.len(), 2);
    assert!(arms[0]["divergence"].is_null());
    let d = &arms[1]["divergence"];
    for (name, expected) in [("mean", 0.0), ("median", 0.0), ("p95", 0.0), ("max", 0.0), ("top1", 1.0)] {
        assert_eq!(d[name].as_f64().unwrap(), expected, "{name}");
    }
    assert_eq!(arms[0]["perplexity"], arms[1]["perplexity"]);
    // A random model knows nothing: its perplexity is of the vocabulary's order.
    assert!(arms[0]["perplexity"]["value"].as_f64().unwrap() > 20.0);
    let windows = report["texts"][0]["tokens"].as_u64().unwrap() / 64;
    assert_eq!(arms[0]["perplexity"]["positions"], windows * 31);
}

#[test]
fn quality_says_what_is_too_short_or_unknown() {
    let cache = tempfile::tempdir().unwrap();
    let text = cache.path().join("text.txt");
    std::fs::write(&text, "short").unwrap();
    let quality = |more: &[&str], code| {
        let mut quality = command(cache.path());
        quality.arg("quality").arg(golden("llama-64.gguf")).arg("--text").arg(&text);
        fails(quality.args(more), code)
    };
    assert!(quality(&["--window", "64"], 1).contains("at least one window of 64 tokens"));
    assert!(quality(&["--window", "64", "--against", "colour=red"], 2).contains("colour: no such setting"));
}
