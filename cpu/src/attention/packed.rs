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
//! A position that a row does not see has no part in any sum. Each format has one kernel for scores and one for values;
//! [`mixed_tile`] runs them half by half.

use super::{
    Element, FOLD_ROWS, Halves, Loads, PhantomData, QueryRow, Row, TILE, add_values, by_rows, copy,
    fold_rows, state_len, sums, weights,
};
use crate::lanes::Lanes;
use crate::math;
use tensor::kv::GROUP_POSITIONS as GROUP;

/// Channels whose values share their levels.
const CHANNELS: usize = 32;

/// Query rows that pass through the stages together.
pub(crate) const PASS_ROWS: usize = 16;

/// Bytes of the codes of one unit of 32.
const fn unit_bytes(bits: u32) -> usize {
    4 * bits as usize
}

/// Where one half of a tile lies.
#[derive(Clone, Copy)]
pub(crate) struct Half {
    /// The tile's f16, or this half's packed group.
    pub(crate) ptr: *const u8,
    /// Bits of a code; 0 for f16.
    pub(crate) bits: u32,
}

impl Half {
    /// This half, packed, fetched in so many steps. Halves of f16 are not: a query meets few of them.
    fn ahead(self, dim: usize, steps: usize) -> Ahead {
        // Codes, and at most as many levels as values have.
        let bytes = dim * unit_bytes(self.bits) + 4 * GROUP * dim.div_ceil(CHANNELS);
        Ahead { ptr: self.ptr, step: if self.bits == 0 { 0 } else { bytes.div_ceil(steps) } }
    }
}

/// What is fetched while something else is read: `step` bytes at a time.
#[derive(Clone, Copy)]
struct Ahead {
    ptr: *const u8,
    step: usize,
}

impl Ahead {
    #[inline(always)]
    unsafe fn fetch<S: Lanes>(self, i: usize) {
        // SAFETY: a prefetch may be of any address.
        unsafe { S::prefetch(self.ptr.wrapping_add(i * self.step)) }
    }
}

/// The sinks of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Sinks {
    /// How many; 0 for none.
    pub(crate) count: usize,
    /// Positions stored, a multiple of 16.
    pub(crate) stored: usize,
    /// f16 `[k_dim][stored]`; null where the keys' first half is f16.
    pub(crate) keys: *const u16,
    /// f16 `[stored][v_dim]`; null where the values' first half is f16.
    pub(crate) values: *const u16,
}

impl Sinks {
    pub(crate) const NONE: Sinks =
        Sinks { count: 0, stored: 0, keys: std::ptr::null(), values: std::ptr::null() };
}

/// The arguments of a tile of which at least one half is packed.
#[derive(Clone, Copy)]
pub(crate) struct MixedArgs {
    pub(crate) rows: *const QueryRow,
    pub(crate) count: usize,
    /// Both halves of the tile: f16 `[k_dim][64]` or packed groups.
    pub(crate) keys: [Half; 2],
    /// Both halves of the tile: f16 `[64][v_dim]` or packed groups.
    pub(crate) values: [Half; 2],
    /// Positions of the tile that are sinks, where its first half is packed.
    pub(crate) sinks: Sinks,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    pub(crate) scale: f32,
    /// 0 for none.
    pub(crate) softcap: f32,
    /// f32 [`super::scratch_len`].
    pub(crate) scratch: *mut f32,
    /// Both halves of the keys that this thread attends next; they are only prefetched.
    pub(crate) next: [*const u8; 2],
}

/// f32 elements of scratch of a mixed tile.
pub(super) const fn scratch_len(k_dim: usize, v_dim: usize) -> usize {
    PASS_ROWS * (TILE + state_len(v_dim) + k_dim + 16 * v_dim.div_ceil(CHANNELS))
}

