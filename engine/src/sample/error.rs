//! What can go wrong between logits and a token. A message names the setting or the position, and what was found.

/// Result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that sampling can refuse.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting, or a part of a curve, lies outside what it may be.
    #[error("{what}: expected {expected}, found {found}")]
    Setting {
        /// The setting's name, or the part of the curve.
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The model gave a logit that is NaN or +∞.
    #[error(
        "position {position}: the logit of token {token} is {found}, expected a number below infinity; \
         the model's weights or its computation are broken"
    )]
    BrokenLogits {
        /// The position whose next token was to be drawn.
        position: u64,
        /// The first token concerned.
        token: u32,
        /// Its logit.
        found: f32,
    },
    /// Nothing is left to draw from.
    #[error("position {position}: no token can be drawn: {why}")]
    NoToken {
        /// The position whose next token was to be drawn.
        position: u64,
        /// What removed the tokens.
        why: &'static str,
    },
    /// The logits are not as many as the sampler's vocabulary has tokens.
    #[error("position {position}: expected {expected} logits, one per token, found {found}")]
    LogitCount {
        /// The position whose next token was to be drawn.
        position: u64,
        /// The vocabulary's size.
        expected: usize,
        /// Logits given.
        found: usize,
    },
    /// No seed was given and the system would not give one.
    #[error("no seed was given and the system gave no random one: {0}")]
    Seed(#[from] getrandom::Error),
}

impl Error {
    /// A setting that lies outside what it may be.
    pub(crate) fn setting(
        what: impl Into<String>,
        expected: impl Into<String>,
        found: impl std::fmt::Display,
    ) -> Self {
        Error::Setting { what: what.into(), expected: expected.into(), found: found.to_string() }
    }
}
