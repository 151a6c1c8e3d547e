//! Model specifications, the plan, tokenizers, chat templates, samplers and sequences.
//!
//! It runs models on any [`tensor`] device handed to it; it names no backend and has no unsafe code.
#![forbid(unsafe_code)]

pub mod arch;
mod error;
mod fingerprint;
mod generate;
mod kv;
pub mod memory;
mod model;
pub mod plan;
pub mod prepare;
pub mod rope;
pub mod sample;
mod sequence;
pub mod spec;
pub mod stop;
pub mod template;
pub mod tokenizer;

pub use error::{Error, Result};
pub use fingerprint::Fingerprint;
pub use generate::{Chunk, FingerprintScope, FinishReason, Finished, GenerateOptions, Generation};
pub use kv::CacheUse;
pub use model::{Feed, LoadOptions, LogitSink, Model};
pub use sequence::Sequence;
pub use tensor::device::LogitRows;
