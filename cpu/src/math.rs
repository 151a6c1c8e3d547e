//! exp, sigmoid-shaped activations and tanh over sixteen lanes: polynomials with explicit fused multiply-adds, the same
//! bits on every instruction set. NaN in, NaN out.
#![allow(clippy::excessive_precision)] // the sources' own digits

use crate::lanes::Lanes;

/// eˣ: relative error below 2⁻²² (tested against f64), 0 below −103.97, ∞ above 88.73; subnormal results are rounded once.
///
/// Range reduction x = n·ln 2 + r, a degree-six polynomial in r (coefficients of Cephes' expf), and 2ⁿ in two factors.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Lanes>(x: S::F) -> S::F {
    // SAFETY: no memory is touched.
    unsafe {
        // The order of the operands lets a NaN through.
        let x = S::min(S::splat(89.0), S::max(S::splat(-104.0), x));
        // Adding 1.5·2²³ rounds to an integer, ties to even.
        let magic = S::splat(12_582_912.0);
        let n = S::sub(S::fma(x, S::splat(std::f32::consts::LOG2_E), magic), magic);
        let r = S::fma(n, S::splat(-0.693_359_375), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_15e-4);
        for c in [1.398_199_95e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_55e-1, 5.000_000_1e-1] {
            p = S::fma(p, r, S::splat(c));
        }
        let y = S::add(S::fma(p, S::mul(r, r), r), S::splat(1.0));
        let whole = S::round_to_int(n);
        let first = S::round_to_int(S::mul(n, S::splat(0.5)));
        let second = S::sub_int(whole, first);
        S::mul(S::mul(y, power_of_two::<S>(first)), power_of_two::<S>(second))
    }
}

/// 2ⁿ for n within the exponents of normal numbers.
#[inline(always)]
unsafe fn power_of_two<S: Lanes>(n: S::I) -> S::F {
    // SAFETY: no memory is touched.
    unsafe { S::bits_to_float(S::shl::<23>(S::add_int(n, S::splat_int(127)))) }
}

/// x·sigmoid(x) = x / (1 + e⁻ˣ).
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn silu<S: Lanes>(x: S::F) -> S::F {
    // SAFETY: no memory is touched.
    unsafe { S::div(x, S::add(S::splat(1.0), exp::<S>(S::sub(S::splat(0.0), x)))) }
}

/// 0.5·x·(1 + tanh(y)) with y = √(2/π)(x + 0.044715·x³), written as x / (1 + e⁻²ʸ).
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<S: Lanes>(x: S::F) -> S::F {
    // SAFETY: no memory is touched.
    unsafe {
        // −2·√(2/π) and that times 0.044715.
        let cubic = S::fma(S::mul(x, x), S::splat(-7.135_481_6e-2), S::splat(-1.595_769_1));
        S::div(x, S::add(S::splat(1.0), exp::<S>(S::mul(x, cubic))))
    }
}

/// tanh: an odd polynomial below 0.625 in magnitude (Cephes' tanhf), 1 − 2/(e²ˣ + 1) above.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn tanh<S: Lanes>(x: S::F) -> S::F {
    // SAFETY: no memory is touched.
    unsafe {
        let z = S::mul(x, x);
        let mut p = S::splat(-5.704_988_7e-3);
        for c in [2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1] {
            p = S::fma(p, z, S::splat(c));
        }
        let small = S::fma(S::mul(p, z), x, x);
        let e = exp::<S>(S::mul(S::splat(2.0), x));
        let large = S::sub(S::splat(1.0), S::div(S::splat(2.0), S::add(e, S::splat(1.0))));
        S::select_lt(S::abs(x), S::splat(0.625), small, large)
    }
}

/// cap·tanh(x/cap).
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn soft_cap<S: Lanes>(x: S::F, cap: f32) -> S::F {
    // SAFETY: no memory is touched.
    unsafe { S::mul(S::splat(cap), tanh::<S>(S::div(x, S::splat(cap)))) }
}

/// The sum of 16 lanes by one tree: lanes 8 apart, then 4, 2 and 1.
#[inline(always)]
pub(crate) fn tree_sum(mut v: [f32; 16]) -> f32 {
    let mut half = 8;
    while half > 0 {
        for i in 0..half {
            v[i] += v[i + half];
        }
        half /= 2;
    }
    v[0]
}

/// The greatest of 16 lanes by the same tree; a NaN may or may not survive, but is never invented.
#[inline(always)]
pub(crate) fn tree_max(mut v: [f32; 16]) -> f32 {
    let mut half = 8;
    while half > 0 {
        for i in 0..half {
            v[i] = if v[i] > v[i + half] { v[i] } else { v[i + half] };
        }
        half /= 2;
    }
    v[0]
}

/// The lanes as an array.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn lanes<S: Lanes>(x: S::F) -> [f32; 16] {
    let mut out = [0.0; 16];
    // SAFETY: `out` has 16 f32.
    unsafe { S::store(out.as_mut_ptr(), x) };
    out
}
