//! Attention over a ragged batch: what there is to do, and how threads share it.
//!
//! Longer spans are split into runs of query rows, and each unit walks its tiles in order, folding as it goes. So does a
//! span of one token for one KV head, while there are enough such to keep all threads busy to the end; the rest are split
//! at tile boundaries, each tile leaves its (maximum, sum, output) in `parts`, and a second stage folds them in position
//! order. All orders are the same.

use std::cmp::Reverse;
use std::ops::Range;

use tensor::device::Span;
use tensor::kv::{BLOCK_POSITIONS, Codes, GROUP_POSITIONS, KvLayer, Place, Side};
use tensor::op::{BufferId, Plan};

use super::{Signs, StepView, widest_state};
use crate::attention::packed::{Half, MixedArgs, Sinks};
use crate::attention::store::PackArgs;
use crate::attention::{self, QueryRow, TileArgs, state_len};
use crate::pool::Worker;

/// Tokens of one unit of a longer span.
const UNIT_TOKENS: usize = 16;

/// Most query rows of one unit: a KV head's group of query heads for each token.
const MAX_ROWS: usize = UNIT_TOKENS * MAX_GROUP;

/// Most query heads that share a KV head.
const MAX_GROUP: usize = 32;

/// A share of a step's attention, of one KV head.
#[derive(Clone, Copy, Debug)]
pub(super) enum AttentionUnit {
    /// Tokens `from..to` of a longer span.
    Tokens { span: usize, kv_head: usize, from: usize, to: usize },
    /// All that a span of one token sees.
    Head { span: usize, kv_head: usize },
    /// One tile for a span of one token; its result goes to slot `slot`.
    Tile { span: usize, kv_head: usize, tile: usize, slot: usize },
}

/// The shares of a step in layers of one kind.
#[derive(Debug)]
pub(super) struct Units {
    window: Option<usize>,
    kv_heads: usize,
    list: Vec<AttentionUnit>,
    /// Tiles of `list` that are folded together.
    folds: Vec<Range<usize>>,
}

/// One attention operation.
pub(super) struct Attention<'a> {
    pub(super) qkv: BufferId,
    pub(super) dst: BufferId,
    pub(super) layer: &'a KvLayer,
    pub(super) signs: &'a Signs,
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) softcap: f32,
    pub(super) window: Option<usize>,
}

/// The first position that a query sees.
fn first_seen(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |w| (position + 1).saturating_sub(w))
}

