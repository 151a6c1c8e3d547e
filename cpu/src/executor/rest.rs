//! The operations that are neither products nor attention: embedding, rotary embedding with the cache's writes, norms.

use tensor::kv::{BLOCK_POSITIONS, Codes, Place, Side, SideKind};
use tensor::op::{BufferId, Norm, RopeId, WeightId};
use tensor::panels::{PANEL_ROWS, decode_row, panel_bytes};

use super::StepView;
use crate::pool::Worker;

/// Largest head that the cache's writes convert at once.
pub(super) const MAX_HEAD: usize = 1024;

impl StepView<'_> {
    /// cos and sin of every token's position for every rotary embedding.
    pub(super) fn rope_tables(&self, w: &Worker<'_>) {
        let ropes = &self.core.plan.ropes;
        while let Some(units) = w.take(self.rows.len() * ropes.len(), 4) {
            for u in units {
                let (row, r) = (u / ropes.len(), u % ropes.len());
                let pairs = ropes[r].inv_freq.len();
                // SAFETY: each unit writes its own row of its own table.
                let table = unsafe { self.core.rope_tables[r].get_mut(row * 2 * pairs, 2 * pairs) };
                let position = self.rows[row].position as f64;
                for (i, &f) in ropes[r].inv_freq.iter().enumerate() {
                    let (sin, cos) = libm::sincos(position * f);
                    table[i] = (cos * ropes[r].magnitude) as f32;
                    table[pairs + i] = (sin * ropes[r].magnitude) as f32;
                }
            }
        }
    }

    pub(super) fn embed(&self, w: &Worker<'_>, table: WeightId, scale: f32, dst: BufferId) {
        let weight = self.weight(table);
        let (encoding, _, cols) = weight.matrix();
        debug_assert!(weight.bytes().len().is_multiple_of(panel_bytes(encoding, cols)));
        while let Some(units) = w.take(self.rows.len(), 1) {
            for row in units {
                let token = self.rows[row].token as usize;
                let panel = weight.panels(token / PANEL_ROWS, 1);
                // SAFETY: each unit writes its own row.
                let out = unsafe { self.row_mut(dst, row, 0, cols) };
                decode_row(encoding, panel, token % PANEL_ROWS, out);
                if scale != 1.0 {
                    out.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
    }

    pub(super) fn norm_add(&self, w: &Worker<'_>, src: BufferId, norm: Norm, dst: BufferId) {
        let (weight, width) = (self.weight(norm.weight).vector(), self.width(src));
        while let Some(units) = w.take(self.buffer_rows(src), 1) {
            for row in units {
                // SAFETY: src is only read in this stage; each unit writes its own row.
                let (x, out) = unsafe { (self.row(src, row, 0, width), self.row_mut(dst, row, 0, width)) };
                self.core.table.norm_add(x, weight, norm.eps, out);
            }
        }
    }

    pub(super) fn select(&self, w: &Worker<'_>, src: BufferId, dst: BufferId) {
        let width = self.width(src);
        while let Some(units) = w.take(self.logit_rows.len(), 1) {
            for row in units {
                // SAFETY: src is only read in this stage; each unit writes its own row.
                let (x, out) = unsafe {
                    (self.row(src, self.logit_rows[row], 0, width), self.row_mut(dst, row, 0, width))
                };
                out.copy_from_slice(x);
            }
        }
    }

    /// Norms and rotates the heads in place and writes keys and values to the cache. A unit is one KV head, with its
    /// query heads, of those tokens of one span that share a tile.
    #[allow(clippy::too_many_arguments)] // the operation's fields
    pub(super) fn rope_store(
        &self,
        w: &Worker<'_>,
        qkv: BufferId,
        layer: usize,
        heads: usize,
        q_norm: Option<Norm>,
        k_norm: Option<Norm>,
        rope: RopeId,
    ) {
        let l = &self.core.plan.kv.layers[layer];
        let (kv_heads, group) = (l.kv_heads, heads / l.kv_heads);
        let runs = TileRuns { rows: self.rows };
        let total = runs.count();
        let turn = |row: usize, col: usize, norm: Option<Norm>| {
            // SAFETY: this unit alone touches this head of this row in this stage.
            let x = unsafe { self.row_mut(qkv, row, col, l.keys.dim) };
            if let Some(n) = norm {
                self.core.table.norm_in_place(x, self.weight(n.weight).vector(), n.eps);
            }
            let r = &self.core.plan.ropes[rope.0 as usize];
            let len = 2 * r.inv_freq.len();
            // SAFETY: the tables are only read from here on.
            let table = unsafe { self.core.rope_tables[rope.0 as usize].get(row * len, len) };
            self.core.table.rope(x, table, r.layout);
        };
        while let Some(units) = w.take(total * kv_heads, 1) {
            for u in units {
                let (rows, kv_head) = (runs.nth(u / kv_heads), u % kv_heads);
                let first = self.rows[rows.start];
                let k_col = (heads + kv_head) * l.keys.dim;
                let v_col = (heads + kv_heads) * l.keys.dim + kv_head * l.values.dim;
                let signs = &self.core.signs[layer];
                let rotate = |row: usize, col: usize, signs: &[f32]| {
                    if !signs.is_empty() {
                        // SAFETY: as for `turn`.
                        let x = unsafe { self.row_mut(qkv, row, col, signs.len()) };
                        self.core.table.rotate(x, signs, false);
                    }
                };
                for row in rows {
                    for h in 0..group {
                        turn(row, (kv_head * group + h) * l.keys.dim, q_norm);
                        rotate(row, (kv_head * group + h) * l.keys.dim, &signs.keys);
                    }
                    turn(row, k_col, k_norm);
                    rotate(row, k_col, &signs.keys);
                    rotate(row, v_col, &signs.values);
                    let position = self.rows[row].position;
                    for (side, col) in [(&l.keys, k_col), (&l.values, v_col)] {
                        // SAFETY: only this unit touches the row's head in this stage.
                        let x = unsafe { self.row(qkv, row, col, side.dim) };
                        self.store(side, first.span, kv_head, position, x);
                    }
                }
            }
        }
    }

    /// Writes one position of a head as halves: to its block, and to the sinks where it is one.
    fn store(&self, side: &Side, span: usize, kv_head: usize, position: usize, x: &[f32]) {
        let mut half = [0u16; MAX_HEAD];
        let half = &mut half[..side.dim];
        self.core.table.store_half(x, half);
        let layout = &self.core.plan.kv;
        if layout.settings.nudged {
            half.iter_mut().for_each(|bits| *bits ^= 1);
        }
        let block = |place: Place, index: usize| {
            let id = self.spans[span].tables[place.group][index];
            self.core.pools[place.group].block(id.0)
        };
        let put = |to: *mut u16, at: usize, positions: usize| {
            // SAFETY: the block is this span's alone, and this layer, head and position of it the calling unit's.
            unsafe {
                match side.kind {
                    SideKind::Keys => {
                        for (ch, &bits) in half.iter().enumerate() {
                            *to.add(ch * positions + at) = bits;
                        }
                    }
                    SideKind::Values => {
                        std::ptr::copy_nonoverlapping(half.as_ptr(), to.add(at * side.dim), side.dim);
                    }
                }
            }
        };
        let to = block(side.halves, position / BLOCK_POSITIONS).wrapping_add(side.halves_offset(kv_head));
        put(to.cast(), position % BLOCK_POSITIONS, BLOCK_POSITIONS);
        if let Some(Codes { sinks: Some(place), .. }) = side.codes
            && position < layout.settings.sinks
        {
            let to = block(place, 0).wrapping_add(layout.sinks_offset(side, place, kv_head));
            put(to.cast(), position, layout.settings.stored_sinks());
        }
    }
}

/// The token rows cut where the span or the tile changes.
struct TileRuns<'a> {
    rows: &'a [super::TokenRow],
}

impl TileRuns<'_> {
    fn runs(&self) -> impl Iterator<Item = &[super::TokenRow]> {
        self.rows
            .chunk_by(|a, b| a.span == b.span && a.position / BLOCK_POSITIONS == b.position / BLOCK_POSITIONS)
    }

    fn count(&self) -> usize {
        self.runs().count()
    }

    fn nth(&self, n: usize) -> std::ops::Range<usize> {
        let before = self.runs().take(n).map(<[_]>::len).sum();
        before..before + self.runs().nth(n).map_or(0, <[_]>::len)
    }
}
