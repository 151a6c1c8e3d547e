//! What every other crate of plumb agrees on: data types and block encodings, weight files, prepared panels,
//! operations with their work, the `Device` trait and the layouts of the KV cache.
//!
//! It knows no model architecture, no tokenizer, no kernel beyond scalar reference decoders, and no backend.

pub mod blocks;
pub mod device;
pub mod dtype;
mod error;
pub mod files;
pub mod kv;
pub mod map;
pub mod op;
pub mod panels;
pub mod probe;
pub mod reservoir;
pub mod work;

pub use dtype::Encoding;
pub use error::{Error, Result};