/// The kernels of one table: scores and values by format (f16, then 2, 3, 4, 5, 6 and 8 bits), and what lies between.
pub(crate) struct Kernels {
    pub(crate) scores: [unsafe fn(ScoreArgs); 7],
    pub(crate) sinks: unsafe fn(ScoreArgs),
    pub(crate) weigh: unsafe fn(WeighArgs),
    pub(crate) values: [unsafe fn(ValueArgs); 7],
    pub(crate) finish: unsafe fn(WeighArgs),
}

/// The kernel of a format.
fn index(bits: u32) -> usize {
    match bits {
        0 => 0,
        8 => 6,
        n => n as usize - 1,
    }
}

/// Attends one tile half by half.
///
/// # Safety
/// The CPU has the kernels' instructions; pointers hold what [`MixedArgs`] says; dims are multiples of 16.
pub(crate) unsafe fn mixed_tile(k: &Kernels, a: MixedArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        for from in (0..a.count).step_by(PASS_ROWS) {
            let (rows, count) = (a.rows.add(from), PASS_ROWS.min(a.count - from));
            let scores = a.scratch;
            let out = scores.add(PASS_ROWS * TILE);
            let turned = out.add(PASS_ROWS * state_len(a.v_dim));
            let biases = turned.add(PASS_ROWS * a.k_dim);
            for (h, half) in a.keys.into_iter().enumerate() {
                let args = ScoreArgs {
                    rows,
                    count,
                    half,
                    first: h * GROUP,
                    stride: TILE,
                    k_dim: a.k_dim,
                    turned,
                    scores,
                    ahead: a.values[h].ahead(a.v_dim, a.k_dim),
                };
                (k.scores[index(half.bits)])(args);
            }
            if a.sinks.count > 0 && !a.sinks.keys.is_null() {
                let half = Half { ptr: a.sinks.keys.cast(), bits: 0 };
                let args = ScoreArgs {
                    rows,
                    count,
                    half,
                    first: a.sinks.count,
                    stride: a.sinks.stored,
                    k_dim: a.k_dim,
                    turned,
                    scores,
                    ahead: Ahead { ptr: half.ptr, step: 0 },
                };
                (k.sinks)(args);
            }
            let weigh = WeighArgs {
                rows,
                count,
                v_dim: a.v_dim,
                scale: a.scale,
                softcap: a.softcap,
                scores,
                out,
                biases,
            };
            (k.weigh)(weigh);
            for (h, half) in a.values.into_iter().enumerate() {
                let first = h * GROUP;
                let mut args = ValueArgs {
                    rows,
                    count,
                    half,
                    first,
                    from: first,
                    to: first + GROUP,
                    v_dim: a.v_dim,
                    p: scores,
                    out,
                    biases,
                    ahead: Half { ptr: a.next[h], ..a.keys[h] }
                        .ahead(a.k_dim, GROUP * a.v_dim.div_ceil(CHANNELS)),
                };
                if half.bits == 0 {
                    args.half.ptr = half.ptr.add(2 * first * a.v_dim);
                } else if h == 0 && a.sinks.count > 0 && !a.sinks.values.is_null() {
                    let half = Half { ptr: a.sinks.values.cast(), bits: 0 };
                    (k.values[0])(ValueArgs { half, to: a.sinks.count, ..args });
                    args.from = a.sinks.count;
                }
                (k.values[index(half.bits)])(args);
            }
            (k.finish)(weigh);
        }
    }
}

/// The arguments of the scores of one half, or of the sinks.
#[derive(Clone, Copy)]
pub(crate) struct ScoreArgs {
    rows: *const QueryRow,
    count: usize,
    half: Half,
    /// The half's first position; of the sinks, how many.
    first: usize,
    /// Positions of a channel's f16.
    stride: usize,
    k_dim: usize,
    /// `[rows][k_dim]`, for the turned queries.
    turned: *mut f32,
    /// `[rows][64]`, of which 32 positions are written.
    scores: *mut f32,
    /// Fetched in `k_dim` steps.
    ahead: Ahead,
}

