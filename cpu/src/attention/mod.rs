//! Attention of some query rows over one tile of 64 cached positions, and the fold of tiles.
//!
//! ```text
//! score[pos] = Σ_ch q[ch]·key[ch][pos]      lanes are positions, ch ascending, fused, from zero; then ·scale, soft cap
//! m = max over the visible positions; p[pos] = exp(score[pos] − m)
//! s = Σ p                                   16 lanes of positions (pos mod 16), groups ascending, then the tree
//! o[ch] = Σ_pos p[pos]·value[pos][ch]       lanes are channels, pos ascending, fused, from zero
//! fold: M = max(m₁, m₂), a = exp(m₁ − M), b = exp(m₂ − M), s = fma(s₁, a, s₂·b), o = fma(o₁, a, o₂·b)
//! ```
//!
//! `packed` says what of this differs where half a tile is codes, and `store` writes the codes.
//!
//! Departures from the plain loops:
//! 1. up to [`Lanes::SCORE_ROWS`] query rows advance together and share each key and value that is loaded;
//! 2. many rows (a prompt) first widen the tile to f32 once; the values are the same, so the bits are.
//! 3. few rows (a token) fetch ahead: the values while the keys are read, the next tile's keys while the values are. Tiles
//!    lie apart, so the processor's own prefetching sees only their ends, and each start would wait for memory.
#![allow(clippy::needless_range_loop)] // indices run over several arrays at once

pub(crate) mod packed;
pub(crate) mod store;

use std::marker::PhantomData;

use crate::lanes::Lanes;
use crate::math;
use tensor::kv::BLOCK_POSITIONS as TILE;

/// One query row and the state it accumulates.
#[derive(Clone, Copy)]
pub(crate) struct QueryRow {
    /// `[k_dim]`.
    pub(crate) q: *const f32,
    /// Running output `[v_dim]`, maximum, sum.
    pub(crate) state: *mut f32,
    /// Visible positions of this tile, lo < hi; rows that see nothing are left out.
    pub(crate) lo: u8,
    pub(crate) hi: u8,
    /// The state holds nothing yet.
    pub(crate) first: bool,
}

/// f32 elements of a row's state: whole cache lines, so that the outputs of rows in a line stay aligned.
pub(crate) const fn state_len(v_dim: usize) -> usize {
    v_dim + 16
}

/// The arguments of one tile.
#[derive(Clone, Copy)]
pub(crate) struct TileArgs {
    pub(crate) rows: *const QueryRow,
    pub(crate) count: usize,
    /// f16 `[k_dim][64]`.
    pub(crate) keys: *const u16,
    /// f16 `[64][v_dim]`.
    pub(crate) values: *const u16,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    pub(crate) scale: f32,
    /// 0 for none.
    pub(crate) softcap: f32,
    /// f32 [`scratch_len`].
    pub(crate) scratch: *mut f32,
    /// The keys that this thread attends next; they are only prefetched.
    pub(crate) next: *const u8,
}

/// f32 elements of a thread's scratch that a tile uses.
pub(crate) const fn scratch_len(k_dim: usize, v_dim: usize) -> usize {
    let plain = (k_dim + v_dim) * TILE + 4 * state_len(v_dim);
    let mixed = packed::scratch_len(k_dim, v_dim);
    if plain > mixed { plain } else { mixed }
}

/// # Safety
/// As [`Lanes`]; pointers hold what [`TileArgs`] says; dims are multiples of 16.
#[inline(always)]
pub(crate) unsafe fn tile<S: Lanes>(a: TileArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        // Widening costs as much as two uses of the tile.
        if a.count > 2 * S::SCORE_ROWS.max(2) {
            let (keys, values) = (a.scratch, a.scratch.add(a.k_dim * TILE));
            widen::<S>(a.keys, keys, a.k_dim * TILE);
            // Only positions that some row sees hold anything.
            let seen = (0..a.count).fold(0, |m, r| m.max((*a.rows.add(r)).hi as usize));
            widen::<S>(a.values, values, a.v_dim * seen);
            row_blocks::<S, Wide>(a, keys.cast(), values.cast());
        } else {
            row_blocks::<S, Halves>(a, a.keys.cast(), a.values.cast());
        }
    }
}

