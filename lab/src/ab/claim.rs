//! The third model: on how many models a difference between the same two arms has been seen.

use serde::Serialize;

use crate::guards::three_models;
use crate::results::{Run, State};

/// What stored comparisons of the same two arms say together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Model and effect (ratio − 1) of the latest complete comparison on each.
    pub effects: Vec<(String, f64)>,
    /// How far the claim goes, in words.
    pub says: String,
}

/// Gathers the complete comparisons on the same machine that came out faster or slower and asked the same of both arms and of the workload.
pub fn claim(runs: &[Run], like: &Run) -> Claim {
    let asked = |run: &Run| -> Vec<_> { run.arms.iter().map(|arm| arm.asked.clone()).collect() };
    let mut effects: Vec<(String, f64)> = Vec::new();
    for run in runs.iter().filter(|r| r.state == State::Complete && r.meta.kind == "ab") {
        // Only what was called is a claim.
        let called = run.verdict["verdict"]["verdict"].as_str();
        let same = called.is_some_and(|v| v == "faster" || v == "slower")
            && run.meta.machine == like.meta.machine
            && asked(run) == asked(like)
            && run.meta.workload == like.meta.workload;
        let model = run.meta.model.as_ref();
        let ratio = run.figures.iter().find(|f| f.name == "ratio");
        if let (true, Some(model), Some(ratio)) = (same, model, ratio) {
            effects.retain(|(name, _)| *name != model.name);
            effects.push((model.name.clone(), ratio.value - 1.0));
        }
    }
    let named: Vec<(&str, f64)> = effects.iter().map(|(n, e)| (n.as_str(), *e)).collect();
    let says = match three_models(&named) {
        _ if named.is_empty() => "no difference has been called yet".to_owned(),
        Ok(()) => format!("held on {} models", named.len()),
        Err(caught) => caught.message,
    };
    Claim { effects, says }
}
