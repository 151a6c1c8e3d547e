//! The one error type of this crate. A message names the thing, what was expected and what was found.

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a weight file and text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Weight files, metadata, devices.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// A tokenizer.json that the tokenizer library refuses, or a text it cannot encode.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A chat template that does not parse, or fails while it renders.
    #[error("chat template: {0}")]
    Template(String),
    /// A chat template called `raise_exception`: the conversation is not one that the model was trained for.
    #[error("the model's chat template refuses this conversation: {0}")]
    TemplateRefused(String),
}
