//! Model specifications, the plan, tokenizers, chat templates, samplers and sequences.
//!
//! It runs models on any [`tensor`] device handed to it; it names no backend and has no unsafe code.
//!
//! # From a file to text
//! ```
//! use std::{io::Write, sync::Arc};
//! use engine::{GenerateOptions, LoadOptions, Model, prepare::prepare, tokenizer::{Special, Tokenizer}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = tensor::files::WeightFile::open("../golden/models/llama-64.gguf")?;
//! let prepared = prepare(&file)?;
//! let weights = Arc::new(prepared.in_memory(&file)?);
//! let tokenizer = Tokenizer::build(prepared.tokenizer.as_ref().ok_or("no tokenizer")?)?;
//! let device = cpu::CpuDevice::best()?;
//! let mut model = Model::load(&device, prepared.bundle.spec, weights, &LoadOptions::default())?;
//! let prompt = tokenizer.encode("Once upon a time", Special::AsText, true)?;
//! let options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
//! for chunk in model.generate(&tokenizer, &prompt, options)? {
//!     print!("{}", chunk?.text);
//!     std::io::stdout().flush()?;
//! }
//! # Ok(())
//! # }
//! ```
//! `examples/batch.rs` steps a batch of sequences by hand.
#![forbid(unsafe_code)]

pub mod arch;
mod error;
mod fingerprint;
mod generate;
mod kv;
pub mod memory;
mod model;
pub mod open;
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