/// f16 to f32, a multiple of 16.
#[inline(always)]
unsafe fn widen<S: Lanes>(from: *const u16, to: *mut f32, len: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        for i in (0..len).step_by(16) {
            S::store(to.add(i), S::load_f16(from.add(i)));
        }
    }
}

/// Weights of R rows on the tile's positions, the positions that each sees, and their maxima and sums.
struct Weights<const R: usize> {
    p: [[f32; TILE]; R],
    seen: [(usize, usize); R],
    max: [f32; R],
    sum: [f32; R],
}

/// How tile elements are stored.
trait Element: Copy {
    const BYTES: usize;
    /// Fetches 128 bytes ahead, where elements come from memory.
    unsafe fn ahead<S: Lanes>(p: *const u8);
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F;
}
#[derive(Clone, Copy)]
struct Halves;
#[derive(Clone, Copy)]
struct Wide;
impl Element for Halves {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn ahead<S: Lanes>(p: *const u8) {
        // SAFETY: a prefetch may be of any address.
        unsafe {
            S::prefetch(p);
            S::prefetch(p.wrapping_add(64));
        }
    }
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F {
        // SAFETY: 16 f16 at p.
        unsafe { S::load_f16(p.cast()) }
    }
}
impl Element for Wide {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn ahead<S: Lanes>(_: *const u8) {}
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F {
        // SAFETY: 16 f32 at p.
        unsafe { S::load(p.cast()) }
    }
}

/// Runs a statement for as many rows as fit, with their number as a constant; tables without room for several rows are
/// spared the code.
macro_rules! by_rows {
    ($S:ident, $count:expr, |$r:ident, $R:ident| $run:expr) => {{
        let mut $r = 0;
        while $r < $count {
            let n = ($count - $r).min($S::SCORE_ROWS);
            if const { $S::SCORE_ROWS >= 4 } && n == 4 {
                const $R: usize = 4;
                $run;
            } else if const { $S::SCORE_ROWS >= 4 } && n == 3 {
                const $R: usize = 3;
                $run;
            } else if const { $S::SCORE_ROWS >= 4 } && n == 2 {
                const $R: usize = 2;
                $run;
            } else {
                const $R: usize = 1;
                $run;
            }
            $r += n;
        }
    }};
}
use by_rows;

#[inline(always)]
unsafe fn row_blocks<S: Lanes, E: Element>(a: TileArgs, keys: *const u8, values: *const u8) {
    // SAFETY: as the caller vouches.
    unsafe { by_rows!(S, a.count, |r, R| block::<S, E, R>(a, a.rows.add(r), keys, values)) }
}

/// R query rows over the tile.
#[inline(always)]
unsafe fn block<S: Lanes, E: Element, const R: usize>(
    a: TileArgs,
    rows: *const QueryRow,
    keys: *const u8,
    values: *const u8,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut q = [std::ptr::null::<f32>(); R];
        for (r, q) in q.iter_mut().enumerate() {
            *q = (*rows.add(r)).q;
        }
        let s = scores::<S, E, R>(a.k_dim, q, keys, a.values.cast());
        let w = weights::<S, R>(rows, s, a.scale, a.softcap);
        let out = a.scratch.add((a.k_dim + a.v_dim) * TILE);
        weighted::<S, E, R>(a.v_dim, &w, values, out, a.next);
        for r in 0..R {
            let end = out.add(r * state_len(a.v_dim) + a.v_dim);
            (*end, *end.add(1)) = (w.max[r], w.sum[r]);
        }
        fold_rows::<S>(rows, R, a.v_dim, out);
    }
}

