//! Where a model's cache keeps what, which positions a query needs of each part, and the bytes of it all.

use std::ops::Range;

use super::{BLOCK_POSITIONS, Bits, Format, GROUP_POSITIONS, KvSettings, codec};

/// What the blocks of a group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Halves of every position that a query sees.
    Whole,
    /// Halves of the positions that are not packed yet, for some query.
    Recent,
    /// Packed groups.
    Codes,
    /// Halves of the first positions: one block a sequence.
    Sinks,
}

/// Parts of layers that keep the same positions equally long, and so share block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// The sliding window of its layers' attention; `None` sees all.
    pub window: Option<usize>,
    /// What its blocks hold.
    pub role: Role,
    /// Bytes of one block: all layers of the group.
    pub block_bytes: usize,
}

/// A part of one layer within the blocks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into [`KvLayout::groups`].
    pub group: usize,
    /// Bytes from a block's start.
    pub offset: usize,
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideKind {
    /// `[channel][position]`, scales and zeros per channel.
    Keys,
    /// `[position][channel]`, scales and zeros per 32 channels of a position.
    Values,
}

/// The keys or the values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Which of the two.
    pub kind: SideKind,
    /// Channels of a head.
    pub dim: usize,
    /// Halves per head: keys `[dim][64]`, values `[64][dim]`.
    pub halves: Place,
    /// The packed groups; `None` for a side that stays halves.
    pub codes: Option<Codes>,
}

/// The packed part of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    /// Bits of a code.
    pub bits: Bits,
    /// Per head two groups of [`Side::group_bytes`].
    pub place: Place,
    /// Halves of the sinks per head, of stored sinks s: keys `[dim][s]`, values `[s][dim]`; `None` where there are none.
    pub sinks: Option<Place>,
}

/// The cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// KV heads.
    pub kv_heads: usize,
    /// The sliding window; `None` sees all.
    pub window: Option<usize>,
    /// Keys.
    pub keys: Side,
    /// Values.
    pub values: Side,
}

/// The layout of a model's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    /// How it stores.
    pub settings: KvSettings,
    /// Every layer that stores.
    pub layers: Vec<KvLayer>,
    /// Groups of equal retention.
    pub groups: Vec<KvGroup>,
}

impl Side {
    /// Bytes from a block's start to the halves of `head`.
    pub fn halves_offset(&self, head: usize) -> usize {
        self.halves.offset + head * self.dim * BLOCK_POSITIONS * 2
    }

    /// Bytes of one packed group of one head: codes `dim·4·bits`, then scales, then zeros, f16: of keys `[dim]`, of
    /// values `[⌈dim/32⌉][32 positions]`.
    ///
    /// Codes lie in units of 32 (`codec`): of keys one unit a channel; of values per position one unit for every 32
    /// channels, then for a last 16 channels one unit for every two positions.
    pub fn group_bytes(&self, bits: Bits) -> usize {
        self.codes_bytes(bits) + 2 * self.levels_bytes()
    }

    /// Bytes of a packed group's codes.
    pub fn codes_bytes(&self, bits: Bits) -> usize {
        self.dim * codec::unit_bytes(bits)
    }

    /// Bytes of a packed group's scales, and of its zeros.
    pub fn levels_bytes(&self) -> usize {
        match self.kind {
            SideKind::Keys => 2 * self.dim,
            SideKind::Values => 2 * GROUP_POSITIONS * self.dim.div_ceil(codec::UNIT),
        }
    }
}

impl Codes {
    /// Bytes from a block's start to a packed group of `head`: half 0 or 1 of the block.
    pub fn group_offset(&self, side: &Side, head: usize, half: usize) -> usize {
        self.place.offset + (2 * head + half) * side.group_bytes(self.bits)
    }
}

impl KvLayout {
    /// An empty layout.
    pub fn new(settings: KvSettings) -> Self {
        KvLayout { settings, ..KvLayout::default() }
    }

    /// Adds a layer; parts with the same window and role share a group. Returns its index.
    ///
    /// A layer whose sliding window is no longer than the cache's keeps halves: no query would see it packed.
    pub fn push(&mut self, kv_heads: usize, k_dim: usize, v_dim: usize, window: Option<usize>) -> usize {
        let sides =
            [(SideKind::Keys, k_dim, self.settings.keys), (SideKind::Values, v_dim, self.settings.values)];
        let [keys, values] = sides.map(|(kind, dim, format)| {
            let format = if window.is_some_and(|w| w <= self.settings.window) { Format::F16 } else { format };
            self.side(kind, kv_heads, dim, window, format)
        });
        self.layers.push(KvLayer { kv_heads, window, keys, values });
        self.layers.len() - 1
    }

