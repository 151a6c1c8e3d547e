//! The one error type of this crate. A message names the thing, what was expected and what was found.

use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with weight files, prepared weights and devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A file's content contradicts its format.
    #[error("{what}: expected {expected}, found {found}")]
    Malformed {
        /// The field, tensor or section, with the file where known.
        what: String,
        /// What the format asks for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Metadata that the reader of a model needs is not there.
    #[error("missing {what}")]
    Missing {
        /// The key or tensor that is absent.
        what: String,
    },
    /// The thing is understood and not offered.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// The feature, encoding or file.
        what: String,
        /// The reason, and what is offered instead where there is something.
        why: String,
    },
    /// Memory that a request needs and this machine or process does not have.
    #[error("not enough memory for {what}: {needed_bytes} bytes needed, {available_bytes} available")]
    OutOfMemory {
        /// What the memory is for.
        what: String,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes that could be had.
        available_bytes: u64,
    },
    /// A prepared file of another version of the format: packing the source again cures it.
    #[error("{}: expected pack format {expected}, found {found}", path.display())]
    PackVersion {
        /// The `.plumb` file.
        path: PathBuf,
        /// The version that this build reads and writes.
        expected: u32,
        /// The file's version.
        found: u32,
    },
    /// Stored bytes are not those that were written.
    #[error("{what}: expected checksum {expected}, found {found}")]
    Checksum {
        /// The tensor or section, with its file.
        what: String,
        /// The checksum recorded when it was written.
        expected: String,
        /// The checksum of what is there now.
        found: String,
    },
}

impl Error {
    /// A file's content contradicts its format.
    pub fn malformed(what: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Error::Malformed { what: what.into(), expected: expected.into(), found: found.into() }
    }

    /// The operating system refused an operation on `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io { path: path.into(), source }
    }

    /// The thing is understood and not offered.
    pub fn unsupported(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into(), why: why.into() }
    }
}
