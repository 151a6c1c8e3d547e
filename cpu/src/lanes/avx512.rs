//! Sixteen lanes in one 512-bit register. Integer dot products come in two kinds: `vpdpbusd` where the CPU has VNNI,
//! and multiply-add pairs summed in 16 bits where it has not.
#![allow(clippy::needless_range_loop)] // indices run over several arrays at once

use std::arch::x86_64::*;

use super::Lanes;

/// AVX-512 F, BW, VL and DQ without VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// The same with VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni;

/// Four bytes of x in every lane.
#[inline(always)]
unsafe fn splat_group(x: *const i8, g: usize) -> __m512i {
    // SAFETY: the caller vouches for 32 bytes at x and for AVX-512F.
    unsafe { _mm512_set1_epi32(x.add(4 * g).cast::<i32>().read_unaligned()) }
}

/// Multiply-adds of groups `FROM..FROM + N` as 16-bit pair sums. Their magnitude is at most N·2·MAX·127, which callers
/// keep below 2¹⁵.
#[inline(always)]
unsafe fn pair_sums<const FROM: usize, const N: usize>(w: &[__m512i; 8], x: *const i8) -> __m512i {
    // SAFETY: the caller vouches for 32 bytes at x and for AVX-512BW.
    unsafe {
        let mut sum = _mm512_maddubs_epi16(w[FROM], splat_group(x, FROM));
        for g in FROM + 1..FROM + N {
            sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(w[g], splat_group(x, g)));
        }
        sum
    }
}

/// Σ over four groups starting at `FROM`, each lane's pair weighted by `by`.
#[inline(always)]
unsafe fn half_dot<const FROM: usize, const MAX: u32>(
    w: &[__m512i; 8],
    x: *const i8,
    by: __m512i,
) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        if MAX <= 31 {
            // 4·2·31·127 = 31,496 fits 16 bits.
            _mm512_madd_epi16(half_sums::<FROM>(w, x), by)
        } else {
            // 2·2·63·127 = 32,004 fits 16 bits.
            let (a, b) = if FROM == 0 {
                (pair_sums::<0, 2>(w, x), pair_sums::<2, 2>(w, x))
            } else {
                (pair_sums::<4, 2>(w, x), pair_sums::<6, 2>(w, x))
            };
            _mm512_add_epi32(_mm512_madd_epi16(a, by), _mm512_madd_epi16(b, by))
        }
    }
}

#[inline(always)]
unsafe fn half_sums<const FROM: usize>(w: &[__m512i; 8], x: *const i8) -> __m512i {
    // SAFETY: as the caller's.
    unsafe { if FROM == 0 { pair_sums::<0, 4>(w, x) } else { pair_sums::<4, 4>(w, x) } }
}

macro_rules! ops {
    ($(fn $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($a: $t),*) $(-> $r)? {
            // SAFETY: the trait's contract: the CPU has the instructions, pointers are valid for what is read.
            unsafe { $e }
        }
    )*};
}

