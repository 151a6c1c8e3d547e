//! What the database keeps, as values. They are written once and never changed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Settings by name, in an order that does not depend on how they were typed.
pub type Settings = BTreeMap<String, String>;

/// The program that measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The release.
    pub version: String,
    /// The commit, with `+` where the tree had changes; empty where unknown.
    pub revision: String,
    /// Cargo features and the profile.
    pub features: String,
    /// The kernel table; empty where none ran.
    pub kernels: String,
}

/// The model that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelId {
    /// Of the weights.
    pub hash: String,
    /// What people call it.
    pub name: String,
    /// Its precision class: encodings of weights, activations and cache, such as `Q4_1+Q8_0/int8/kv-f16`.
    pub precision: String,
}

/// What is known when a run begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunMeta {
    /// The command: `ab`, `bench`, `probe`, `roofline`, `fit`, `quality`.
    pub kind: String,
    /// [`crate::machine::Machine::fingerprint`].
    pub machine: String,
    /// The machine for people, as JSON.
    pub machine_description: serde_json::Value,
    /// The program.
    pub build: Build,
    /// The model, where one is measured.
    pub model: Option<ModelId>,
    /// What was run: depths, batch sizes, prompts.
    pub workload: serde_json::Value,
    /// What was expected before it ran; null where nothing was.
    pub prediction: serde_json::Value,
    /// What preflight read.
    pub preflight: serde_json::Value,
    /// Reasons to doubt every row of the run; empty for a sound one.
    pub marks: Vec<String>,
    /// What was typed.
    pub command: String,
}

/// One side of a comparison, or the only one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmRow {
    /// `a`, `b`, or a name.
    pub label: String,
    /// What it was asked for.
    pub asked: Settings,
    /// What the engine said it did.
    pub applied: Settings,
    /// Its precision class.
    pub precision: String,
    /// A hash over what it answered, where there is one.
    pub fingerprint: Option<String>,
}

/// One timed piece of work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleRow {
    /// Index into the run's arms.
    pub arm: Option<usize>,
    /// `aa`, `ab`, `prompt`, `generation`, …
    pub phase: String,
    /// Which pair or repetition it belongs to.
    pub pair: u32,
    /// Its place in the order of execution.
    pub place: u32,
    /// When it began, in nanoseconds since the run's start.
    pub at_ns: u64,
    /// How long it took.
    pub elapsed_ns: u64,
    /// Tokens, or repetitions of whatever was timed.
    pub tokens: u64,
    /// Bytes that it must have moved; 0 where that is not known.
    pub bytes: u64,
    /// What else belongs to it; null where nothing does.
    #[serde(default)]
    pub detail: serde_json::Value,
}

impl SampleRow {
    /// Tokens per second; 0 for a sample that took no time.
    pub fn rate(&self) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { self.tokens as f64 * 1e9 / self.elapsed_ns as f64 }
    }
}

/// A derived number with its interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is: `generation`, `prompt`, `peak_memory`, `read_bandwidth`, …
    pub name: String,
    /// Its unit: `tokens/s`, `s`, `bytes`, `bytes/s`, `ratio`.
    pub unit: String,
    /// Where on the plot's horizontal axis it stands, such as a depth; none where it stands alone.
    pub x: Option<f64>,
    /// The number.
    pub value: f64,
    /// Lower end of its interval.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// What was expected.
    pub predicted: Option<f64>,
    /// What else distinguishes it: `{"batch": 4}`, `{"working_set_bytes": …}`; null where nothing does.
    #[serde(default)]
    pub detail: serde_json::Value,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it was meant to.
    Complete,
    /// Cut short; what was measured until then is there.
    Partial,
    /// An error; what was measured until then is there.
    Failed,
}

impl State {
    /// As the database has it.
    pub fn name(self) -> &'static str {
        match self {
            State::Complete => "complete",
            State::Partial => "partial",
            State::Failed => "failed",
        }
    }

    pub(super) fn of(name: &str) -> State {
        match name {
            "complete" => State::Complete,
            "failed" => State::Failed,
            _ => State::Partial,
        }
    }
}

/// A whole run, as it is read back and exported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its number in this database.
    pub id: i64,
    /// When it began, RFC 3339.
    pub begun_at: String,
    /// What was known then.
    pub meta: RunMeta,
    /// A run that never said how it ended is partial.
    pub state: State,
    /// When it ended.
    pub ended_at: Option<String>,
    /// What came of it; null where there is none.
    pub verdict: serde_json::Value,
    /// Reasons to doubt it that were found while it ran.
    pub end_marks: Vec<String>,
    /// Its arms, in order.
    pub arms: Vec<ArmRow>,
    /// Every sample, in order.
    pub samples: Vec<SampleRow>,
    /// Every derived number, in order.
    pub figures: Vec<Figure>,
}

impl Run {
    /// All reasons to doubt it.
    pub fn marks(&self) -> impl Iterator<Item = &String> {
        self.meta.marks.iter().chain(&self.end_marks)
    }

    /// What may share a line with it: machine, model and precision class.
    pub fn series(&self) -> (String, String, String) {
        let model = self.meta.model.as_ref();
        let precision = model.map(|m| m.precision.clone()).unwrap_or_default();
        (self.meta.machine.clone(), model.map(|m| m.name.clone()).unwrap_or_default(), precision)
    }
}