    fn side(
        &mut self,
        kind: SideKind,
        heads: usize,
        dim: usize,
        window: Option<usize>,
        format: Format,
    ) -> Side {
        let halves = |positions: usize| heads * dim * positions * 2;
        let Some(bits) = format.bits() else {
            let place = self.place(window, Role::Whole, halves(BLOCK_POSITIONS));
            return Side { kind, dim, halves: place, codes: None };
        };
        let recent = self.place(window, Role::Recent, halves(BLOCK_POSITIONS));
        let mut side = Side { kind, dim, halves: recent, codes: None };
        let place = self.place(window, Role::Codes, heads * 2 * side.group_bytes(bits));
        let stored = self.settings.stored_sinks();
        let sinks = (stored > 0).then(|| self.place(window, Role::Sinks, halves(stored)));
        side.codes = Some(Codes { bits, place, sinks });
        side
    }

    fn place(&mut self, window: Option<usize>, role: Role, bytes: usize) -> Place {
        let known = self.groups.iter().position(|g| (g.window, g.role) == (window, role));
        let group = known.unwrap_or_else(|| {
            self.groups.push(KvGroup { window, role, block_bytes: 0 });
            self.groups.len() - 1
        });
        let offset = self.groups[group].block_bytes;
        // Whole cache lines, so that every part begins on one.
        self.groups[group].block_bytes += bytes.next_multiple_of(64);
        Place { group, offset }
    }

    /// Bytes from a block's start to the sinks of `head`, keys `[dim][s]`, values `[s][dim]`.
    pub fn sinks_offset(&self, side: &Side, place: Place, head: usize) -> usize {
        place.offset + head * side.dim * self.settings.stored_sinks() * 2
    }

    /// The first position that a query at `position` sees in a group.
    fn first_seen(&self, g: usize, position: usize) -> usize {
        self.groups[g].window.map_or(0, |w| (position + 1).saturating_sub(w))
    }

    /// Positions that are packed for the query at `position − 1`: what an earlier step has packed.
    fn packed_before(&self, position: usize) -> usize {
        position.checked_sub(1).map_or(0, |p| GROUP_POSITIONS * self.settings.packed_groups(p))
    }

    /// The positions before `position` whose content in this group a step that begins there needs: what its queries see
    /// and what it packs.
    pub fn needed(&self, g: usize, position: usize) -> Range<usize> {
        let packed = self.packed_before(position);
        let first = self.first_seen(g, position);
        let whole_group = first / GROUP_POSITIONS * GROUP_POSITIONS;
        match self.groups[g].role {
            Role::Whole => first..position,
            Role::Recent => whole_group.max(packed)..position,
            Role::Codes => whole_group..packed.max(whole_group),
            Role::Sinks => first..position.min(self.settings.sinks).max(first),
        }
    }

    /// The positions whose content in this group a step over `span` writes.
    pub fn written(&self, g: usize, span: Range<usize>) -> Range<usize> {
        match self.groups[g].role {
            Role::Whole | Role::Recent => span,
            Role::Codes => {
                // What has left the window of the first query is not packed any more.
                let first = self.first_seen(g, span.start) / GROUP_POSITIONS * GROUP_POSITIONS;
                let from = self.packed_before(span.start).max(first);
                from..self.packed_before(span.end).max(from)
            }
            Role::Sinks => span.start..span.end.min(self.settings.sinks).max(span.start),
        }
    }

    /// The blocks of a group in which positions lie.
    pub fn blocks(&self, g: usize, positions: Range<usize>) -> Range<usize> {
        if positions.is_empty() {
            return 0..0;
        }
        match self.groups[g].role {
            Role::Sinks => 0..1,
            _ => positions.start / BLOCK_POSITIONS..positions.end.div_ceil(BLOCK_POSITIONS),
        }
    }

    /// Blocks in the table of a group for a sequence of `len` positions, those already freed counted.
    pub fn table_len(&self, g: usize, len: usize) -> usize {
        self.blocks(g, self.written(g, 0..len)).end
    }

    /// Sinks that a step over `span` writes.
    pub fn written_sinks(&self, span: Range<usize>) -> usize {
        span.end.min(self.settings.sinks).saturating_sub(span.start)
    }