/// From scores to weights.
#[inline(always)]
unsafe fn weights<S: Lanes, const R: usize>(
    rows: *const QueryRow,
    mut s: [[S::F; 4]; R],
    scale: f32,
    softcap: f32,
) -> Weights<R> {
    // SAFETY: as the caller vouches.
    unsafe {
        for s in &mut s {
            for s in s {
                *s = S::mul(*s, S::splat(scale));
                if softcap != 0.0 {
                    *s = math::soft_cap::<S>(*s, softcap);
                }
            }
        }
        let mut w = Weights { p: [[0.0f32; TILE]; R], seen: [(0, 0); R], max: [0.0; R], sum: [0.0; R] };
        let mut most = [S::splat(0.0); R];
        for r in 0..R {
            let (lo, hi) = ((*rows.add(r)).lo as usize, (*rows.add(r)).hi as usize);
            w.seen[r] = (lo, hi);
            if lo > 0 || hi < TILE {
                let p = w.p[r].as_mut_ptr();
                for i in 0..4 {
                    S::store(p.add(16 * i), s[r][i]);
                }
                for pos in (0..lo).chain(hi..TILE) {
                    *p.add(pos) = f32::NEG_INFINITY;
                }
                for i in 0..4 {
                    s[r][i] = S::load(p.add(16 * i));
                }
            }
            most[r] = S::max(S::max(s[r][0], s[r][1]), S::max(s[r][2], s[r][3]));
        }
        w.max = match R {
            1 => [math::tree_max(math::lanes::<S>(most[0])); R],
            _ => first::<R>(S::tree_maxima(four::<S, R>(most))),
        };
        // Row by row within each group of positions: the rows' chains are long and independent.
        let mut sum = [S::splat(0.0); R];
        for i in 0..4 {
            for r in 0..R {
                let e = math::exp::<S>(S::sub(s[r][i], S::splat(w.max[r])));
                S::store(w.p[r].as_mut_ptr().add(16 * i), e);
                sum[r] = if i == 0 { e } else { S::add(sum[r], e) };
            }
        }
        w.sum = sums::<S, R>(sum);
        w
    }
}

/// The sum of each vector's lanes by the tree.
#[inline(always)]
unsafe fn sums<S: Lanes, const R: usize>(v: [S::F; R]) -> [f32; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        match R {
            1 => [math::tree_sum(math::lanes::<S>(v[0])); R],
            _ => first::<R>(S::tree_sums(four::<S, R>(v))),
        }
    }
}

/// Up to four vectors, the last one repeated.
#[inline(always)]
fn four<S: Lanes, const R: usize>(v: [S::F; R]) -> [S::F; 4] {
    const { assert!(R >= 1 && R <= 4) };
    [v[0], v[1.min(R - 1)], v[2.min(R - 1)], v[3.min(R - 1)]]
}

#[inline(always)]
fn first<const R: usize>(v: [f32; 4]) -> [f32; R] {
    let mut out = [0.0; R];
    out.copy_from_slice(&v[..R]);
    out
}

/// Rows whose folds share one exponential.
const FOLD_ROWS: usize = 8;

/// Folds the tile's outputs of some rows, each at [`state_len`] from `out` with its maximum and sum behind it, into
/// their states.
#[inline(always)]
unsafe fn fold_rows<S: Lanes>(rows: *const QueryRow, count: usize, v_dim: usize, out: *mut f32) {
    debug_assert!(count <= FOLD_ROWS);
    // SAFETY: as the caller vouches.
    unsafe {
        let stride = state_len(v_dim);
        // The folds' two factors of every row come from one exponential.
        let mut below = [0.0f32; 2 * FOLD_ROWS];
        let mut is_fold = false;
        for r in 0..count {
            let row = *rows.add(r);
            if !row.first {
                let (before, here) = (*row.state.add(v_dim), *out.add(r * stride + v_dim));
                let both = larger(before, here);
                (below[2 * r], below[2 * r + 1]) = (before - both, here - both);
                is_fold = true;
            }
        }
        let factors = match is_fold {
            true => math::lanes::<S>(math::exp::<S>(S::load(below.as_ptr()))),
            false => below,
        };
        for r in 0..count {
            let row = *rows.add(r);
            let part = out.add(r * stride);
            if row.first {
                copy::<S>(part, row.state, v_dim);
                (*row.state.add(v_dim), *row.state.add(v_dim + 1)) = (*part.add(v_dim), *part.add(v_dim + 1));
            } else {
                let (x, y) = (S::splat(factors[2 * r]), S::splat(factors[2 * r + 1]));
                join::<S>(FoldArgs { state: row.state, tile: part, v_dim }, x, y);
            }
        }
    }
}

/// Copies a multiple of 16: for so little, a call takes longer.
#[inline(always)]
unsafe fn copy<S: Lanes>(from: *const f32, to: *mut f32, len: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        for i in (0..len).step_by(16) {
            S::store(to.add(i), S::load(from.add(i)));
        }
    }
}

