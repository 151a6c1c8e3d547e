//! Attention where a half of the tile is codes: nothing is dequantised, the levels go to the query and the weights.
//!
//! ```text
//! turned[ch] = q[ch]·scale[ch]; bias = Σ_ch q[ch]·zero[ch]       16 lanes of channels, fused, then the tree
//! score[pos] = Σ_ch turned[ch]·code[ch][pos], + bias             ch ascending, fused, from zero
//! share[pos] = p[pos]·scale[pos]; bias = Σ_pos p[pos]·zero[pos]   per 32 channels; 16 lanes of positions, halves in order
//! o[ch] = Σ_pos share[pos]·code[pos][ch], + bias                  pos ascending through both halves, fused, from zero
//! ```
//!
//! Where a half is f16 its terms are those of the plain tile, in the same sums. A sink is f16 at its place in the order.
//! A position that a row does not see has no part in any sum.

use super::{
    Half, Halves, Loads, Row, Stored, TILE, TileArgs, Weights, Wide, add_values, positions_seen, widened,
};
use super::{PhantomData, state_len};
use crate::lanes::Lanes;
use crate::math;
use tensor::kv::GROUP_POSITIONS as GROUP;

/// Channels whose values share their levels.
const CHANNELS: usize = 32;

/// Bytes of the codes of one unit of 32.
const fn unit_bytes(bits: u32) -> usize {
    4 * bits as usize
}

/// Half the tile or more is packed; `WIDE` where codes and f16 have been widened to f32.
pub(super) struct Packed<const WIDE: bool>;

/// Runs a statement with the bits of a code as a constant; 0 bits, f16, is the caller's.
macro_rules! with_bits {
    ($bits:expr, $B:ident => $e:expr) => {
        match $bits {
            2 => {
                const $B: u32 = 2;
                $e
            }
            3 => {
                const $B: u32 = 3;
                $e
            }
            4 => {
                const $B: u32 = 4;
                $e
            }
            5 => {
                const $B: u32 = 5;
                $e
            }
            6 => {
                const $B: u32 = 6;
                $e
            }
            _ => {
                const $B: u32 = 8;
                $e
            }
        }
    };
}

impl<const WIDE: bool> Stored for Packed<WIDE> {
    #[inline(always)]
    unsafe fn scores<S: Lanes, const R: usize>(a: TileArgs, q: [*const f32; R]) -> [[S::F; 4]; R] {
        // SAFETY: as the caller vouches.
        unsafe {
            let mut out = [[S::splat(0.0); 4]; R];
            for (h, half) in a.keys.into_iter().enumerate() {
                let scores = half_scores::<S, WIDE, R>(a, half, h, q);
                for (out, scores) in out.iter_mut().zip(scores) {
                    (out[2 * h], out[2 * h + 1]) = (scores[0], scores[1]);
                }
            }
            if a.sinks.count > 0 && !a.sinks.keys.is_null() {
                sink_scores::<S, R>(a, q, &mut out);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn weighted<S: Lanes, const R: usize>(a: TileArgs, w: &Weights<R>, out: *mut f32) {
        // SAFETY: as the caller vouches.
        unsafe {
            let mut ch = 0;
            while ch + CHANNELS <= a.v_dim {
                channels::<S, WIDE, R, 2>(a, w, out, ch);
                ch += CHANNELS;
            }
            if ch < a.v_dim {
                channels::<S, WIDE, R, 1>(a, w, out, ch);
            }
        }
    }
}

/// Widens f16 and codes of the tile's seen positions to f32; levels stay apart.
///
/// # Safety
/// As [`super::tile`].
#[inline(always)]
pub(super) unsafe fn widen<S: Lanes>(a: TileArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (keys, values) = widened(a);
        for (h, half) in a.keys.into_iter().enumerate() {
            let to = keys.add(h * GROUP);
            if half.bits == 0 {
                for ch in 0..a.k_dim {
                    for i in [0, 16] {
                        let from = half.ptr.cast::<u16>().add(ch * TILE + h * GROUP + i);
                        S::store(to.add(ch * TILE + i), S::load_f16(from));
                    }
                }
            } else {
                with_bits!(half.bits, B => widen_units::<S, B>(half.ptr, to, a.k_dim, TILE));
            }
        }
        let seen = positions_seen(a);
        for (h, half) in a.values.into_iter().enumerate() {
            let to = values.add(h * GROUP * a.v_dim);
            if half.bits == 0 {
                let positions = seen.saturating_sub(h * GROUP).min(GROUP);
                super::widen::<S>(half.ptr.add(2 * h * GROUP * a.v_dim), to, positions * a.v_dim);
            } else {
                with_bits!(half.bits, B => widen_values::<S, B>(half.ptr, to, a.v_dim));
            }
        }
    }
}

#[inline(always)]
unsafe fn widen_units<S: Lanes, const B: u32>(units: *const u8, to: *mut f32, count: usize, stride: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        for i in 0..count {
            let v = unit::<S, B>(units.add(i * unit_bytes(B)));
            S::store(to.add(i * stride), v[0]);
            S::store(to.add(i * stride + 16), v[1]);
        }
    }
}

#[inline(always)]
unsafe fn widen_values<S: Lanes, const B: u32>(units: *const u8, to: *mut f32, v_dim: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let whole = v_dim / CHANNELS;
        for pos in 0..GROUP {
            let (units, to) = (units.add(pos * whole * unit_bytes(B)), to.add(pos * v_dim));
            widen_units::<S, B>(units, to, whole, CHANNELS);
        }
        if !v_dim.is_multiple_of(CHANNELS) {
            for pair in 0..GROUP / 2 {
                let v = unit::<S, B>(units.add((GROUP * whole + pair) * unit_bytes(B)));
                let to = to.add(2 * pair * v_dim + CHANNELS * whole);
                S::store(to, v[0]);
                S::store(to.add(v_dim), v[1]);
            }
        }
    }
}

