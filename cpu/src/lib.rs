//! The CPU device: kernel tables by instruction set, a thread pool for the step, and the executor of plans.
//!
//! It knows no model, tokenizer or sampler; it runs [`tensor::op::Plan`]s.

mod attention;
mod device;
mod executor;
mod isa;
mod lanes;
mod math;
mod memory;
#[cfg(test)]
mod packed_tests;
mod panel;
mod pool;
mod probe;
mod rows;
mod table;
#[cfg(test)]
mod tests;

pub use device::{CpuDevice, default_threads};
pub use isa::Isa;
pub use probe::CpuProbes;
