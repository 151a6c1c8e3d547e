//! The arms of a comparison: whatever can do a piece of work, say how it was set up, and be timed.
//!
//! An arm knows how its work is done and timed; it does not know what it is compared with.

mod command;
mod plumb;
mod server;
mod slowed;

use serde_json::Value;

pub(crate) use command::last_json;
pub use command::{CommandArm, Limit, Output, Pattern, Reading, Unrun, run_command};
pub use plumb::{Loaded, Phase, PlumbArm, Workload};
pub use server::{ServerArm, ServerWork};
pub use slowed::Slowed;

use crate::Result;
use crate::results::Settings;

/// What an arm answered, to be compared before any time is trusted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Tokens, where the arm shows them.
    pub tokens: Vec<u32>,
    /// Text, where it shows only that.
    pub text: Option<String>,
    /// A hash over the bits of the logits.
    pub logits_hash: Option<String>,
    /// Rows of logits for the same tokens, for arms that may differ in precision.
    pub logits: Vec<Vec<f32>>,
}

impl Answer {
    /// Whether there is anything to compare.
    pub fn is_shown(&self) -> bool {
        !self.tokens.is_empty() || self.text.is_some() || self.logits_hash.is_some()
    }
}

/// An arm that is ready: built, loaded, run once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ready {
    /// What it says it does, read back from it.
    pub applied: Settings,
    /// Its precision class; empty where it does not say.
    pub precision: String,
    /// What it answered.
    pub answer: Answer,
    /// What should be known about every row of it.
    pub notes: Vec<String>,
}

/// One timed piece of work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// How long it took.
    pub elapsed_ns: u64,
    /// Tokens done.
    pub tokens: u64,
    /// Bytes that it must have moved; 0 where unknown.
    pub bytes: u64,
    /// Prompt tokens that came from a cache although they were to be computed.
    pub cached_tokens: u64,
    /// What else belongs to the sample.
    pub detail: Value,
}

/// Something that can be timed.
pub trait Arm {
    /// What people call it.
    fn label(&self) -> &str;

    /// What was asked of it.
    fn asked(&self) -> Settings;

    /// Builds, loads and runs it once, outside of any timer.
    ///
    /// # Errors
    /// It cannot run.
    fn prepare(&mut self) -> Result<Ready>;

    /// Does `inner` repetitions of its work and times them. `turn` differs in every call, so that inputs can.
    ///
    /// # Errors
    /// It failed, hung, or gave no figure.
    fn take(&mut self, inner: u64, turn: u64) -> Result<Taken>;

    /// Bytes that one repetition moves, where the arm can repeat within a sample; `None` for a command or a server, whose
    /// sample is one run.
    fn bytes_per_repetition(&self) -> Option<u64>;

    /// The most repetitions that one sample can hold.
    fn most_repetitions(&self) -> u64 {
        u64::MAX
    }

    /// Whether its work is done by another process that is not a child of this one, whose time counts as someone else's.
    fn is_elsewhere(&self) -> bool {
        false
    }
}
