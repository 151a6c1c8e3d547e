//! What can go wrong in the laboratory, in words that name the thing, what was expected and what was found.

use std::path::PathBuf;

use crate::guards::Caught;

/// The laboratory's errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, its files or its memory.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// A file or folder.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A value that cannot be meant.
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// What it was for.
        what: String,
        /// What would do.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A results database that cannot be used; it was not changed.
    #[error("{}: {why}; it was not changed, and a copy was kept in {}", path.display(), copy.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What is the matter.
        why: String,
        /// Where the copy lies.
        copy: PathBuf,
    },
    /// The database's own words.
    #[error("{what}: {source}")]
    Sqlite {
        /// What was being done.
        what: String,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A guard found a measurement that would mislead.
    #[error(transparent)]
    Caught(#[from] Caught),
    /// An arm of a comparison that cannot be measured.
    #[error("arm {arm}: {why}")]
    Arm {
        /// Its label.
        arm: String,
        /// What happened.
        why: String,
    },
    /// A picture that could not be drawn.
    #[error("plot: {0}")]
    Plot(String),
    /// The person ended the work; what was measured has been kept.
    #[error("interrupted")]
    Interrupted,
}

/// A result with the laboratory's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A value that cannot be meant.
    pub fn invalid(
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Error {
        Error::Invalid { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// An arm that cannot be measured.
    pub fn arm(arm: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Arm { arm: arm.into(), why: why.into() }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }

    pub(crate) fn sqlite(what: impl Into<String>) -> impl FnOnce(rusqlite::Error) -> Error {
        let what = what.into();
        move |source| Error::Sqlite { what, source }
    }
}
