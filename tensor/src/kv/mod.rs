//! The KV cache: blocks of 64 positions, keys as `[channel][position]`, values as `[position][channel]`, as halves or
//! packed.
//!
//! `format` names what a side can be kept in, `layout` says where things lie and which queries need them, `codec` is the
//! reference of the packed formats, `rotation` turns what is packed into few bits. Nothing here knows which sequence
//! owns a block (the engine's policy) nor how a device attends (its kernels).

pub mod codec;
mod format;
mod layout;
pub mod rotation;

pub use format::{Bits, DEFAULT_SINKS, DEFAULT_WINDOW, Format, KvSettings, MOST_SINKS};
pub use layout::{Codes, KvGroup, KvLayer, KvLayout, Place, Role, Side, SideKind};

/// Positions in one block, and the tile of the softmax fold: a constant of the cache, never of the machine.
pub const BLOCK_POSITIONS: usize = 64;

/// Positions that are packed together: half a block.
pub const GROUP_POSITIONS: usize = 32;

/// A block of one group's pool. [`BlockId::NONE`] marks a block already freed behind a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// No block: its positions are never attended.
    pub const NONE: BlockId = BlockId(u32::MAX);
}
