//! Weight files as they come: what tensors and metadata a container holds, checked, and where each tensor's bytes lie.
//!
//! It does not know what the metadata mean for a model.

mod metadata;

pub use metadata::{Array, Metadata, Value};