/// Scores of all 64 positions.
#[inline(always)]
unsafe fn scores<S: Lanes, E: Element, const R: usize>(
    k_dim: usize,
    q: [*const f32; R],
    keys: *const u8,
    ahead: *const u8,
) -> [[S::F; 4]; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut acc = [[S::splat(0.0); 4]; R];
        for first in (0..k_dim).step_by(2) {
            for ch in [first, first + 1] {
                E::ahead::<S>(ahead.wrapping_add(128 * ch));
                let key = keys.add(ch * TILE * E::BYTES);
                let k: [S::F; 4] = [
                    E::load::<S>(key),
                    E::load::<S>(key.add(16 * E::BYTES)),
                    E::load::<S>(key.add(32 * E::BYTES)),
                    E::load::<S>(key.add(48 * E::BYTES)),
                ];
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = S::splat(*q[r].add(ch));
                    for (i, acc) in acc.iter_mut().enumerate() {
                        *acc = S::fma(x, k[i], *acc);
                    }
                }
            }
        }
        acc
    }
}

/// Σ p·value over the positions that each of R rows sees.
#[inline(always)]
unsafe fn weighted<S: Lanes, E: Element, const R: usize>(
    v_dim: usize,
    w: &Weights<R>,
    values: *const u8,
    out: *mut f32,
    ahead: *const u8,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut ch = 0;
        while ch + 64 <= v_dim {
            channels::<S, E, R, 4>(v_dim, w, values, out, ch, ahead);
            ch += 64;
        }
        while ch < v_dim {
            channels::<S, E, R, 1>(v_dim, w, values, out, ch, ahead);
            ch += 16;
        }
    }
}

/// 16·C channels from ch of the whole tile.
#[inline(always)]
unsafe fn channels<S: Lanes, E: Element, const R: usize, const C: usize>(
    v_dim: usize,
    w: &Weights<R>,
    values: *const u8,
    out: *mut f32,
    ch: usize,
    ahead: *const u8,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        let rows = Row::<E> {
            values: values.add(ch * E::BYTES),
            stride: v_dim * E::BYTES,
            ahead: ahead.wrapping_add(2 * TILE * ch),
            of: PhantomData,
        };
        add_values::<S, Row<E>, R, C>(w.p.each_ref().map(|p| p.as_ptr()), &w.seen, rows, &mut acc);
        for (r, acc) in acc.iter().enumerate() {
            for (i, &acc) in acc.iter().enumerate() {
                S::store(out.add(r * state_len(v_dim) + ch + 16 * i), acc);
            }
        }
    }
}

/// Gives 16·C channels of a position's values, or of their codes.
trait Loads: Copy {
    unsafe fn load<S: Lanes, const C: usize>(self, pos: usize) -> [S::F; C];
}

/// Values as they are, `[position][channel]`.
#[derive(Clone, Copy)]
struct Row<E> {
    values: *const u8,
    /// Bytes from one position to the next.
    stride: usize,
    /// What is fetched meanwhile: 32·C bytes a position.
    ahead: *const u8,
    of: PhantomData<E>,
}

impl<E: Element> Loads for Row<E> {
    #[inline(always)]
    unsafe fn load<S: Lanes, const C: usize>(self, pos: usize) -> [S::F; C] {
        // SAFETY: as the caller vouches.
        unsafe {
            E::ahead::<S>(self.ahead.wrapping_add(32 * C * pos));
            let mut v = [S::splat(0.0); C];
            for (i, v) in v.iter_mut().enumerate() {
                *v = E::load::<S>(self.values.add(pos * self.stride + 16 * i * E::BYTES));
            }
            v
        }
    }
}

