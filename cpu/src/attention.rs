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
//! Departures from the plain loops:
//! 1. up to [`Lanes::SCORE_ROWS`] query rows advance together and share each key and value that is loaded;
//! 2. many rows (a prompt) first widen the tile to f32 once; the values are the same, so the bits are.
#![allow(clippy::needless_range_loop)] // indices run over several arrays at once

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
    /// f32 `[(k_dim + v_dim)·64 + 4·state_len]`.
    pub(crate) scratch: *mut f32,
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
            for i in (0..a.k_dim * TILE).step_by(16) {
                S::store(keys.add(i), S::load_f16(a.keys.add(i)));
            }
            // Only positions that some row sees hold anything.
            let seen = (0..a.count).fold(0, |m, r| m.max((*a.rows.add(r)).hi as usize));
            for i in (0..a.v_dim * seen).step_by(16) {
                S::store(values.add(i), S::load_f16(a.values.add(i)));
            }
            row_blocks::<S, Wide>(a, keys.cast(), values.cast());
        } else {
            row_blocks::<S, Half>(a, a.keys.cast(), a.values.cast());
        }
    }
}

/// How tile elements are stored.
trait Element {
    const BYTES: usize;
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F;
}
struct Half;
struct Wide;
impl Element for Half {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F {
        // SAFETY: 16 f16 at p.
        unsafe { S::load_f16(p.cast()) }
    }
}
impl Element for Wide {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F {
        // SAFETY: 16 f32 at p.
        unsafe { S::load(p.cast()) }
    }
}

#[inline(always)]
unsafe fn row_blocks<S: Lanes, E: Element>(a: TileArgs, keys: *const u8, values: *const u8) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut r = 0;
        while r < a.count {
            let n = (a.count - r).min(S::SCORE_ROWS);
            let rows = a.rows.add(r);
            match n {
                4 => block::<S, E, 4>(a, rows, keys, values),
                3 => block::<S, E, 3>(a, rows, keys, values),
                2 => block::<S, E, 2>(a, rows, keys, values),
                _ => block::<S, E, 1>(a, rows, keys, values),
            }
            r += n;
        }
    }
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
        let mut s = scores::<S, E, R>(a, rows, keys);
        let mut p = [[0.0f32; TILE]; R];
        let out = a.scratch.add((a.k_dim + a.v_dim) * TILE);
        let stride = state_len(a.v_dim);
        let mut seen = [(0, 0); R];
        let mut m = [0.0; R];
        for r in 0..R {
            let (lo, hi) = ((*rows.add(r)).lo as usize, (*rows.add(r)).hi as usize);
            seen[r] = (lo, hi);
            if lo > 0 || hi < TILE {
                let p = p[r].as_mut_ptr();
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
            let most = S::max(S::max(s[r][0], s[r][1]), S::max(s[r][2], s[r][3]));
            m[r] = math::tree_max(math::lanes::<S>(most));
        }
        // Row by row within each group of positions: the rows' chains are long and independent.
        let mut sum = [S::splat(0.0); R];
        for i in 0..4 {
            for r in 0..R {
                let e = math::exp::<S>(S::sub(s[r][i], S::splat(m[r])));
                S::store(p[r].as_mut_ptr().add(16 * i), e);
                sum[r] = if i == 0 { e } else { S::add(sum[r], e) };
            }
        }
        for r in 0..R {
            *out.add(r * stride + a.v_dim) = m[r];
            *out.add(r * stride + a.v_dim + 1) = math::tree_sum(math::lanes::<S>(sum[r]));
        }
        weighted::<S, E, R>(a, &p, &seen, values, out);
        // The folds' two factors of every row come from one exponential.
        let mut below = [0.0f32; 16];
        for r in 0..R {
            let state = (*rows.add(r)).state;
            if !(*rows.add(r)).first {
                let before = *state.add(a.v_dim);
                let both = larger(before, m[r]);
                (below[2 * r], below[2 * r + 1]) = (before - both, m[r] - both);
            }
        }
        let factors = math::lanes::<S>(math::exp::<S>(S::load(below.as_ptr())));
        for r in 0..R {
            let row = *rows.add(r);
            let part = out.add(r * stride);
            if row.first {
                std::ptr::copy_nonoverlapping(part, row.state, a.v_dim + 2);
            } else {
                let (x, y) = (S::splat(factors[2 * r]), S::splat(factors[2 * r + 1]));
                join::<S>(FoldArgs { state: row.state, tile: part, v_dim: a.v_dim }, x, y);
            }
        }
    }
}