/// The 32 codes of a unit.
#[inline(always)]
unsafe fn unit<S: Lanes, const B: u32>(p: *const u8) -> [S::F; 2] {
    // SAFETY: the caller vouches for the unit's bytes.
    unsafe {
        let codes = match B {
            8 => [S::widen_u8(p), S::widen_u8(p.add(16))],
            6 => above::<S, 4>(nibbles::<S>(p), pairs::<S>(p.add(16))),
            5 => above::<S, 4>(nibbles::<S>(p), single::<S>(p.add(16))),
            4 => nibbles::<S>(p),
            3 => above::<S, 2>(pairs::<S>(p), single::<S>(p.add(8))),
            _ => pairs::<S>(p),
        };
        [S::to_float(codes[0]), S::to_float(codes[1])]
    }
}

/// low | high·2^N.
#[inline(always)]
unsafe fn above<S: Lanes, const N: u32>(low: [S::I; 2], high: [S::I; 2]) -> [S::I; 2] {
    // SAFETY: as the caller vouches.
    unsafe { [S::or(low[0], S::shl::<N>(high[0])), S::or(low[1], S::shl::<N>(high[1]))] }
}

/// A plane of four bits: 16 bytes.
#[inline(always)]
unsafe fn nibbles<S: Lanes>(p: *const u8) -> [S::I; 2] {
    // SAFETY: as the caller vouches.
    unsafe {
        let both = S::widen_u8(p);
        [S::and(both, S::splat_int(15)), S::shr::<4>(both)]
    }
}

/// A plane of two bits: 8 bytes.
#[inline(always)]
unsafe fn pairs<S: Lanes>(p: *const u8) -> [S::I; 2] {
    // SAFETY: as the caller vouches.
    unsafe {
        let shifts = S::load_int(PAIR_SHIFTS.as_ptr().cast());
        let word = |i: usize| S::splat_int(p.cast::<i32>().add(i).read_unaligned());
        let (first, last) = (word(0), word(1));
        let three = S::splat_int(3);
        [S::and(S::shr_each(first, shifts), three), S::and(S::shr_each(last, shifts), three)]
    }
}

/// A plane of one bit: 4 bytes.
#[inline(always)]
unsafe fn single<S: Lanes>(p: *const u8) -> [S::I; 2] {
    // SAFETY: as the caller vouches.
    unsafe {
        let word = S::splat_int(p.cast::<i32>().read_unaligned());
        let one = S::splat_int(1);
        let low = S::shr_each(word, S::load_int(BIT_SHIFTS.as_ptr().cast()));
        let high = S::shr_each(word, S::load_int(BIT_SHIFTS.as_ptr().add(16).cast()));
        [S::and(low, one), S::and(high, one)]
    }
}

static PAIR_SHIFTS: [i32; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
static BIT_SHIFTS: [i32; 32] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31,
];

