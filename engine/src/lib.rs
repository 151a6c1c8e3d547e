//! Model specifications, the plan, tokenizers, chat templates, samplers and sequences.
//!
//! It runs models on any [`tensor`] device handed to it; it names no backend and has no unsafe code.
#![forbid(unsafe_code)]

mod error;
pub mod stop;
pub mod template;
pub mod tokenizer;

pub use error::{Error, Result};