    /// Bytes of one layer's cache that the attention of a step over `span` reads, and those that it packs: each position
    /// or group once, in every form that one of the queries sees.
    pub fn attended_bytes(&self, layer: &KvLayer, span: Range<usize>) -> (u64, u64) {
        let (first_query, last_query) = (span.start, span.end - 1);
        let (mut read, mut written) = (0, 0);
        for side in [&layer.keys, &layer.values] {
            let first = self.first_seen(side.halves.group, first_query);
            let Some(codes) = side.codes else {
                read += (span.end - first) * side.dim * 2;
                continue;
            };
            let packed = |query: usize| self.settings.packed_groups(query);
            let from = first.max(GROUP_POSITIONS * packed(first_query));
            let groups = packed(last_query).saturating_sub(first / GROUP_POSITIONS);
            let sinks = if groups > 0 { self.settings.sinks.saturating_sub(first) } else { 0 };
            let new = self.written(codes.place.group, span.clone()).len();
            read += (span.end - from + sinks) * side.dim * 2 + groups * side.group_bytes(codes.bits);
            read += new * side.dim * 2;
            written += new / GROUP_POSITIONS * side.group_bytes(codes.bits);
        }
        ((read * layer.kv_heads) as u64, (written * layer.kv_heads) as u64)
    }

    /// Blocks that one sequence of `context` positions can hold at once in each group, when steps add at most
    /// `chunk` positions.
    pub fn blocks_for(&self, context: usize, chunk: usize) -> Vec<usize> {
        (0..self.groups.len()).map(|g| self.most_blocks(g, context, chunk)).collect()
    }

    fn most_blocks(&self, g: usize, context: usize, chunk: usize) -> usize {
        let all = self.table_len(g, context);
        let behind = |kept: usize| (kept + chunk + BLOCK_POSITIONS).div_ceil(BLOCK_POSITIONS);
        let slid = self.groups[g].window.map_or(all, |w| all.min(behind(w)));
        match self.groups[g].role {
            Role::Recent => slid.min(behind(self.settings.window + GROUP_POSITIONS)),
            Role::Whole | Role::Codes | Role::Sinks => slid,
        }
    }

    /// Blocks of a group that a kept prefix of a sequence which goes on holds for itself alone, at most.
    pub fn blocks_of_end(&self, g: usize, context: usize, chunk: usize) -> usize {
        let live = self.most_blocks(g, context, chunk);
        let kept = |w: usize| w.div_ceil(BLOCK_POSITIONS) + 2;
        let own = match (self.groups[g].role, self.groups[g].window) {
            (Role::Recent, w) => kept(self.settings.window + GROUP_POSITIONS).min(w.map_or(usize::MAX, kept)),
            (_, Some(w)) => kept(w),
            (_, None) => 1,
        };
        own.min(live)
    }

    /// Bytes of [`KvLayout::blocks_for`].
    pub fn bytes_for(&self, context: usize, chunk: usize) -> u64 {
        let blocks = self.blocks_for(context, chunk);
        blocks.iter().zip(&self.groups).map(|(&n, g)| (n * g.block_bytes) as u64).sum()
    }

    /// Bytes of one position of a long sequence, far behind its end: its keys and values in all layers.
    pub fn position_bytes(&self) -> u64 {
        let side = |side: &Side| match side.codes {
            Some(codes) => side.group_bytes(codes.bits) / GROUP_POSITIONS,
            None => side.dim * 2,
        };
        self.layers.iter().map(|l| (l.kv_heads * (side(&l.keys) + side(&l.values))) as u64).sum()
    }

    /// How many of a table's first blocks no step needs any more once `len` positions are written. One position more than
    /// the next query needs is kept, so that the same prompt can be met again at its last token.
    pub fn freed(&self, g: usize, len: usize) -> usize {
        let next = len.saturating_sub(1);
        match self.groups[g].role {
            Role::Sinks => usize::from(self.first_seen(g, next) >= self.settings.sinks),
            _ => self.needed(g, next).start / BLOCK_POSITIONS,
        }
    }

    /// Bytes that one sequence holds after `len` positions, between steps: the formula of the memory contract.
    pub fn bytes_held(&self, len: usize) -> u64 {
        let held = |g: usize| {
            let blocks = self.table_len(g, len).saturating_sub(self.freed(g, len));
            (blocks * self.groups[g].block_bytes) as u64
        };
        (0..self.groups.len()).map(held).sum()
    }
}