/// Scores of one half of the tile.
#[inline(always)]
unsafe fn half_scores<S: Lanes, const WIDE: bool, const R: usize>(
    a: TileArgs,
    half: Half,
    h: usize,
    q: [*const f32; R],
) -> [[S::F; 2]; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        let wide = widened(a).0.add(h * GROUP).cast::<u8>();
        if half.bits == 0 {
            let keys = if WIDE {
                return dot::<S, Columns<Wide>, R>(a.k_dim, Columns(wide, PhantomData), q);
            } else {
                half.ptr.add(2 * h * GROUP)
            };
            return dot::<S, Columns<Halves>, R>(a.k_dim, Columns(keys, PhantomData), q);
        }
        let levels = half.ptr.add(a.k_dim * unit_bytes(half.bits)).cast::<u16>();
        let turned_at = a.scratch.add((a.k_dim + a.v_dim) * TILE + 4 * state_len(a.v_dim));
        let (mut turned, mut bias) = ([std::ptr::null(); R], [S::splat(0.0); R]);
        for r in 0..R {
            let to = turned_at.add(r * a.k_dim);
            let mut sum = S::splat(0.0);
            for ch in (0..a.k_dim).step_by(16) {
                let x = S::load(q[r].add(ch));
                S::store(to.add(ch), S::mul(x, S::load_f16(levels.add(ch))));
                sum = S::fma(x, S::load_f16(levels.add(a.k_dim + ch)), sum);
            }
            turned[r] = to.cast_const();
            bias[r] = S::splat(math::tree_sum(math::lanes::<S>(sum)));
        }
        let mut scores = if WIDE {
            dot::<S, Columns<Wide>, R>(a.k_dim, Columns(wide, PhantomData), turned)
        } else {
            with_bits!(half.bits, B => dot::<S, Units<B>, R>(a.k_dim, Units(half.ptr), turned))
        };
        for (scores, bias) in scores.iter_mut().zip(bias) {
            for s in scores {
                *s = S::add(*s, bias);
            }
        }
        scores
    }
}

/// 32 positions of a channel.
trait Channel: Copy {
    unsafe fn load<S: Lanes>(self, ch: usize) -> [S::F; 2];
}

/// Half a tile of keys as they are.
#[derive(Clone, Copy)]
struct Columns<E>(*const u8, PhantomData<E>);

impl<E: super::Element> Channel for Columns<E> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, ch: usize) -> [S::F; 2] {
        // SAFETY: as the caller vouches.
        unsafe {
            let p = self.0.add(ch * TILE * E::BYTES);
            [E::load::<S>(p), E::load::<S>(p.add(16 * E::BYTES))]
        }
    }
}

/// A packed group's codes.
#[derive(Clone, Copy)]
struct Units<const B: u32>(*const u8);

impl<const B: u32> Channel for Units<B> {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, ch: usize) -> [S::F; 2] {
        // SAFETY: as the caller vouches.
        unsafe { unit::<S, B>(self.0.add(ch * unit_bytes(B))) }
    }
}

#[inline(always)]
unsafe fn dot<S: Lanes, K: Channel, const R: usize>(
    k_dim: usize,
    keys: K,
    q: [*const f32; R],
) -> [[S::F; 2]; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut acc = [[S::splat(0.0); 2]; R];
        for ch in 0..k_dim {
            let k = keys.load::<S>(ch);
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = S::splat(*q[r].add(ch));
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = S::fma(x, k[i], *acc);
                }
            }
        }
        acc
    }
}

/// Puts the sinks' scores in their places.
#[inline(always)]
unsafe fn sink_scores<S: Lanes, const R: usize>(a: TileArgs, q: [*const f32; R], out: &mut [[S::F; 4]; R]) {
    // SAFETY: as the caller vouches.
    unsafe {
        for (r, out) in out.iter_mut().enumerate() {
            for (i, out) in out.iter_mut().enumerate().take(a.sinks.stored / 16) {
                let mut acc = S::splat(0.0);
                for ch in 0..a.k_dim {
                    let key = S::load_f16(a.sinks.keys.add(ch * a.sinks.stored + 16 * i));
                    acc = S::fma(S::splat(*q[r].add(ch)), key, acc);
                }
                let (sinks, mut both) = (math::lanes::<S>(acc), math::lanes::<S>(*out));
                let count = (a.sinks.count - 16 * i).min(16);
                both[..count].copy_from_slice(&sinks[..count]);
                *out = S::load(both.as_ptr());
            }
        }
    }
}

