//! Two stored runs side by side. They were not interleaved, so no verdict comes of it; that is what `plumb ab` is for.

use serde::Serialize;

use super::rows::{Figure, Run};

/// The figures that both runs have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Name, x, detail, unit, the two values and second over first.
    pub rows: Vec<Row>,
    /// Why the two may not be compared; empty where they may.
    pub refusals: Vec<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// One figure of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The first run's.
    pub first: Figure,
    /// The second's.
    pub second: Figure,
    /// second over first; none where the first is zero.
    pub ratio: Option<f64>,
}

/// Compares two runs figure by figure. Runs of different machines, kinds, models or precision classes are not compared: the
/// reasons are in `refusals`, and there are no rows.
pub fn compare(first: &Run, second: &Run) -> Comparison {
    let mut refusals = Vec::new();
    let mut same = |what: &str, a: &str, b: &str| {
        if a != b {
            refusals.push(format!("{what}: {a} and {b}"));
        }
    };
    let ((machine_a, model_a, precision_a), (machine_b, model_b, precision_b)) =
        (first.series(), second.series());
    same("machines", &machine_a, &machine_b);
    same("commands", &first.meta.kind, &second.meta.kind);
    same("models", &model_a, &model_b);
    same("precision classes", &precision_a, &precision_b);
    same("workloads", &first.meta.workload.to_string(), &second.meta.workload.to_string());
    let mut notes = vec![
        "measured at different times, so a difference may be the machine's; `plumb ab` decides".to_owned(),
    ];
    for run in [first, second] {
        notes.extend(run.marks().map(|mark| format!("run {}: {mark}", run.id)));
        if run.state != super::State::Complete {
            notes.push(format!("run {} is {}", run.id, run.state.name()));
        }
    }
    let mut rows = Vec::new();
    if refusals.is_empty() {
        for a in &first.figures {
            let is_same =
                |b: &&Figure| b.name == a.name && b.x == a.x && b.detail == a.detail && b.unit == a.unit;
            if let Some(b) = second.figures.iter().find(is_same) {
                let ratio = (a.value != 0.0).then(|| b.value / a.value);
                rows.push(Row { first: a.clone(), second: b.clone(), ratio });
            }
        }
    }
    Comparison { rows, refusals, notes }
}