/// Scaled and capped scores of all 64 positions; those a row does not see mean nothing yet.
#[inline(always)]
unsafe fn scores<S: Lanes, E: Element, const R: usize>(
    a: TileArgs,
    rows: *const QueryRow,
    keys: *const u8,
) -> [[S::F; 4]; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut acc = [[S::splat(0.0); 4]; R];
        let mut q = [std::ptr::null::<f32>(); R];
        for (r, q) in q.iter_mut().enumerate() {
            *q = (*rows.add(r)).q;
        }
        for ch in 0..a.k_dim {
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
        for acc in &mut acc {
            for acc in acc {
                *acc = S::mul(*acc, S::splat(a.scale));
                if a.softcap != 0.0 {
                    *acc = math::soft_cap::<S>(*acc, a.softcap);
                }
            }
        }
        acc
    }
}

/// Σ p·value over the positions that each of R rows sees.
#[inline(always)]
unsafe fn weighted<S: Lanes, E: Element, const R: usize>(
    a: TileArgs,
    p: &[[f32; TILE]; R],
    seen: &[(usize, usize); R],
    values: *const u8,
    out: *mut f32,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut ch = 0;
        while ch + 64 <= a.v_dim {
            channels::<S, E, R, 4>(a, p, seen, values, out, ch);
            ch += 64;
        }
        while ch < a.v_dim {
            channels::<S, E, R, 1>(a, p, seen, values, out, ch);
            ch += 16;
        }
    }
}

/// 16·C channels from ch. The positions that all rows see load each value once; what a row sees before and behind
/// them (the edges of a prompt's triangle) follows in its own order.
#[inline(always)]
unsafe fn channels<S: Lanes, E: Element, const R: usize, const C: usize>(
    a: TileArgs,
    p: &[[f32; TILE]; R],
    seen: &[(usize, usize); R],
    values: *const u8,
    out: *mut f32,
    ch: usize,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (mut lo, mut hi) = seen[0];
        for &(l, h) in seen {
            (lo, hi) = (lo.max(l), hi.min(h));
        }
        // Rows that share nothing go one after the other.
        hi = hi.max(lo);
        let mut acc = [[S::splat(0.0); C]; R];
        for (r, acc) in acc.iter_mut().enumerate() {
            for pos in seen[r].0..lo.min(seen[r].1) {
                add_value::<S, E, C>(a, p[r][pos], values, pos, ch, acc);
            }
        }
        for pos in lo..hi {
            let value = values.add((pos * a.v_dim + ch) * E::BYTES);
            let mut v = [S::splat(0.0); C];
            for (i, v) in v.iter_mut().enumerate() {
                *v = E::load::<S>(value.add(16 * i * E::BYTES));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let w = S::splat(p[r][pos]);
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = S::fma(w, v[i], *acc);
                }
            }
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            for pos in hi.max(seen[r].0)..seen[r].1 {
                add_value::<S, E, C>(a, p[r][pos], values, pos, ch, acc);
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (i, &acc) in acc.iter().enumerate() {
                S::store(out.add(r * state_len(a.v_dim) + ch + 16 * i), acc);
            }
        }
    }
}

/// acc += w·value of one position.
#[inline(always)]
unsafe fn add_value<S: Lanes, E: Element, const C: usize>(
    a: TileArgs,
    w: f32,
    values: *const u8,
    pos: usize,
    ch: usize,
    acc: &mut [S::F; C],
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let value = values.add((pos * a.v_dim + ch) * E::BYTES);
        for (i, acc) in acc.iter_mut().enumerate() {
            *acc = S::fma(S::splat(w), E::load::<S>(value.add(16 * i * E::BYTES)), *acc);
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
