//! The results database: every run with its machine, build, model, raw samples and verdict, only ever added to.
//!
//! It does not know what was measured, nor how it is shown.

mod compare;
mod plots;
mod recorder;
mod rows;
mod schema;
mod store;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, compare};
pub use plots::{Picture, figures, pairs};
pub use recorder::{Kept, Recorder};
pub use rows::{ArmRow, Build, Figure, ModelId, Run, RunMeta, SampleRow, Settings, State};
pub use store::{Database, Filter};