/// acc += Σ weight·value over the positions that each row sees, in their order. Those that all rows see load each value
/// once; what a row sees before and behind them (the edges of a prompt's triangle) goes by itself.
#[inline(always)]
unsafe fn add_values<S: Lanes, L: Loads, const R: usize, const C: usize>(
    weights: [*const f32; R],
    seen: &[(usize, usize); R],
    values: L,
    acc: &mut [[S::F; C]; R],
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (mut lo, mut hi) = seen[0];
        for &(l, h) in seen {
            (lo, hi) = (lo.max(l), hi.min(h));
        }
        // Rows that share nothing go one after the other.
        hi = hi.max(lo);
        for (r, acc) in acc.iter_mut().enumerate() {
            for pos in seen[r].0..lo.min(seen[r].1) {
                add_value::<S, L, C>(*weights[r].add(pos), values, pos, acc);
            }
        }
        let mut pos = lo;
        while pos + 2 <= hi {
            add_shared::<S, L, R, C>(weights, values, pos, acc);
            add_shared::<S, L, R, C>(weights, values, pos + 1, acc);
            pos += 2;
        }
        if pos < hi {
            add_shared::<S, L, R, C>(weights, values, pos, acc);
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            for pos in hi.max(seen[r].0)..seen[r].1 {
                add_value::<S, L, C>(*weights[r].add(pos), values, pos, acc);
            }
        }
    }
}

/// acc += weight·value of a position that all rows see.
#[inline(always)]
unsafe fn add_shared<S: Lanes, L: Loads, const R: usize, const C: usize>(
    weights: [*const f32; R],
    values: L,
    pos: usize,
    acc: &mut [[S::F; C]; R],
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let v = values.load::<S, C>(pos);
        for (r, acc) in acc.iter_mut().enumerate() {
            let w = S::splat(*weights[r].add(pos));
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = S::fma(w, v[i], *acc);
            }
        }
    }
}

/// acc += weight·value of one position.
#[inline(always)]
unsafe fn add_value<S: Lanes, L: Loads, const C: usize>(w: f32, values: L, pos: usize, acc: &mut [S::F; C]) {
    // SAFETY: as the caller vouches.
    unsafe {
        let v = values.load::<S, C>(pos);
        for (i, acc) in acc.iter_mut().enumerate() {
            *acc = S::fma(S::splat(w), v[i], *acc);
        }
    }
}

/// The arguments of one fold: state = state ⊕ tile, both as [`QueryRow::state`].
#[derive(Clone, Copy)]
pub(crate) struct FoldArgs {
    pub(crate) state: *mut f32,
    pub(crate) tile: *const f32,
    pub(crate) v_dim: usize,
}

/// # Safety
/// As [`Lanes`]; both hold [`state_len`] elements.
#[inline(always)]
pub(crate) unsafe fn fold<S: Lanes>(f: FoldArgs) {
    // SAFETY: as the caller vouches; v_dim is a multiple of 16.
    unsafe {
        let (m1, m2) = (*f.state.add(f.v_dim), *f.tile.add(f.v_dim));
        let m = larger(m1, m2);
        let (a, b) = (S::splat(m1 - m), S::splat(m2 - m));
        join::<S>(f, math::exp::<S>(a), math::exp::<S>(b));
    }
}

/// The larger of two running maxima.
#[inline(always)]
fn larger(m1: f32, m2: f32) -> f32 {
    if m1 > m2 { m1 } else { m2 }
}

/// The fold, given its factors a and b in every lane.
#[inline(always)]
unsafe fn join<S: Lanes>(f: FoldArgs, a: S::F, b: S::F) {
    // SAFETY: as the caller vouches; v_dim is a multiple of 16.
    unsafe {
        let (end, tile_end) = (f.state.add(f.v_dim), f.tile.add(f.v_dim));
        let s = S::fma(S::splat(*end.add(1)), a, S::mul(S::splat(*tile_end.add(1)), b));
        *end = larger(*end, *tile_end);
        *end.add(1) = math::lanes::<S>(s)[0];
        for i in (0..f.v_dim).step_by(16) {
            let o = S::fma(S::load(f.state.add(i)), a, S::mul(S::load(f.tile.add(i)), b));
            S::store(f.state.add(i), o);
        }
    }
}

/// The arguments of the last step: out = o · (1/s).
#[derive(Clone, Copy)]
pub(crate) struct OutputArgs {
    pub(crate) state: *const f32,
    pub(crate) v_dim: usize,
    pub(crate) out: *mut f32,
}

/// # Safety
/// As [`Lanes`]; the state holds [`state_len`] elements and out `v_dim`, a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn output<S: Lanes>(a: OutputArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        let r = S::splat(1.0 / *a.state.add(a.v_dim + 1));
        for i in (0..a.v_dim).step_by(16) {
            S::store(a.out.add(i), S::mul(S::load(a.state.add(i)), r));
        }
    }
}
