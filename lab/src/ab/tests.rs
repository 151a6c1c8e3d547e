//! The runner on recorded time.
