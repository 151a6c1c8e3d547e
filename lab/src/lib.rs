//! plumb's laboratory: how fast a model should run, how fast it does, and whether a difference is real.
//!
//! It takes devices and models as values and never names a backend; it does not know how anything is computed.
#![forbid(unsafe_code)]

pub mod clock;
mod error;
pub mod machine;
pub mod plot;
pub mod probes;
pub mod roofline;
pub mod stats;

pub use error::{Error, Result};