/// 16·C channels from ch: 32 that share their levels, or the last 16.
#[inline(always)]
unsafe fn channels<S: Lanes, const WIDE: bool, const R: usize, const C: usize>(
    a: TileArgs,
    w: &Weights<R>,
    out: *mut f32,
    ch: usize,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (mut acc, mut biases) = ([[S::splat(0.0); C]; R], [S::splat(0.0); R]);
        for (h, half) in a.values.into_iter().enumerate() {
            let from = h * GROUP;
            // What each row sees of this half, relative to it.
            let mut seen = [(0, 0); R];
            for (seen, &(lo, hi)) in seen.iter_mut().zip(&w.seen) {
                *seen = (lo.clamp(from, from + GROUP) - from, hi.clamp(from, from + GROUP) - from);
            }
            let p = w.p.each_ref().map(|p| p.as_ptr().add(from));
            let wide = widened(a).1.add(from * a.v_dim + ch);
            if half.bits == 0 {
                let stride = a.v_dim;
                if WIDE {
                    let rows = Row::<Wide> { values: wide.cast(), stride: 4 * stride, of: PhantomData };
                    add_values::<S, Row<Wide>, R, C>(p, &seen, rows, &mut acc);
                } else {
                    let values = half.ptr.add(2 * (from * stride + ch));
                    let rows = Row::<Halves> { values, stride: 2 * stride, of: PhantomData };
                    add_values::<S, Row<Halves>, R, C>(p, &seen, rows, &mut acc);
                }
                continue;
            }
            if h == 0 && a.sinks.count > 0 && !a.sinks.values.is_null() {
                let values = a.sinks.values.add(ch).cast();
                let rows = Row::<Halves> { values, stride: 2 * a.v_dim, of: PhantomData };
                let mut sinks = seen;
                for (sinks, seen) in sinks.iter_mut().zip(&mut seen) {
                    *sinks = (sinks.0.min(a.sinks.count), sinks.1.min(a.sinks.count));
                    *seen = (seen.0.max(a.sinks.count), seen.1.max(a.sinks.count));
                }
                add_values::<S, Row<Halves>, R, C>(p, &sinks, rows, &mut acc);
            }
            let shares = shares::<S, R>(a, half, ch, p, &seen, &mut biases);
            let shares = shares.each_ref().map(|s| s.as_ptr());
            if WIDE {
                let rows = Row::<Wide> { values: wide.cast(), stride: 4 * a.v_dim, of: PhantomData };
                add_values::<S, Row<Wide>, R, C>(shares, &seen, rows, &mut acc);
            } else {
                with_bits!(half.bits, B => {
                    let whole = a.v_dim / CHANNELS;
                    let rows = if C == 2 {
                        Positions::<B> {
                            units: half.ptr.add(ch / CHANNELS * unit_bytes(B)),
                            stride: whole * unit_bytes(B),
                        }
                    } else {
                        Positions::<B> { units: half.ptr.add(GROUP * whole * unit_bytes(B)), stride: unit_bytes(B) }
                    };
                    add_values::<S, Positions<B>, R, C>(shares, &seen, rows, &mut acc);
                });
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            let bias = S::splat(math::tree_sum(math::lanes::<S>(biases[r])));
            for (i, &acc) in acc.iter().enumerate() {
                S::store(out.add(r * state_len(a.v_dim) + ch + 16 * i), S::add(acc, bias));
            }
        }
    }
}

/// Each row's weights times the scales of the channels from ch, and in `biases` what their zeros add.
#[inline(always)]
unsafe fn shares<S: Lanes, const R: usize>(
    a: TileArgs,
    half: Half,
    ch: usize,
    p: [*const f32; R],
    seen: &[(usize, usize); R],
    biases: &mut [S::F; R],
) -> [[f32; GROUP]; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        let levels = half.ptr.add(a.v_dim * unit_bytes(half.bits)).cast::<u16>();
        let scales = levels.add(ch / CHANNELS * GROUP);
        let zeros = scales.add(a.v_dim.div_ceil(CHANNELS) * GROUP);
        let mut shares = [[0.0f32; GROUP]; R];
        for r in 0..R {
            let (lo, hi) = seen[r];
            for i in [0, 16] {
                let mut weight = S::load(p[r].add(i));
                let mut zero = S::load_f16(zeros.add(i));
                if lo > i || hi < i + 16 {
                    let (mut some, mut its) = (math::lanes::<S>(weight), math::lanes::<S>(zero));
                    for pos in (0..16).filter(|pos| i + pos < lo || i + pos >= hi) {
                        (some[pos], its[pos]) = (0.0, 0.0);
                    }
                    (weight, zero) = (S::load(some.as_ptr()), S::load(its.as_ptr()));
                }
                S::store(shares[r].as_mut_ptr().add(i), S::mul(weight, S::load_f16(scales.add(i))));
                biases[r] = S::fma(weight, zero, biases[r]);
            }
        }
        shares
    }
}

/// A packed group's codes of some channels: of 32, or of the last 16 with two positions in a unit.
#[derive(Clone, Copy)]
struct Positions<const B: u32> {
    units: *const u8,
    /// Bytes from one unit to the next.
    stride: usize,
}

impl<const B: u32> Loads for Positions<B> {
    #[inline(always)]
    unsafe fn load<S: Lanes, const C: usize>(self, pos: usize) -> [S::F; C] {
        // SAFETY: as the caller vouches.
        unsafe {
            let mut v = [S::splat(0.0); C];
            if C == 2 {
                v.copy_from_slice(&unit::<S, B>(self.units.add(pos * self.stride)));
            } else {
                v[0] = unit::<S, B>(self.units.add(pos / 2 * self.stride))[pos % 2];
            }
            v
        }
    }
}