/// The arguments of the values of some positions of a half.
#[derive(Clone, Copy)]
pub(crate) struct ValueArgs {
    rows: *const QueryRow,
    count: usize,
    half: Half,
    /// The position at `half.ptr`.
    first: usize,
    /// Positions that count: from..to, within the half.
    from: usize,
    to: usize,
    v_dim: usize,
    /// `[rows][64]`.
    p: *const f32,
    /// `[rows]` at [`state_len`], added to.
    out: *mut f32,
    /// `[rows][v_dim/32][16]`, added to.
    biases: *mut f32,
    /// Fetched in 32 steps for every 32 channels.
    ahead: Ahead,
}

/// The arguments of what turns scores to weights, and of what ends a tile.
#[derive(Clone, Copy)]
pub(crate) struct WeighArgs {
    rows: *const QueryRow,
    count: usize,
    v_dim: usize,
    scale: f32,
    softcap: f32,
    /// `[rows][64]`: scores, then weights.
    scores: *mut f32,
    /// `[rows]` at [`state_len`]: zeroed, with maximum and sum behind; then folded into the rows' states.
    out: *mut f32,
    /// `[rows][v_dim/32][16]`: zeroed; then added to the outputs.
    biases: *mut f32,
}

/// The 32 codes of a unit.
#[inline(always)]
unsafe fn unit<S: Lanes, const B: u32>(p: *const u8) -> [S::F; 2] {
    // SAFETY: the caller vouches for the unit's bytes.
    unsafe {
        let codes = match B {
            4 => {
                let both = S::widen_u8(p);
                return [S::low_bits::<4>(both), S::low_bits::<4>(S::shr::<4>(both))];
            }
            2 => {
                let shifted = shifted_pairs::<S>(p);
                return [S::low_bits::<2>(shifted[0]), S::low_bits::<2>(shifted[1])];
            }
            8 => [S::widen_u8(p), S::widen_u8(p.add(16))],
            6 => above::<S, 4>(nibbles::<S>(p), pairs::<S>(p.add(16))),
            5 => above::<S, 4>(nibbles::<S>(p), single::<S>(p.add(16))),
            _ => above::<S, 2>(pairs::<S>(p), single::<S>(p.add(8))),
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
        let [first, last] = shifted_pairs::<S>(p);
        let three = S::splat_int(3);
        [S::and(first, three), S::and(last, three)]
    }
}

/// A plane of two bits, with other bits above them.
#[inline(always)]
unsafe fn shifted_pairs<S: Lanes>(p: *const u8) -> [S::I; 2] {
    // SAFETY: as the caller vouches.
    unsafe {
        let shifts = S::load_int(PAIR_SHIFTS.as_ptr().cast());
        let first = S::splat_int(p.cast::<i32>().read_unaligned());
        let last = S::splat_int(p.cast::<i32>().add(1).read_unaligned());
        [S::shr_each(first, shifts), S::shr_each(last, shifts)]
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

static INDICES: [f32; 32] = [
    0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15., 16., 17., 18., 19., 20., 21., 22.,
    23., 24., 25., 26., 27., 28., 29., 30., 31.,
];
static PAIR_SHIFTS: [i32; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
static BIT_SHIFTS: [i32; 32] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31,
];

/// 32 positions of a channel.
trait Channel: Copy {
    unsafe fn load<S: Lanes>(self, ch: usize) -> [S::F; 2];
}

/// Keys as they are: where the channel 0 of the first position is, and the positions of a channel.
#[derive(Clone, Copy)]
struct Columns(*const u8, usize);

impl Channel for Columns {
    #[inline(always)]
    unsafe fn load<S: Lanes>(self, ch: usize) -> [S::F; 2] {
        // SAFETY: as the caller vouches.
        unsafe {
            let p = self.0.add(ch * self.1 * Halves::BYTES);
            [Halves::load::<S>(p), Halves::load::<S>(p.add(16 * Halves::BYTES))]
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
    ahead: Ahead,
) -> [[S::F; 2]; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut acc = [[S::splat(0.0); 2]; R];
        // Two channels a turn: the loop's own instructions are a fifth of a turn's otherwise.
        for first in (0..k_dim).step_by(2) {
            for ch in [first, first + 1] {
                ahead.fetch::<S>(ch);
                let k = keys.load::<S>(ch);
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

/// Scores of one half whose codes have B bits; 0 is f16.
///
/// # Safety
/// As [`mixed_tile`].
#[inline(always)]
pub(crate) unsafe fn scores<S: Lanes, const B: u32>(a: ScoreArgs) {
    // SAFETY: as the caller vouches.
    unsafe { by_rows!(S, a.count, |r, R| row_scores::<S, B, R>(a, r)) }
}

#[inline(always)]
unsafe fn row_scores<S: Lanes, const B: u32, const R: usize>(a: ScoreArgs, first_row: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (mut q, mut bias) = ([std::ptr::null(); R], [S::splat(0.0); R]);
        for (r, q) in q.iter_mut().enumerate() {
            *q = (*a.rows.add(first_row + r)).q;
        }
        let scores = if B == 0 {
            let keys = Columns(a.half.ptr.add(2 * a.first), a.stride);
            dot::<S, Columns, R>(a.k_dim, keys, q, a.ahead)
        } else {
            let levels = a.half.ptr.add(a.k_dim * unit_bytes(B)).cast::<u16>();
            for r in 0..R {
                let to = a.turned.add((first_row + r) * a.k_dim);
                let mut sum = S::splat(0.0);
                for ch in (0..a.k_dim).step_by(16) {
                    let x = S::load(q[r].add(ch));
                    S::store(to.add(ch), S::mul(x, S::load_f16(levels.add(ch))));
                    sum = S::fma(x, S::load_f16(levels.add(a.k_dim + ch)), sum);
                }
                q[r] = to.cast_const();
                bias[r] = sum;
            }
            let sums = sums::<S, R>(bias);
            for r in 0..R {
                bias[r] = S::splat(sums[r]);
            }
            dot::<S, Units<B>, R>(a.k_dim, Units(a.half.ptr), q, a.ahead)
        };
        for (r, scores) in scores.into_iter().enumerate() {
            let to = a.scores.add((first_row + r) * TILE + a.first);
            for (i, s) in scores.into_iter().enumerate() {
                S::store(to.add(16 * i), if B == 0 { s } else { S::add(s, bias[r]) });
            }
        }
    }
}

/// Puts the scores of `first` sinks in their places.
///
/// # Safety
/// As [`mixed_tile`].
#[inline(always)]
pub(crate) unsafe fn sink_scores<S: Lanes>(a: ScoreArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        for r in 0..a.count {
            let q = (*a.rows.add(r)).q;
            for from in (0..a.first).step_by(16) {
                let mut acc = S::splat(0.0);
                for ch in 0..a.k_dim {
                    let key = S::load_f16(a.half.ptr.cast::<u16>().add(ch * a.stride + from));
                    acc = S::fma(S::splat(*q.add(ch)), key, acc);
                }
                let scores = math::lanes::<S>(acc);
                let count = (a.first - from).min(16);
                std::ptr::copy_nonoverlapping(scores.as_ptr(), a.scores.add(r * TILE + from), count);
            }
        }
    }
}

/// Scores to weights, and empty outputs.
///
/// # Safety
/// As [`mixed_tile`].
#[inline(always)]
pub(crate) unsafe fn weigh<S: Lanes>(a: WeighArgs) {
    // SAFETY: as the caller vouches.
    unsafe { by_rows!(S, a.count, |r, R| row_weights::<S, R>(a, r)) }
}

#[inline(always)]
unsafe fn row_weights<S: Lanes, const R: usize>(a: WeighArgs, first_row: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut s = [[S::splat(0.0); 4]; R];
        for (r, s) in s.iter_mut().enumerate() {
            for (i, s) in s.iter_mut().enumerate() {
                *s = S::load(a.scores.add((first_row + r) * TILE + 16 * i));
            }
        }
        let w = weights::<S, R>(a.rows.add(first_row), s, a.scale, a.softcap);
        let biases = 16 * a.v_dim.div_ceil(CHANNELS);
        for r in 0..R {
            copy::<S>(w.p[r].as_ptr(), a.scores.add((first_row + r) * TILE), TILE);
            let out = a.out.add((first_row + r) * state_len(a.v_dim));
            for i in (0..a.v_dim).step_by(16) {
                S::store(out.add(i), S::splat(0.0));
            }
            (*out.add(a.v_dim), *out.add(a.v_dim + 1)) = (w.max[r], w.sum[r]);
            for i in (0..biases).step_by(16) {
                S::store(a.biases.add((first_row + r) * biases + i), S::splat(0.0));
            }
        }
    }
}

/// Adds the biases and folds the outputs into the rows' states.
///
/// # Safety
/// As [`mixed_tile`].
#[inline(always)]
pub(crate) unsafe fn finish<S: Lanes>(a: WeighArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        let groups = a.v_dim.div_ceil(CHANNELS);
        for r in 0..a.count {
            let out = a.out.add(r * state_len(a.v_dim));
            let mut sums = [0.0f32; 4];
            for g in 0..groups {
                if g % 4 == 0 {
                    let mut four = [S::splat(0.0); 4];
                    for (i, bias) in four.iter_mut().enumerate().take(groups - g) {
                        *bias = S::load(a.biases.add((r * groups + g + i) * 16));
                    }
                    sums = S::tree_sums(four);
                }
                let bias = S::splat(sums[g % 4]);
                for ch in (CHANNELS * g..a.v_dim.min(CHANNELS * (g + 1))).step_by(16) {
                    S::store(out.add(ch), S::add(S::load(out.add(ch)), bias));
                }
            }
        }
        for r in (0..a.count).step_by(FOLD_ROWS) {
            let out = a.out.add(r * state_len(a.v_dim));
            fold_rows::<S>(a.rows.add(r), FOLD_ROWS.min(a.count - r), a.v_dim, out);
        }
    }
}

/// Values of some positions of a half whose codes have B bits; 0 is f16.
///
/// # Safety
/// As [`mixed_tile`].
#[inline(always)]
pub(crate) unsafe fn values<S: Lanes, const B: u32>(a: ValueArgs) {
    // SAFETY: as the caller vouches.
    unsafe { by_rows!(S, a.count, |r, R| row_values::<S, B, R>(a, r)) }
}

#[inline(always)]
unsafe fn row_values<S: Lanes, const B: u32, const R: usize>(a: ValueArgs, first_row: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut ch = 0;
        while ch + CHANNELS <= a.v_dim {
            channels::<S, B, R, 2>(a, first_row, ch);
            ch += CHANNELS;
        }
        if ch < a.v_dim {
            channels::<S, B, R, 1>(a, first_row, ch);
        }
    }
}

/// 16·C channels from ch: 32 that share their levels, or the last 16.
#[inline(always)]
unsafe fn channels<S: Lanes, const B: u32, const R: usize, const C: usize>(
    a: ValueArgs,
    first_row: usize,
    ch: usize,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        // What each row sees of these positions, relative to the half.
        let mut seen = [(0, 0); R];
        let mut p = [std::ptr::null(); R];
        for r in 0..R {
            let row = *a.rows.add(first_row + r);
            let within = |pos: u8| (pos as usize).clamp(a.from, a.to) - a.first;
            seen[r] = (within(row.lo), within(row.hi));
            p[r] = a.p.add((first_row + r) * TILE + a.first);
        }
        let mut acc = [[S::splat(0.0); C]; R];
        for (r, acc) in acc.iter_mut().enumerate() {
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = S::load(a.out.add((first_row + r) * state_len(a.v_dim) + ch + 16 * i));
            }
        }
        if B == 0 {
            let values = a.half.ptr.add(2 * ch);
            // Nothing more than what is read anyway.
            let rows = Row::<Halves> { values, stride: 2 * a.v_dim, ahead: values, of: PhantomData };
            add_values::<S, Row<Halves>, R, C>(p, &seen, rows, &mut acc);
        } else {
            let shares = shares::<S, B, R>(a, first_row, ch, p, &seen);
            let mut s = [std::ptr::null(); R];
            for (s, shares) in s.iter_mut().zip(&shares) {
                *s = shares.as_ptr();
            }
            let whole = a.v_dim / CHANNELS;
            let (units, stride) = if C == 2 {
                (a.half.ptr.add(ch / CHANNELS * unit_bytes(B)), whole * unit_bytes(B))
            } else {
                (a.half.ptr.add(GROUP * whole * unit_bytes(B)), unit_bytes(B))
            };
            let ahead =
                Ahead { ptr: a.ahead.ptr.wrapping_add(ch / CHANNELS * GROUP * a.ahead.step), ..a.ahead };
            add_values::<S, Positions<B>, R, C>(s, &seen, Positions { units, stride, ahead }, &mut acc);
        }
        for (r, acc) in acc.iter().enumerate() {
            for (i, &acc) in acc.iter().enumerate() {
                S::store(a.out.add((first_row + r) * state_len(a.v_dim) + ch + 16 * i), acc);
            }
        }
    }
}

/// Each row's weights times the scales of the channels from ch; what their zeros add goes to the biases.
#[inline(always)]
unsafe fn shares<S: Lanes, const B: u32, const R: usize>(
    a: ValueArgs,
    first_row: usize,
    ch: usize,
    p: [*const f32; R],
    seen: &[(usize, usize); R],
) -> [[f32; GROUP]; R] {
    // SAFETY: as the caller vouches.
    unsafe {
        let (group, groups) = (ch / CHANNELS, a.v_dim.div_ceil(CHANNELS));
        let scales = a.half.ptr.add(a.v_dim * unit_bytes(B)).cast::<u16>().add(group * GROUP);
        let zeros = scales.add(groups * GROUP);
        let mut shares = [[0.0f32; GROUP]; R];
        for r in 0..R {
            let bias = a.biases.add(((first_row + r) * groups + group) * 16);
            let mut sum = S::load(bias);
            let (lo, hi) = seen[r];
            for i in [0, 16] {
                let (mut weight, mut zero) = (S::load(p[r].add(i)), S::load_f16(zeros.add(i)));
                if (lo, hi) != (0, GROUP) {
                    // What the row does not see has no part: neither its weight nor its zero, which may be NaN.
                    let (from, to) = (S::splat(lo as f32), S::splat(hi as f32));
                    let at = S::load(INDICES.as_ptr().add(i));
                    let nothing = S::splat(0.0);
                    weight = S::select_lt(at, to, S::select_lt(at, from, nothing, weight), nothing);
                    zero = S::select_lt(at, to, S::select_lt(at, from, nothing, zero), nothing);
                }
                S::store(shares[r].as_mut_ptr().add(i), S::mul(weight, S::load_f16(scales.add(i))));
                sum = S::fma(weight, zero, sum);
            }
            S::store(bias, sum);
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
    /// Fetched step by step with the positions.
    ahead: Ahead,
}

impl<const B: u32> Loads for Positions<B> {
    #[inline(always)]
    unsafe fn load<S: Lanes, const C: usize>(self, pos: usize) -> [S::F; C] {
        // SAFETY: as the caller vouches.
        unsafe {
            self.ahead.fetch::<S>(pos);
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
