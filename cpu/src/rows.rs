//! Kernels over rows of activations: normalisation, quantisation, rotary embedding, and what follows a product.

use tensor::op::{Activation, RopeLayout};

use crate::lanes::Lanes;
use crate::math;
use crate::panel::XBlock;

/// out = x / sqrt(mean(x²) + eps) · weight over `len` elements; out may be x.
///
/// The squares are summed in 16 lanes (element i in lane i mod 16), fused, and the lanes by [`math::tree_sum`].
#[derive(Clone, Copy)]
pub(crate) struct NormArgs {
    pub(crate) x: *const f32,
    pub(crate) weight: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) len: usize,
    pub(crate) eps: f32,
    /// Add to out instead of storing.
    pub(crate) add: bool,
}

/// # Safety
/// As [`Lanes`]; pointers hold `len` elements.
#[inline(always)]
pub(crate) unsafe fn norm<S: Lanes>(a: NormArgs) {
    // SAFETY: indices stay below len; the tail goes through a 16-element copy.
    unsafe {
        let (whole, tail) = (a.len / 16 * 16, a.len % 16);
        let mut last = [0.0f32; 16];
        std::ptr::copy_nonoverlapping(a.x.add(whole), last.as_mut_ptr(), tail);
        let mut squares = S::splat(0.0);
        for i in (0..whole).step_by(16) {
            let v = S::load(a.x.add(i));
            squares = S::fma(v, v, squares);
        }
        if tail > 0 {
            let v = S::load(last.as_ptr());
            squares = S::fma(v, v, squares);
        }
        let mean = math::tree_sum(math::lanes::<S>(squares)) / a.len as f32;
        let factor = S::splat(1.0 / (mean + a.eps).sqrt());
        for i in (0..whole).step_by(16) {
            let mut v = S::mul(S::mul(S::load(a.x.add(i)), factor), S::load(a.weight.add(i)));
            if a.add {
                v = S::add(S::load(a.out.add(i)), v);
            }
            S::store(a.out.add(i), v);
        }
        let scaled = math::lanes::<S>(S::mul(S::load(last.as_ptr()), factor));
        for (t, v) in scaled.iter().enumerate().take(tail) {
            let v = v * *a.weight.add(whole + t);
            let out = a.out.add(whole + t);
            *out = if a.add { *out + v } else { v };
        }
    }
}

/// Quantises `blocks` blocks of 32 of one row, to every `stride`-th block of `out`.
#[derive(Clone, Copy)]
pub(crate) struct QuantArgs {
    pub(crate) x: *const f32,
    pub(crate) blocks: usize,
    pub(crate) out: *mut XBlock,
    pub(crate) stride: usize,
}

/// # Safety
/// As [`Lanes`]; x holds 32·blocks elements, out `stride·(blocks − 1) + 1` blocks.
#[inline(always)]
pub(crate) unsafe fn quantise<S: Lanes>(a: QuantArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        for b in 0..a.blocks {
            let (first, last) = (S::load(a.x.add(32 * b)), S::load(a.x.add(32 * b + 16)));
            // As integers, magnitudes are ordered with NaN above infinity above all numbers.
            let bits = S::max_int(S::float_to_bits(S::abs(first)), S::float_to_bits(S::abs(last)));
            let mut lanes = [0i32; 16];
            S::store_int(lanes.as_mut_ptr(), bits);
            let m = f32::from_bits(lanes.iter().fold(0, |m, &v| m.max(v)) as u32);
            let out = &mut *a.out.add(b * a.stride);
            *out = XBlock::ZERO;
            if !m.is_finite() {
                out.scale = f32::NAN;
                out.scaled_sum = f32::NAN;
                continue;
            }
            // 2⁻¹²⁰
            if m < 7.523_164e-37 {
                continue;
            }
            let inverse = S::splat(127.0 / m);
            let halves = [S::round_to_int(S::mul(first, inverse)), S::round_to_int(S::mul(last, inverse))];
            for (h, &half) in halves.iter().enumerate() {
                S::store_narrow(out.codes.as_mut_ptr().add(16 * h), half);
                S::store_int(lanes.as_mut_ptr(), half);
                out.half_sums[h] = lanes.iter().sum::<i32>() as i16;
            }
            let sum = out.half_sums[0] as i32 + out.half_sums[1] as i32;
            out.scale = m / 127.0;
            out.scaled_sum = sum as f32 * out.scale;
            out.neg_sum = -sum;
        }
    }
}

