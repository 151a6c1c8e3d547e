//! Model specifications, the plan, tokenizers, chat templates, samplers and sequences.
//!
//! It runs models on any [`tensor`] device handed to it; it names no backend and has no unsafe code.
//!
//! # From a file to text
//! The device is the `cpu` crate's.
//!
//! ```
//! use engine::{GenerateOptions, LoadOptions, Model, open::open, tokenizer::Special};
//!
//! # fn main() -> engine::Result<()> {
//! # let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/models/llama-64.gguf"));
//! let opened = open(path, None, &mut |_| {})?; // or a folder for prepared weights in place of None
//! let tokenizer = opened.tokenizer()?;
//! let device = cpu::CpuDevice::best()?;
//! let mut model = Model::load(&device, opened.bundle.spec, opened.weights, &LoadOptions::default())?;
//! let prompt = tokenizer.encode("Once upon a time", Special::AsText, true)?;
//! let options = GenerateOptions { max_tokens: Some(16), ..GenerateOptions::default() };
//! for chunk in model.generate(&tokenizer, &prompt, options)? {
//!     print!("{}", chunk?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
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
mod saved;
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
