//! The CPU device: kernel tables by instruction set, a thread pool for the step, and the executor of plans.
//!
//! It knows no model, tokenizer or sampler; it runs [`tensor::op::Plan`]s.

mod attention;
mod isa;
mod lanes;
mod math;
mod panel;
mod rows;
mod table;

pub use isa::Isa;