/// Turns one head in place: (a, b) becomes (fma(a, c, −(b·s)), fma(a, s, b·c)).
#[derive(Clone, Copy)]
pub(crate) struct RopeArgs {
    pub(crate) x: *mut f32,
    /// cos of each pair, then sin of each pair.
    pub(crate) table: *const f32,
    pub(crate) pairs: usize,
    pub(crate) layout: RopeLayout,
}

/// # Safety
/// As [`Lanes`]; x and table hold 2·pairs elements.
#[inline(always)]
pub(crate) unsafe fn rope<S: Lanes>(args: RopeArgs) {
    // SAFETY: indices stay below 2·pairs.
    unsafe {
        let n = args.pairs;
        let (first, second) = match args.layout {
            RopeLayout::Adjacent => (2, 1),
            RopeLayout::Halves => (1, n),
        };
        for i in 0..n {
            let (c, s) = (*args.table.add(i), *args.table.add(n + i));
            let (pa, pb) = (args.x.add(first * i), args.x.add(first * i + second));
            let (a, b) = (*pa, *pb);
            *pa = a.mul_add(c, -(b * s));
            *pb = a.mul_add(s, b * c);
        }
    }
}

/// Converts `len` f32 to f16, to nearest even.
#[derive(Clone, Copy)]
pub(crate) struct HalfArgs {
    pub(crate) x: *const f32,
    pub(crate) out: *mut u16,
    /// A multiple of 16.
    pub(crate) len: usize,
}

/// # Safety
/// As [`Lanes`]; x and out hold `len` elements.
#[inline(always)]
pub(crate) unsafe fn to_half<S: Lanes>(a: HalfArgs) {
    // SAFETY: len is a multiple of 16.
    unsafe {
        for i in (0..a.len).step_by(16) {
            S::store_f16(a.out.add(i), S::load(a.x.add(i)));
        }
    }
}

/// What follows a product, for the rows of some adjoining panels and some columns.
#[derive(Clone, Copy)]
pub(crate) struct FinishArgs {
    /// `[columns]` at `stride`, the rows' outputs one after another.
    pub(crate) product: *const f32,
    /// The second product of a gated unit; else null.
    pub(crate) second: *const f32,
    /// f32 from one column's product to the next's.
    pub(crate) stride: usize,
    /// `rows` biases; null for none.
    pub(crate) bias: *const f32,
    /// `rows` biases of the second product; null for none.
    pub(crate) second_bias: *const f32,
    pub(crate) columns: usize,
    /// `[columns]` at `out_stride`.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    /// Outputs of a column; products hold whole panels.
    pub(crate) rows: usize,
    pub(crate) then: Finish,
}

/// The four epilogues.
#[derive(Clone, Copy)]
pub(crate) enum Finish {
    Store,
    Add,
    Glu(Activation),
    SoftCap(f32),
}

/// # Safety
/// As [`Lanes`]; pointers hold what [`FinishArgs`] says.
#[inline(always)]
pub(crate) unsafe fn finish<S: Lanes>(a: FinishArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        for c in 0..a.columns {
            let mut r = 0;
            while r < a.rows {
                finish_panel::<S>(&a, c, r);
                r += 16;
            }
        }
    }
}

/// One column of one panel, from row r; a partial panel goes through 16-element copies.
#[inline(always)]
unsafe fn finish_panel<S: Lanes>(a: &FinishArgs, c: usize, r: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let count = (a.rows - r).min(16);
        let whole = count == 16;
        let padded = |p: *const f32| {
            let mut edge = [0.0f32; 16];
            std::ptr::copy_nonoverlapping(p, edge.as_mut_ptr(), count);
            S::load(edge.as_ptr())
        };
        let biased = |p: *const f32, bias: *const f32| {
            let v = S::load(p.add(c * a.stride + r));
            match (bias.is_null(), whole) {
                (true, _) => v,
                (false, true) => S::add(v, S::load(bias.add(r))),
                (false, false) => S::add(v, padded(bias.add(r))),
            }
        };
        let out = a.out.add(c * a.out_stride + r);
        let v = biased(a.product, a.bias);
        let v = match a.then {
            Finish::Store => v,
            Finish::Add => S::add(if whole { S::load(out) } else { padded(out) }, v),
            Finish::SoftCap(cap) => math::soft_cap::<S>(v, cap),
            Finish::Glu(activation) => {
                let gate = match activation {
                    Activation::Silu => math::silu::<S>(v),
                    Activation::GeluTanh => math::gelu_tanh::<S>(v),
                };
                S::mul(gate, biased(a.second, a.second_bias))
            }
        };
        if whole {
            S::store(out, v);
        } else {
            let lanes = math::lanes::<S>(v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), out, count);
        }
    }
}
