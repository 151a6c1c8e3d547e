//! The one error type of this crate. A message names the thing, what was expected and what was found.

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong between a model file and its tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Weight files, prepared weights, devices.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// Sampler settings, or logits from which nothing can be drawn.
    #[error(transparent)]
    Sample(#[from] crate::sample::Error),
    /// A tokenizer.json that the tokenizer library refuses, or a text it cannot encode.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A chat template that does not parse, or fails while it renders.
    #[error("chat template: {0}")]
    Template(String),
    /// A chat template called `raise_exception`: the conversation is not one that the model was trained for.
    #[error("the model's chat template refuses this conversation: {0}")]
    TemplateRefused(String),
    /// A model of a family that plumb has no mapping for.
    #[error("unknown architecture {found}; known are {known}")]
    UnknownArchitecture {
        /// What the file calls itself.
        found: String,
        /// Every name in the registry.
        known: String,
    },
    /// More positions than the sequence may have.
    #[error("{tokens} tokens {}do not fit into the context of {context}", after(*.position))]
    ContextFull {
        /// Tokens that were to be added.
        tokens: usize,
        /// Positions already held.
        position: usize,
        /// The limit.
        context: usize,
    },
    /// A context that the model was not made for.
    #[error("a context of {asked} tokens was asked for; the model's is {model}")]
    ContextBeyondModel {
        /// Tokens asked for.
        asked: usize,
        /// The model's limit.
        model: usize,
    },
    /// Not enough memory for what was asked; the numbers say what fits.
    #[error(
        "{context} tokens of context for {sequences} sequences need {needed_bytes} bytes ({kv_bytes} of them for the \
         KV cache); {available_bytes} are available, in which {fits} tokens fit"
    )]
    DoesNotFit {
        /// Tokens per sequence asked for.
        context: usize,
        /// Sequences asked for.
        sequences: usize,
        /// All bytes that must be had.
        needed_bytes: u64,
        /// The cache's share.
        kv_bytes: u64,
        /// Bytes that can be had.
        available_bytes: u64,
        /// The largest context per sequence that fits; 0 where none does.
        fits: usize,
    },
    /// Every block of the cache is in use by live sequences.
    #[error("the KV cache is full: {needed} blocks of 64 positions needed, {free} of {total} free")]
    CacheFull {
        /// Blocks that the step needs.
        needed: usize,
        /// Blocks that are free or can be evicted.
        free: usize,
        /// The pool's size in that group.
        total: usize,
    },
    /// A request that contradicts itself or the model.
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// The argument.
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
}

fn after(position: usize) -> String {
    if position == 0 { String::new() } else { format!("after {position} earlier ones ") }
}

impl Error {
    /// An argument that may not be so.
    pub fn invalid(what: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Self {
        Error::Invalid { what: what.into(), expected: expected.into(), found: found.to_string() }
    }
}
