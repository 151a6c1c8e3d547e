//! plumb's laboratory: how fast a model should run, how fast it does, and whether a difference is real.
//!
//! It takes devices and models as values and never names a backend; it does not know how anything is computed.
#![forbid(unsafe_code)]

pub mod stats;
