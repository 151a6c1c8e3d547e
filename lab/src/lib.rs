//! plumb's laboratory: how fast a model should run, how fast it does, and whether a difference is real.
//!
//! It takes devices and models as values and never names a backend; it does not know how anything is computed.
#![forbid(unsafe_code)]

pub mod ab;
pub mod arms;
pub mod bench;
pub mod clock;
mod error;
pub mod fit;
pub mod guards;
pub mod machine;
pub mod plot;
pub mod preflight;
pub mod probes;
pub mod quality;
pub mod results;
pub mod roofline;
pub mod stats;
#[cfg(test)]
mod testing;
pub mod traps;

pub use error::{Error, Result};