/// Four vectors' trees at once: lanes 8 apart of two vectors side by side, 4 apart of all four, then 2 and 1 within
/// each quarter.
macro_rules! four_trees {
    ($op:ident, $v:ident) => {{
        let [a, b, c, d] = $v;
        let ab = $op(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        let cd = $op(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
        let all = $op(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
        let all = $op(all, _mm512_permute_ps::<0x4e>(all));
        let all = $op(all, _mm512_permute_ps::<0xb1>(all));
        let mut out = [0.0f32; 16];
        _mm512_storeu_ps(out.as_mut_ptr(), all);
        [out[0], out[4], out[8], out[12]]
    }};
}

/// The low two bits, and the low four, of each index.
static LOW_BITS: [[f32; 16]; 2] = [
    [0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3.],
    [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.],
];

/// Everything that both kinds share.
macro_rules! common {
    () => {
        type F = __m512;
        type I = __m512i;
        const SCORE_ROWS: usize = 4;
        ops! {
            fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
            fn load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
            fn store(p: *mut f32, x: __m512) = _mm512_storeu_ps(p, x);
            // With a rounding that suppresses exceptions, as `_mm512_cvtph_ps` has it, the load would not be part of the
            // conversion: one instruction more.
            fn load_f16(p: *const u16) -> __m512 =
                _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(_mm256_loadu_si256(p.cast()));
            fn load_bf16(p: *const u16) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
                _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
            fn store_f16(p: *mut u16, x: __m512) =
                _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
            fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
            fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
            fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
            fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
            fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
            fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
            fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
            fn abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
            fn select_lt(a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 =
                _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes);
            fn to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
            fn round_to_int(a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
            fn bits_to_float(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
            fn load_int(p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
            fn splat_int(x: i32) -> __m512i = _mm512_set1_epi32(x);
            fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
            fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
            fn add_int(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
            fn sub_int(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
            fn max_int(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
            fn float_to_bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
            fn store_int(p: *mut i32, a: __m512i) = _mm512_storeu_si512(p.cast(), a);
            fn store_narrow(p: *mut i8, a: __m512i) = _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(a));
            fn mul_pairs(a: __m512i, b: __m512i) -> __m512i = _mm512_madd_epi16(a, b);
            fn widen_u8(p: *const u8) -> __m512i = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            fn widen_i8_pairs(p: *const u8) -> __m512i = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast()));
            fn look_up(table: &[i8; 16], indices: __m512i) -> __m512i = _mm512_shuffle_epi8(
                _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), indices);
            fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        }
        #[inline(always)]
        unsafe fn tree_sums(v: [__m512; 4]) -> [f32; 4] {
            // SAFETY: the trait's contract.
            unsafe { four_trees!(_mm512_add_ps, v) }
        }
        #[inline(always)]
        unsafe fn tree_maxima(v: [__m512; 4]) -> [f32; 4] {
            // SAFETY: the trait's contract.
            unsafe { four_trees!(_mm512_max_ps, v) }
        }
        /// A look-up minds only the low four bits of an index: it masks and converts at once.
        #[inline(always)]
        unsafe fn low_bits<const N: u32>(a: __m512i) -> __m512 {
            const { assert!(N == 2 || N == 4) };
            // SAFETY: the trait's contract.
            unsafe { _mm512_permutexvar_ps(a, _mm512_loadu_ps(LOW_BITS[(N / 4) as usize].as_ptr())) }
        }
        #[inline(always)]
        unsafe fn shl<const N: u32>(a: __m512i) -> __m512i {
            // SAFETY: the trait's contract.
            unsafe { _mm512_slli_epi32::<N>(a) }
        }
        #[inline(always)]
        unsafe fn shr<const N: u32>(a: __m512i) -> __m512i {
            // SAFETY: the trait's contract.
            unsafe { _mm512_srli_epi32::<N>(a) }
        }
        #[inline(always)]
        unsafe fn shr_each(a: __m512i, counts: __m512i) -> __m512i {
            // SAFETY: the trait's contract.
            unsafe { _mm512_srlv_epi32(a, counts) }
        }
    };
}

/// Group g's 16-bit pair products of both panels with the column, to p and q.
macro_rules! first {
    ($g:literal, $p:literal, $q:literal) => {
        concat!(
            "vpbroadcastd {t}, dword ptr [{x} + 4 * ",
            $g,
            "]\n",
            "vpmaddubsw {",
            $p,
            "}, {a",
            $g,
            "}, {t}\n",
            "vpmaddubsw {",
            $q,
            "}, {b",
            $g,
            "}, {t}\n",
        )
    };
}

/// The same, added to p and q.
macro_rules! next {
    ($g:literal, $p:literal, $q:literal) => {
        concat!(
            "vpbroadcastd {t}, dword ptr [{x} + 4 * ",
            $g,
            "]\n",
            "vpmaddubsw {u}, {a",
            $g,
            "}, {t}\n",
            "vpmaddubsw {t}, {b",
            $g,
            "}, {t}\n",
            "vpaddw {",
            $p,
            "}, {",
            $p,
            "}, {u}\n",
            "vpaddw {",
            $q,
            "}, {",
            $q,
            "}, {t}\n",
        )
    };
}

/// Pairs of p and q times the factors, summed to 32 bits.
macro_rules! widened {
    ($p:literal, $by_p:literal, $q:literal, $by_q:literal) => {
        concat!(
            "vpmaddwd {",
            $p,
            "}, {",
            $p,
            "}, {",
            $by_p,
            "}\n",
            "vpmaddwd {",
            $q,
            "}, {",
            $q,
            "}, {",
            $by_q,
            "}\n",
        )
    };
}

/// Two panels' products with one column, written out: compilers copy registers here, a fifth of the loop's instructions,
/// where the processor's front end is what limits it. The temporaries have names because the compiler misprints the upper
/// sixteen registers where an output is discarded.
macro_rules! two_panels {
    ($a:ident, $b:ident, $x:ident, $($line:expr),*; $($operands:tt)*) => {{
        let (p, q, _r, _s, _t, _u): (__m512i, __m512i, __m512i, __m512i, __m512i, __m512i);
        std::arch::asm!(
            $($line,)*
            x = in(reg) $x,
            a0 = in(zmm_reg) $a[0], a1 = in(zmm_reg) $a[1], a2 = in(zmm_reg) $a[2], a3 = in(zmm_reg) $a[3],
            a4 = in(zmm_reg) $a[4], a5 = in(zmm_reg) $a[5], a6 = in(zmm_reg) $a[6], a7 = in(zmm_reg) $a[7],
            b0 = in(zmm_reg) $b[0], b1 = in(zmm_reg) $b[1], b2 = in(zmm_reg) $b[2], b3 = in(zmm_reg) $b[3],
            b4 = in(zmm_reg) $b[4], b5 = in(zmm_reg) $b[5], b6 = in(zmm_reg) $b[6], b7 = in(zmm_reg) $b[7],
            p = out(zmm_reg) p, q = out(zmm_reg) q, r = out(zmm_reg) _r, s = out(zmm_reg) _s,
            t = out(zmm_reg) _t, u = out(zmm_reg) _u,
            $($operands)*
            options(pure, readonly, nostack, preserves_flags),
        );
        [p, q]
    }};
}

/// Σ code·x of two panels with codes up to 15: 8·2·15·127 = 30,480 fits 16 bits.
///
/// # Safety
/// AVX-512BW; 32 bytes at x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn dots_to_15(a: &[__m512i; 8], b: &[__m512i; 8], x: *const i8) -> [__m512i; 2] {
    // SAFETY: reads 32 bytes at x, and writes registers that it names.
    unsafe {
        two_panels!(
            a, b, x,
            first!("0", "p", "q"), next!("1", "p", "q"), next!("2", "p", "q"), next!("3", "p", "q"),
            next!("4", "p", "q"), next!("5", "p", "q"), next!("6", "p", "q"), next!("7", "p", "q"),
            widened!("p", "ones", "q", "ones"),
            "/* {r} {s} */";
            ones = in(zmm_reg) _mm512_set1_epi16(1),
        )
    }
}

/// Σ code·x of two panels with codes up to 31: 4·2·31·127 = 31,496 fits 16 bits.
///
/// # Safety
/// AVX-512BW; 32 bytes at x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn dots_to_31(a: &[__m512i; 8], b: &[__m512i; 8], x: *const i8) -> [__m512i; 2] {
    // SAFETY: reads 32 bytes at x, and writes registers that it names.
    unsafe {
        two_panels!(
            a, b, x,
            first!("0", "p", "q"), next!("1", "p", "q"), next!("2", "p", "q"), next!("3", "p", "q"),
            widened!("p", "ones", "q", "ones"),
            first!("4", "r", "s"), next!("5", "r", "s"), next!("6", "r", "s"), next!("7", "r", "s"),
            widened!("r", "ones", "s", "ones"),
            "vpaddd {p}, {p}, {r}", "vpaddd {q}, {q}, {s}";
            ones = in(zmm_reg) _mm512_set1_epi16(1),
        )
    }
}

/// The halves' sums of two panels with codes up to 63, times each lane's pair of scales: 2·2·63·127 = 32,004 fits 16 bits.
///
/// # Safety
/// AVX-512BW; 32 bytes at x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn scaled_halves_to_63(
    a: &[__m512i; 8],
    b: &[__m512i; 8],
    x: *const i8,
    of_a: [__m512i; 2],
    of_b: [__m512i; 2],
) -> [__m512i; 2] {
    // SAFETY: reads 32 bytes at x, and writes registers that it names.
    unsafe {
        two_panels!(
            a, b, x,
            first!("0", "p", "q"), next!("1", "p", "q"), widened!("p", "a_low", "q", "b_low"),
            first!("2", "r", "s"), next!("3", "r", "s"), widened!("r", "a_low", "s", "b_low"),
            "vpaddd {p}, {p}, {r}", "vpaddd {q}, {q}, {s}",
            first!("4", "r", "s"), next!("5", "r", "s"), widened!("r", "a_high", "s", "b_high"),
            "vpaddd {p}, {p}, {r}", "vpaddd {q}, {q}, {s}",
            first!("6", "r", "s"), next!("7", "r", "s"), widened!("r", "a_high", "s", "b_high"),
            "vpaddd {p}, {p}, {r}", "vpaddd {q}, {q}, {s}";
            a_low = in(zmm_reg) of_a[0], a_high = in(zmm_reg) of_a[1],
            b_low = in(zmm_reg) of_b[0], b_high = in(zmm_reg) of_b[1],
        )
    }
}

/// Each lane's pair of 16-bit scales, the first in both places, and the second.
#[inline(always)]
unsafe fn doubled(scales: __m512i) -> [__m512i; 2] {
    // SAFETY: the trait's contract.
    unsafe {
        let low = _mm512_and_si512(scales, _mm512_set1_epi32(0xffff));
        let high = _mm512_srli_epi32::<16>(scales);
        [
            _mm512_or_si512(low, _mm512_slli_epi32::<16>(low)),
            _mm512_or_si512(high, _mm512_slli_epi32::<16>(high)),
        ]
    }
}

impl Lanes for Avx512 {
    common!();
    /// Low nibbles, then high nibbles, of w + 128: 33 instructions a product, where masked signs or 16-bit widening
    /// would take 31 but need another layout of x.
    type Bytes = ([__m512i; 8], [__m512i; 8]);

    #[inline(always)]
    unsafe fn dot<const MAX: u32>(w: &[__m512i; 8], x: *const i8, init: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let ones = _mm512_set1_epi16(1);
            if MAX <= 15 {
                // 8·2·15·127 = 30,480 fits 16 bits.
                _mm512_add_epi32(init, _mm512_madd_epi16(pair_sums::<0, 8>(w, x), ones))
            } else {
                let first = half_dot::<0, MAX>(w, x, ones);
                _mm512_add_epi32(init, _mm512_add_epi32(first, half_dot::<4, MAX>(w, x, ones)))
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_pair<const MAX: u32>(
        a: &[__m512i; 8],
        b: &[__m512i; 8],
        x: *const i8,
        init: __m512i,
    ) -> [__m512i; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let [p, q] = match MAX {
                0..=15 => dots_to_15(a, b, x),
                16..=31 => dots_to_31(a, b, x),
                _ => return [Self::dot::<MAX>(a, x, init), Self::dot::<MAX>(b, x, init)],
            };
            [_mm512_add_epi32(init, p), _mm512_add_epi32(init, q)]
        }
    }
    #[inline(always)]
    unsafe fn dot_halves_pair<const MAX: u32>(
        a: &[__m512i; 8],
        b: &[__m512i; 8],
        x: *const i8,
        scales: [__m512i; 2],
    ) -> [__m512i; 2] {
        // SAFETY: the trait's contract.
        unsafe { scaled_halves_to_63(a, b, x, doubled(scales[0]), doubled(scales[1])) }
    }
    #[inline(always)]
    unsafe fn dot_halves<const MAX: u32>(w: &[__m512i; 8], x: *const i8, scales: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let [s0, s1] = doubled(scales);
            _mm512_add_epi32(half_dot::<0, MAX>(w, x, s0), half_dot::<4, MAX>(w, x, s1))
        }
    }
    #[inline(always)]
    unsafe fn prepare_bytes(w: &[__m512i; 8]) -> Self::Bytes {
        // SAFETY: the trait's contract.
        unsafe {
            let (bias, mask) = (_mm512_set1_epi8(-128), _mm512_set1_epi8(15));
            let mut out = (*w, *w);
            for g in 0..8 {
                let u = _mm512_xor_si512(w[g], bias);
                out.0[g] = _mm512_and_si512(u, mask);
                out.1[g] = _mm512_and_si512(_mm512_srli_epi16::<4>(u), mask);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn dot_bytes(w: &Self::Bytes, x: *const i8, neg_sum: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm512_madd_epi16(pair_sums::<0, 8>(&w.0, x), _mm512_set1_epi16(1));
            let high = _mm512_madd_epi16(pair_sums::<0, 8>(&w.1, x), _mm512_set1_epi16(16));
            _mm512_add_epi32(_mm512_add_epi32(low, high), _mm512_slli_epi32::<7>(neg_sum))
        }
    }
}

impl Lanes for Avx512Vnni {
    common!();
    /// w + 128, unsigned.
    type Bytes = [__m512i; 8];

    #[inline(always)]
    unsafe fn dot<const MAX: u32>(w: &[__m512i; 8], x: *const i8, init: __m512i) -> __m512i {
        // SAFETY: the trait's contract. Two chains, because each instruction waits five cycles for the one before.
        unsafe {
            let (mut a, mut b) = (init, _mm512_setzero_si512());
            for g in 0..4 {
                a = _mm512_dpbusd_epi32(a, w[g], splat_group(x, g));
                b = _mm512_dpbusd_epi32(b, w[g + 4], splat_group(x, g + 4));
            }
            _mm512_add_epi32(a, b)
        }
    }
    #[inline(always)]
    unsafe fn dot_halves<const MAX: u32>(w: &[__m512i; 8], x: *const i8, scales: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let (mut a, mut b) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            for g in 0..4 {
                a = _mm512_dpbusd_epi32(a, w[g], splat_group(x, g));
                b = _mm512_dpbusd_epi32(b, w[g + 4], splat_group(x, g + 4));
            }
            let s0 = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(scales));
            let s1 = _mm512_srai_epi32::<16>(scales);
            _mm512_add_epi32(_mm512_mullo_epi32(a, s0), _mm512_mullo_epi32(b, s1))
        }
    }
    #[inline(always)]
    unsafe fn prepare_bytes(w: &[__m512i; 8]) -> Self::Bytes {
        // SAFETY: the trait's contract.
        unsafe {
            let mut out = *w;
            for o in &mut out {
                *o = _mm512_xor_si512(*o, _mm512_set1_epi8(-128));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn dot_bytes(w: &Self::Bytes, x: *const i8, neg_sum: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { Self::dot::<255>(w, x, _mm512_slli_epi32::<7>(neg_sum)) }
    }
}