/// The units of a step for each kind of layer.
pub(super) fn units(plan: &Plan, step: &[Span<'_>], threads: usize) -> Vec<Units> {
    let mut all: Vec<Units> = Vec::new();
    for l in &plan.kv.layers {
        if all.iter().all(|u| (u.window, u.kv_heads) != (l.window, l.kv_heads)) {
            all.push(Units::new(l.window, l.kv_heads, step, threads));
        }
    }
    all
}

impl Units {
    fn new(window: Option<usize>, kv_heads: usize, step: &[Span<'_>], threads: usize) -> Units {
        let (mut list, mut folds) = (Vec::new(), Vec::new());
        // Long runs first: they are the largest units.
        for (span, s) in step.iter().enumerate().filter(|(_, s)| s.tokens.len() > 1) {
            for from in (0..s.tokens.len()).step_by(UNIT_TOKENS).rev() {
                let to = (from + UNIT_TOKENS).min(s.tokens.len());
                list.extend((0..kv_heads).map(|kv_head| AttentionUnit::Tokens { span, kv_head, from, to }));
            }
        }
        let singles = step.iter().enumerate().filter(|(_, s)| s.tokens.len() == 1);
        let mut heads: Vec<(usize, usize, Range<usize>)> = singles
            .flat_map(|(span, s)| (0..kv_heads).map(move |h| (span, h, seen_tiles(s.start, window))))
            .collect();
        heads.sort_by_key(|(_, _, tiles)| Reverse(tiles.len()));
        let mut remaining: usize = heads.iter().map(|(_, _, tiles)| tiles.len()).sum();
        let mut split = Vec::new();
        for (span, kv_head, tiles) in heads {
            // No thread may be left with more than its share of what remains.
            if tiles.len() * threads <= remaining {
                list.push(AttentionUnit::Head { span, kv_head });
            } else {
                split.push((span, kv_head, tiles.clone()));
            }
            remaining -= tiles.len();
        }
        let mut slot = 0;
        for (span, kv_head, tiles) in split {
            let first = list.len();
            for tile in tiles {
                list.push(AttentionUnit::Tile { span, kv_head, tile, slot });
                slot += 1;
            }
            folds.push(first..list.len());
        }
        Units { window, kv_heads, list, folds }
    }
}

/// The tiles that hold what a query sees.
fn seen_tiles(position: usize, window: Option<usize>) -> Range<usize> {
    first_seen(position, window) / BLOCK_POSITIONS..position / BLOCK_POSITIONS + 1
}

/// f32 elements of `parts` that the step needs.
pub(super) fn parts_len(plan: &Plan, units: &[Units]) -> usize {
    let slots = |u: &Units| u.folds.iter().map(ExactSizeIterator::len).sum::<usize>();
    units.iter().map(slots).max().unwrap_or(0) * widest_heads(plan) * widest_state(plan)
}

fn widest_heads(plan: &Plan) -> usize {
    let heads = |op: &tensor::op::Op| match op {
        tensor::op::Op::Attention { heads, .. } => Some(*heads),
        _ => None,
    };
    plan.ops.iter().filter_map(heads).max().unwrap_or(0)
}

/// f32 elements of scratch that one thread needs: the tile's, and the states of a unit's rows.
pub(super) fn scratch_len(plan: &Plan) -> usize {
    let layers = &plan.kv.layers;
    let tile = layers.iter().map(|l| attention::scratch_len(l.keys.dim, l.values.dim)).max().unwrap_or(0);
    let group = layers.iter().map(|l| widest_heads(plan) / l.kv_heads.max(1)).max().unwrap_or(0);
    tile + UNIT_TOKENS * group * widest_state(plan)
}

impl StepView<'_> {
    /// The units of an operation's layer.
    fn units_of(&self, a: &Attention<'_>) -> &Units {
        let of_layer = |u: &&Units| (u.window, u.kv_heads) == (a.window, a.layer.kv_heads);
        self.units.iter().find(of_layer).expect("`units` has every kind of layer")
    }

    /// The first stage: runs of longer spans, heads and tiles of single tokens.
    pub(super) fn attend_units(&self, w: &Worker<'_>, a: &Attention<'_>) {
        let units = &self.units_of(a).list;
        let claim = || w.take(units.len(), 1).map(|range| units[range.start]);
        let mut claimed = claim();
        while let Some(unit) = claimed.take() {
            match unit {
                AttentionUnit::Tokens { span, kv_head, from, to } => {
                    self.run_of_tokens(w, a, kv_head, span, from, to)
                }
                AttentionUnit::Head { span, kv_head } => {
                    let tiles = seen_tiles(self.spans[span].start, a.window);
                    self.one_token(w, a, span, kv_head, tiles, None, None);
                }
                AttentionUnit::Tile { span, kv_head, tile, slot } => {
                    // Claimed one ahead, so that its keys can be fetched meanwhile: larger units would be kept from others.
                    claimed = claim();
                    let next = claimed.and_then(|unit| self.tile_keys(a, unit));
                    self.one_token(w, a, span, kv_head, tile..tile + 1, Some(slot), next);
                }
            }
            claimed = claimed.or_else(claim);
        }
    }

    /// Where both halves of a tile's keys lie.
    fn tile_keys(&self, a: &Attention<'_>, unit: AttentionUnit) -> Option<[*const u8; 2]> {
        let AttentionUnit::Tile { span, kv_head, tile, .. } = unit else { return None };
        Some(self.keys_at(a, span, kv_head, self.spans[span].start, tile))
    }

    /// Where both halves of a tile's keys lie for the query at `position`.
    fn keys_at(
        &self,
        a: &Attention<'_>,
        span: usize,
        kv_head: usize,
        position: usize,
        tile: usize,
    ) -> [*const u8; 2] {
        let packed = self.packed_halves(a, position, tile);
        self.halves(&a.layer.keys, span, kv_head, tile, packed).map(|half| half.ptr)
    }

    /// Whether there is a second stage; the same on every thread.
    pub(super) fn has_folds(&self, a: &Attention<'_>) -> bool {
        !self.units_of(a).folds.is_empty()
    }

    /// The second stage: folds the tiles of single tokens.
    pub(super) fn fold_tiles(&self, w: &Worker<'_>, a: &Attention<'_>) {
        let units = self.units_of(a);
        let group = a.heads / a.layer.kv_heads;
        while let Some(range) = w.take(units.folds.len() * group, 1) {
            for u in range {
                let tiles = &units.list[units.folds[u / group].clone()];
                let AttentionUnit::Tile { span, kv_head, slot: first_slot, .. } = tiles[0] else { continue };
                // SAFETY: each head's slots are touched by this unit alone in this stage.
                unsafe {
                    let state = self.part(a, first_slot, u % group);
                    for i in 1..tiles.len() {
                        let tile: &[f32] = self.part(a, first_slot + i, u % group);
                        self.core.table.fold(state, tile);
                    }
                    self.write_output(a, self.first_row(span), kv_head * group + u % group, state);
                }
            }
        }
    }

    /// A head's output from its state.
    ///
    /// # Safety
    /// No other thread touches that row's head in this stage.
    unsafe fn write_output(&self, a: &Attention<'_>, row: usize, head: usize, state: &[f32]) {
        // SAFETY: as the caller vouches.
        let out = unsafe { self.row_mut(a.dst, row, head * a.layer.values.dim, a.layer.values.dim) };
        self.output(a, state, out);
    }

    /// A row's normalised output, turned back where values are rotated.
    fn output(&self, a: &Attention<'_>, state: &[f32], out: &mut [f32]) {
        self.core.table.output(state, out);
        if !a.signs.values.is_empty() {
            self.core.table.rotate(out, &a.signs.values, true);
        }
    }

    /// The result slot of one tile for one query head of its KV head's group.
    ///
    /// # Safety
    /// No other thread touches that slot and head in this stage.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's contract
    unsafe fn part(&self, a: &Attention<'_>, slot: usize, head: usize) -> &mut [f32] {
        let len = state_len(a.layer.values.dim);
        // SAFETY: `parts_len` counted slots times heads of the widest state.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.parts.add((slot * (a.heads / a.layer.kv_heads) + head) * len),
                len,
            )
        }
    }

    /// The token row of a span's first token.
    fn first_row(&self, span: usize) -> usize {
        self.spans[..span].iter().map(|s| s.tokens.len()).sum()
    }

    /// Some tiles of one KV head for a span of one token, folded in order: into a slot, or else to the end.
    #[allow(clippy::too_many_arguments)] // what names a head of a span, and where it goes
    fn one_token(
        &self,
        w: &Worker<'_>,
        a: &Attention<'_>,
        span: usize,
        kv_head: usize,
        tiles: Range<usize>,
        slot: Option<usize>,
        next: Option<[*const u8; 2]>,
    ) {
        let (group, row) = (a.heads / a.layer.kv_heads, self.first_row(span));
        let (position, len) = (self.spans[span].start, state_len(a.layer.values.dim));
        let states_at = attention::scratch_len(a.layer.keys.dim, a.layer.values.dim);
        for h in (0..group).step_by(MAX_GROUP) {
            let count = MAX_GROUP.min(group - h);
            // SAFETY: the scratch is this thread's; the tile kernel uses what lies before the states. Queries are only read
            // in this stage; the slot is this unit's alone.
            let own = unsafe { self.core.scratch[w.id].get_mut(states_at, count * len) };
            let mut rows = [EMPTY; MAX_GROUP];
            for (i, r) in rows.iter_mut().enumerate().take(count) {
                let head = kv_head * group + h + i;
                // SAFETY: as above.
                let q = unsafe { self.row(a.qkv, row, head * a.layer.keys.dim, a.layer.keys.dim) };
                r.q = q.as_ptr();
                r.state = match slot {
                    // SAFETY: as above.
                    Some(slot) => unsafe { self.part(a, slot, h + i) }.as_mut_ptr(),
                    None => own[i * len..].as_mut_ptr(),
                };
            }
            for tile in tiles.clone() {
                let Some((lo, hi)) = visible(position, a.window, tile) else { continue };
                rows[..count].iter_mut().for_each(|r| (r.lo, r.hi) = (lo, hi));
                let next = match tile + 1 < tiles.end {
                    true => Some(self.keys_at(a, span, kv_head, position, tile + 1)),
                    false => next,
                };
                let packed = self.packed_halves(a, position, tile);
                self.tile(w, a, kv_head, span, tile, packed, &rows[..count], next);
                rows[..count].iter_mut().for_each(|r| r.first = false);
            }
            if slot.is_none() {
                for i in 0..count {
                    // SAFETY: this unit alone writes this token's outputs of these heads.
                    unsafe { self.write_output(a, row, kv_head * group + h + i, &own[i * len..][..len]) };
                }
            }
        }
    }

    fn run_of_tokens(
        &self,
        w: &Worker<'_>,
        a: &Attention<'_>,
        kv_head: usize,
        span: usize,
        from: usize,
        to: usize,
    ) {
        let group = a.heads / a.layer.kv_heads;
        let per_pass = (MAX_ROWS / group).clamp(1, UNIT_TOKENS);
        let mut t = from;
        while t < to {
            let end = (t + per_pass).min(to);
            for h in (0..group).step_by(MAX_ROWS) {
                self.rows_of_tokens(w, a, kv_head, span, t..end, h..(h + MAX_ROWS).min(group));
            }
            t = end;
        }
    }

    /// Walks all tiles for some tokens and query heads of one KV head.
    fn rows_of_tokens(
        &self,
        w: &Worker<'_>,
        a: &Attention<'_>,
        kv_head: usize,
        span: usize,
        tokens: Range<usize>,
        heads: Range<usize>,
    ) {
        let (group, start) = (a.heads / a.layer.kv_heads, self.spans[span].start);
        let (len, v_dim, k_dim) = (state_len(a.layer.values.dim), a.layer.values.dim, a.layer.keys.dim);
        let first_row = self.first_row(span);
        let per_token = heads.len();
        let scratch = &self.core.scratch[w.id];
        let states_at = attention::scratch_len(k_dim, v_dim);
        // SAFETY: the scratch is this thread's; the tile kernel uses what lies before the states.
        let states = unsafe { scratch.get_mut(states_at, tokens.len() * per_token * len) };
        let (mut begun, mut rows) = ([false; MAX_ROWS], [EMPTY; MAX_ROWS]);
        let first_tile = first_seen(start + tokens.start, a.window) / BLOCK_POSITIONS;
        for tile in first_tile..=(start + tokens.end - 1) / BLOCK_POSITIONS {
            let (mut count, mut packed) = (0, [false; 2]);
            for (i, t) in tokens.clone().enumerate() {
                let Some((lo, hi)) = visible(start + t, a.window, tile) else { continue };
                let its = self.packed_halves(a, start + t, tile);
                if its != packed {
                    self.tile(w, a, kv_head, span, tile, packed, &rows[..count], None);
                    (count, packed) = (0, its);
                }
                for (j, h) in heads.clone().enumerate() {
                    let (head, index) = (kv_head * group + h, i * per_token + j);
                    // SAFETY: queries are only read in this stage.
                    let q = unsafe { self.row(a.qkv, first_row + t, head * k_dim, k_dim) };
                    let state = states[index * len..].as_mut_ptr();
                    rows[count] = QueryRow { q: q.as_ptr(), state, lo, hi, first: !begun[index] };
                    begun[index] = true;
                    count += 1;
                }
            }
            self.tile(w, a, kv_head, span, tile, packed, &rows[..count], None);
        }
        for (i, t) in tokens.enumerate() {
            for (j, h) in heads.clone().enumerate() {
                let state = &states[(i * per_token + j) * len..][..len];
                // SAFETY: this unit alone writes these tokens' outputs of these heads.
                unsafe { self.write_output(a, first_row + t, kv_head * group + h, state) };
            }
        }
    }

    /// Which halves of a tile the query at `position` sees packed, where a side is packed at all.
    fn packed_halves(&self, a: &Attention<'_>, position: usize, tile: usize) -> [bool; 2] {
        if a.layer.keys.codes.is_none() && a.layer.values.codes.is_none() {
            return [false; 2];
        }
        let groups = self.core.plan.kv.settings.packed_groups(position);
        [2 * tile < groups, 2 * tile + 1 < groups]
    }

    /// The block of a place that holds positions 64·index…, of a span.
    fn block(&self, span: usize, place: Place, index: usize) -> *mut u8 {
        let id = self.spans[span].tables[place.group][index];
        self.core.pools[place.group].block(id.0)
    }

    /// Where both halves of a tile of one side lie for queries that see `packed`.
    fn halves(&self, side: &Side, span: usize, kv_head: usize, tile: usize, packed: [bool; 2]) -> [Half; 2] {
        std::array::from_fn(|h| match side.codes {
            Some(codes) if packed[h] => {
                let offset = codes.group_offset(side, kv_head, h);
                let ptr = self.block(span, codes.place, tile).wrapping_add(offset);
                Half { ptr, bits: codes.bits.get() }
            }
            _ => {
                let block = self.block(span, side.halves, tile);
                Half { ptr: block.wrapping_add(side.halves_offset(kv_head)), bits: 0 }
            }
        })
    }

    /// The sinks that a tile whose first half is `packed` holds.
    fn sinks(&self, a: &Attention<'_>, span: usize, kv_head: usize, tile: usize, packed: bool) -> Sinks {
        let layout = &self.core.plan.kv;
        if tile > 0 || !packed || layout.settings.sinks == 0 {
            return Sinks::NONE;
        }
        let of = |side: &Side| match side.codes {
            Some(Codes { sinks: Some(place), .. }) => {
                let offset = layout.sinks_offset(side, place, kv_head);
                self.block(span, place, 0).wrapping_add(offset).cast::<u16>().cast_const()
            }
            _ => std::ptr::null(),
        };
        Sinks {
            count: layout.settings.sinks,
            stored: layout.settings.stored_sinks(),
            keys: of(&a.layer.keys),
            values: of(&a.layer.values),
        }
    }

    /// Packs the groups that queries of this step are the first to see packed. False, on every thread, where there are
    /// none.
    pub(super) fn pack_groups(&self, w: &Worker<'_>, a: &Attention<'_>) -> bool {
        let layout = &self.core.plan.kv;
        let sides: Vec<(&Side, Codes)> =
            [&a.layer.keys, &a.layer.values].into_iter().filter_map(|s| Some((s, s.codes?))).collect();
        let Some(&(_, codes)) = sides.first() else { return false };
        // Both sides share the window, and so the positions.
        let of_span = |s: &Span<'_>| {
            let written = layout.written(codes.place.group, s.start..s.start + s.tokens.len());
            written.start / GROUP_POSITIONS..written.end / GROUP_POSITIONS
        };
        let groups: Vec<(usize, usize)> = (self.spans.iter().enumerate())
            .flat_map(|(i, s)| of_span(s).map(move |group| (i, group)))
            .collect();
        if groups.is_empty() {
            return false;
        }
        let kv_heads = a.layer.kv_heads;
        while let Some(range) = w.take(groups.len() * kv_heads, 1) {
            for u in range {
                let ((span, group), kv_head) = (groups[u / kv_heads], u % kv_heads);
                let (tile, half) = (group / 2, group % 2);
                for &(side, codes) in &sides {
                    let halves =
                        self.block(span, side.halves, tile).wrapping_add(side.halves_offset(kv_head));
                    let out = codes.group_offset(side, kv_head, half);
                    // SAFETY: the blocks lie in their pools with the layer's parts at these offsets; the group is this
                    // unit's alone, and its halves were written before the last barrier.
                    unsafe {
                        self.core.table.pack(PackArgs {
                            side: *side,
                            bits: codes.bits,
                            halves: halves.cast(),
                            half,
                            sinks: if group == 0 { layout.settings.sinks } else { 0 },
                            out: self.block(span, codes.place, tile).wrapping_add(out),
                        });
                    }
                }
            }
        }
        true
    }

    /// Runs the tile kernel over some rows.
    #[allow(clippy::too_many_arguments)] // what names a tile of a head of a span
    fn tile(
        &self,
        w: &Worker<'_>,
        a: &Attention<'_>,
        kv_head: usize,
        span: usize,
        tile: usize,
        packed: [bool; 2],
        rows: &[QueryRow],
        next: Option<[*const u8; 2]>,
    ) {
        if rows.is_empty() {
            return;
        }
        let (keys, values) = (&a.layer.keys, &a.layer.values);
        let scratch = self.core.scratch[w.id].ptr();
        let [key_halves, value_halves] =
            [keys, values].map(|side| self.halves(side, span, kv_head, tile, packed));
        // Without anything to come, what is here is fetched again.
        let next = next.unwrap_or(key_halves.map(|half| half.ptr));
        // SAFETY: the blocks lie in their pools with the layer's keys and values at these offsets; the cache is only
        // read in this stage; the scratch is this thread's and as long as `scratch_len` says.
        unsafe {
            if packed == [false; 2] {
                let args = TileArgs {
                    rows: rows.as_ptr(),
                    count: rows.len(),
                    keys: key_halves[0].ptr.cast(),
                    values: value_halves[0].ptr.cast(),
                    k_dim: keys.dim,
                    v_dim: values.dim,
                    scale: a.scale,
                    softcap: a.softcap,
                    scratch,
                    next: next[0],
                };
                self.core.table.tile(rows, args);
            } else {
                let args = MixedArgs {
                    rows: rows.as_ptr(),
                    count: rows.len(),
                    keys: key_halves,
                    values: value_halves,
                    sinks: self.sinks(a, span, kv_head, tile, packed[0]),
                    k_dim: keys.dim,
                    v_dim: values.dim,
                    scale: a.scale,
                    softcap: a.softcap,
                    scratch,
                    next,
                };
                self.core.table.mixed_tile(rows, args);
            }
        }
    }
}

const EMPTY: QueryRow =
    QueryRow { q: std::ptr::null(), state: std::ptr::null_mut(), lo: 0, hi: 0, first: true };

/// The positions of a tile that a query sees, relative to the tile; `None` where it sees none.
fn visible(position: usize, window: Option<usize>, tile: usize) -> Option<(u8, u8)> {
    let base = tile * BLOCK_POSITIONS;
    let lo = first_seen(position, window).saturating_sub(base).min(BLOCK_POSITIONS);
    let hi = (position + 1).saturating_sub(base).min(BLOCK_POSITIONS);
    (lo < hi).then_some((lo as u8, hi as u8))
}
