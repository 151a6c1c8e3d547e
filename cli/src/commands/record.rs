//! Keeping what `probe`, `roofline`, `fit` and `quality` found in the results database, with what else the machine did
//! meanwhile. A database that cannot take it is a note, not a failure: the figures were shown.

use std::time::Instant;

use lab::machine::Machine;
use lab::preflight::{self, Counters, Limits};
use lab::results::{Figure, ModelId, Recorder, RunMeta, SampleRow, State};
use serde_json::Value;

use super::lab::{Store, build, counters};
use crate::progress::note;

/// A run that has begun.
pub(super) struct Record {
    kind: &'static str,
    before: Counters,
    started: Instant,
}

/// What a run is of.
pub(super) struct Of<'a> {
    pub(super) kernels: &'a str,
    pub(super) model: Option<ModelId>,
    pub(super) workload: Value,
    /// What was expected before it ran.
    pub(super) prediction: Value,
}

impl Record {
    /// From here on the machine is watched.
    pub(super) fn begin(kind: &'static str) -> Record {
        Record { kind, before: counters(), started: Instant::now() }
    }

    /// Keeps the run, marked with what disturbed it.
    pub(super) fn keep(self, store: &Store, of: Of<'_>, figures: Vec<Figure>, samples: Vec<SampleRow>) {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-3);
        let traffic = preflight::traffic(&self.before, &counters(), seconds);
        let report = preflight::during(&traffic, &Limits::default());
        for check in report.failures() {
            note(format!("while it was measured, {}: {} (limit {})", check.name, check.found, check.limit));
        }
        let mut database = match store.open() {
            Ok(database) => database,
            Err(error) => return note(format!("not kept in the results: {error:#}")),
        };
        let machine = Machine::here();
        let meta = RunMeta {
            kind: self.kind.into(),
            machine: machine.fingerprint(),
            machine_description: serde_json::to_value(&machine).unwrap_or_default(),
            build: build(of.kernels),
            model: of.model,
            workload: of.workload,
            prediction: of.prediction,
            preflight: serde_json::to_value(&report).unwrap_or_default(),
            marks: Vec::new(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        };
        let mut recorder = Recorder::begin(&mut database, meta);
        figures.into_iter().for_each(|figure| recorder.figure(figure));
        samples.into_iter().for_each(|sample| recorder.sample(sample));
        note(recorder.end(State::Complete, Value::Null, report.marks()).to_string());
    }
}

/// A figure with an interval of relative half-width `noise`.
pub(super) fn figure(name: &str, unit: &str, x: Option<f64>, value: f64, noise: Option<f64>) -> Figure {
    Figure {
        name: name.into(),
        unit: unit.into(),
        x,
        value,
        low: noise.map(|n| value * (1.0 - n)),
        high: noise.map(|n| value * (1.0 + n)),
        ..Figure::default()
    }
}
