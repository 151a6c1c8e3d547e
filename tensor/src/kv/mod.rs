//! The layout of the KV cache: blocks of 64 positions, keys as `[channel][position]`, values as `[position][channel]`.
//!
//! It does not know which sequence owns a block (the engine's policy) nor how a device attends (its kernels).

/// Positions in one block, and the tile of the softmax fold: a constant of the cache, never of the machine.
pub const BLOCK_POSITIONS: usize = 64;

/// A block of one group's pool. [`BlockId::NONE`] marks a block already freed behind a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// No block: its positions are never attended.
    pub const NONE: BlockId = BlockId(u32::MAX);
}

/// The cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// KV heads.
    pub kv_heads: usize,
    /// Channels of a key head.
    pub k_dim: usize,
    /// Channels of a value head.
    pub v_dim: usize,
    /// Index into [`KvLayout::groups`].
    pub group: usize,
    /// Bytes from a block's start to this layer's part.
    pub offset: usize,
}

/// Layers that keep their positions equally long, and so share block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Positions behind which blocks may be freed; `None` keeps all.
    pub window: Option<usize>,
    /// Bytes of one block: all layers of the group.
    pub block_bytes: usize,
}

/// The layout of a model's f16 cache. Within a block each layer holds, per KV head, keys f16 `[k_dim][64]`, then for
/// all heads values f16 `[64][v_dim]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    /// Every layer that stores.
    pub layers: Vec<KvLayer>,
    /// Groups of equal retention.
    pub groups: Vec<KvGroup>,
}

impl KvLayout {
    /// Adds a layer; layers with the same window share a group. Returns its index.
    pub fn push(&mut self, kv_heads: usize, k_dim: usize, v_dim: usize, window: Option<usize>) -> usize {
        let group = self.groups.iter().position(|g| g.window == window).unwrap_or_else(|| {
            self.groups.push(KvGroup { window, block_bytes: 0 });
            self.groups.len() - 1
        });
        let offset = self.groups[group].block_bytes;
        self.groups[group].block_bytes += kv_heads * (k_dim + v_dim) * BLOCK_POSITIONS * 2;
        self.layers.push(KvLayer { kv_heads, k_dim, v_dim, group, offset });
        self.layers.len() - 1
    }

    /// Blocks that one sequence of `context` positions can hold at once in each group, when steps add at most
    /// `chunk` positions.
    pub fn blocks_for(&self, context: usize, chunk: usize) -> Vec<usize> {
        let blocks = |g: &KvGroup| {
            let all = context.div_ceil(BLOCK_POSITIONS);
            g.window.map_or(all, |w| all.min((w + chunk + BLOCK_POSITIONS).div_ceil(BLOCK_POSITIONS)))
        };
        self.groups.iter().map(blocks).collect()
    }

    /// Bytes of [`KvLayout::blocks_for`].
    pub fn bytes_for(&self, context: usize, chunk: usize) -> u64 {
        self.blocks_for(context, chunk)
            .iter()
            .zip(&self.groups)
            .map(|(&n, g)| (n * g.block_bytes) as u64)
            .sum()
    }
}

impl KvLayer {
    /// Bytes from a block's start to the keys of `head`, f16 `[k_dim][64]`.
    pub fn key_offset(&self, head: usize) -> usize {
        self.offset + head * self.k_dim * BLOCK_POSITIONS * 2
    }

    /// Bytes from a block's start to the values of `head`, f16 `[64][v_dim]`.
    pub fn value_offset(&self, head: usize) -> usize {
        self.offset + (self.kv_heads * self.k_dim + head * self.v_dim) * BLOCK_POSITIONS * 2
    }
}
