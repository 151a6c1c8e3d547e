//! One sequence of tokens with its place in the cache.
//!
//! Dropping a sequence gives its blocks back, or leaves them as a prefix that later sequences can share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Result;
use crate::kv::{Cache, Table};

/// A sequence whose positions the cache holds. It is made by [`crate::Model::sequence`] and grows by
/// [`crate::Model::step`].
#[derive(Debug)]
pub struct Sequence {
    pub(crate) table: Table,
    pub(crate) cache: Arc<Mutex<Cache>>,
    reused: usize,
}

/// The cache, also after another thread panicked while it held the lock: its tables are consistent between calls.
pub(crate) fn locked(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sequence {
    /// A sequence that starts with what a kept prefix shares with `prompt`; the rest is still to be stepped.
    pub(crate) fn start(cache: &Arc<Mutex<Cache>>, prompt: &[u32]) -> Self {
        let table = locked(cache).start(prompt);
        Sequence { reused: table.len(), table, cache: Arc::clone(cache) }
    }

    /// A sequence that holds a table.
    pub(crate) fn holding(cache: &Arc<Mutex<Cache>>, table: Table) -> Self {
        Sequence { reused: table.len(), table, cache: Arc::clone(cache) }
    }

    /// Positions that the cache holds.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True before the first step of a sequence that reused nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens at those positions.
    pub fn tokens(&self) -> &[u32] {
        &self.table.tokens
    }

    /// Positions that came from a kept prefix rather than from a step.
    pub fn reused(&self) -> usize {
        self.reused
    }

    /// Another sequence with the same content. Both share blocks until one of them writes.
    pub fn fork(&self) -> Sequence {
        let table = locked(&self.cache).share(&self.table);
        Sequence { table, cache: Arc::clone(&self.cache), reused: self.reused }
    }

    /// Returns to the first `len` positions.
    ///
    /// # Errors
    /// `len` is beyond the end, or a sliding layer has dropped positions that the next query would see.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        locked(&self.cache).truncate(&mut self.table, len)
    }

    /// Gives the blocks back without keeping them: what they hold is not what the tokens say.
    pub(crate) fn discard(&mut self) {
        locked(&self.cache).discard(std::mem::take(&mut self.table));
    }

    /// Keeps what is here for other sequences to start from, while this one goes on. At the end of a prompt or a
    /// turn this is what makes a later request with the same beginning cheap.
    pub fn keep(&self) {
        locked(&self.cache).checkpoint(&self.table);
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        locked(&self.cache).finish(std::mem::take(&mut self.table));
    }
}
