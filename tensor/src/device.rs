//! What a backend offers: a device loads a plan with its weights into an executor, and the executor runs steps.
//!
//! It does not know what a sequence is for, nor who decides which blocks it may use.

use std::sync::Arc;

use crate::kv::BlockId;
use crate::op::{Kind, Plan};
use crate::{Error, Result};

/// Prepared weights by name. The bytes stay where they are (a mapping) for as long as the store lives.
pub trait WeightStore: Send + Sync {
    /// The tensor's kind and its bytes, 64-byte aligned; `None` where there is none of that name.
    fn get(&self, name: &str) -> Option<(Kind, &[u8])>;
}

/// Which logits of a span are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// None: the span only fills the cache.
    None,
    /// Those of the last token.
    Last,
    /// Those of every token.
    All,
}

/// New tokens of one sequence within a step.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// At least one token.
    pub tokens: &'a [u32],
    /// Position of `tokens[0]`: how many positions the cache already holds.
    pub start: usize,
    /// Per KV group, the block of positions 64b..64b+64 at index b, up to the span's end. Blocks that the span
    /// writes are this sequence's alone.
    pub tables: &'a [Vec<BlockId>],
    /// Which logits are wanted.
    pub logits: LogitRows,
}

impl Span<'_> {
    /// Rows of logits this span gives.
    pub fn logit_rows(&self) -> usize {
        match self.logits {
            LogitRows::None => 0,
            LogitRows::Last => 1,
            LogitRows::All => self.tokens.len(),
        }
    }
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// For people, with the processor's name.
    pub name: String,
    /// The kernel table in use, such as `avx512-vnni`.
    pub kernels: String,
    /// Threads of a step.
    pub threads: usize,
}

/// Memory that an executor holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorMemory {
    /// The KV pool, as reserved.
    pub kv_pool_bytes: u64,
    /// Step buffers and kernel scratch.
    pub scratch_bytes: u64,
}

/// A backend.
pub trait Device: Send + Sync {
    /// What this device is and how it was set up.
    fn info(&self) -> DeviceInfo;

    /// Makes a plan runnable: checks every weight against `weights` and reserves a pool of `kv_blocks[g]` blocks for
    /// each KV group.
    ///
    /// # Errors
    /// A weight that is missing or of another kind; memory that cannot be had.
    fn load(
        &self,
        plan: Arc<Plan>,
        weights: Arc<dyn WeightStore>,
        kv_blocks: &[usize],
    ) -> Result<Box<dyn Executor>>;
}

/// What one step took, told to an [`OpSink`].
#[derive(Clone, Copy, Debug)]
pub struct StepTimes<'a> {
    /// Nanoseconds from the step's beginning to the first operation.
    pub setup_ns: u64,
    /// Nanoseconds of each operation of the plan, synchronisation after it included.
    pub ops_ns: &'a [u64],
    /// Nanoseconds of the whole step as the executor saw it.
    pub total_ns: u64,
}

/// Takes the times of steps.
pub trait OpSink: Send {
    /// A step has ended.
    fn step(&mut self, times: &StepTimes<'_>);
}

/// A loaded plan with its cache and scratch. One step runs at a time.
pub trait Executor: Send {
    /// Runs one step and leaves `[sum of logit rows, vocabulary]` in `logits`, in the order of the spans.
    ///
    /// # Errors
    /// A step beyond the plan's limits, a token outside the vocabulary, a block outside the pool, a table too short.
    /// Nothing is written then.
    fn run(&mut self, step: &[Span<'_>], logits: &mut [f32]) -> Result<()>;

    /// Copies one block of a group's pool to another, for a sequence that continues inside a shared block.
    fn copy_block(&mut self, group: usize, from: BlockId, to: BlockId) -> Result<()>;

    /// Copies a block of a group's pool to `out`, which is as long as a block.
    ///
    /// # Errors
    /// A block outside the pool; a device that does not give its blocks.
    fn read_block(&self, _group: usize, _block: BlockId, _out: &mut [u8]) -> Result<()> {
        Err(Error::unsupported("saving a cache", "this device does not give its blocks"))
    }

    /// Overwrites a block of a group's pool with `bytes`, which are as long as a block.
    ///
    /// # Errors
    /// A block outside the pool; a device that does not take blocks.
    fn write_block(&mut self, _group: usize, _block: BlockId, _bytes: &[u8]) -> Result<()> {
        Err(Error::unsupported("loading a cache", "this device does not take blocks"))
    }

    /// Memory held.
    fn memory(&self) -> ExecutorMemory;

    /// From now on, times every operation of every step and tells `sink`; `None` ends it. Timing costs a clock reading
    /// an operation.
    ///
    /// # Errors
    /// The device cannot tell operations apart.
    fn time_operations(&mut self, _sink: Option<Box<dyn OpSink>>) -> Result<()> {
        Err(Error::unsupported("times of single operations", "this device does not take them"))
    }
}
