//! Sixteen lanes in two 256-bit registers, with AVX2, FMA and F16C.
#![allow(clippy::needless_range_loop)] // indices run over several arrays at once

use std::arch::x86_64::*;

use super::Lanes;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Lanes 0–7 and 8–15.
type F = [__m256; 2];
/// Bytes 0–31 and 32–63.
type I = [__m256i; 2];

macro_rules! ops {
    ($(fn $name:ident($($a:ident: $t:ty),*) $(-> $r:ty)? = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($a: $t),*) $(-> $r)? {
            #[allow(unused_unsafe)] // one row only copies
            // SAFETY: the trait's contract: the CPU has the instructions, pointers are valid for what is read.
            unsafe { $e }
        }
    )*};
}

/// Operations done alike on both registers.
macro_rules! both {
    ($(fn $name:ident($($a:ident: $t:ty),*) -> $r:ty = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($a: $t),*) -> $r {
            // SAFETY: the trait's contract.
            unsafe { [{ $(let $a = $a[0];)* $e }, { $(let $a = $a[1];)* $e }] }
        }
    )*};
}

#[inline(always)]
unsafe fn splat_group(x: *const i8, g: usize) -> __m256i {
    // SAFETY: the caller vouches for 32 bytes at x and for AVX2.
    unsafe { _mm256_set1_epi32(x.add(4 * g).cast::<i32>().read_unaligned()) }
}

/// Multiply-adds of groups `from..from + n` as 16-bit pair sums, which callers keep below 2¹⁵.
#[inline(always)]
unsafe fn pair_sums<const FROM: usize, const N: usize>(w: &[I; 8], x: *const i8) -> I {
    // SAFETY: the caller vouches for 32 bytes at x and for AVX2.
    unsafe {
        let v = splat_group(x, FROM);
        let mut a = _mm256_maddubs_epi16(w[FROM][0], v);
        let mut b = _mm256_maddubs_epi16(w[FROM][1], v);
        for g in FROM + 1..FROM + N {
            let v = splat_group(x, g);
            a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w[g][0], v));
            b = _mm256_add_epi16(b, _mm256_maddubs_epi16(w[g][1], v));
        }
        [a, b]
    }
}

/// Σ over four groups starting at `FROM`, each lane's pair weighted by `by`.
#[inline(always)]
unsafe fn half_dot<const FROM: usize, const MAX: u32>(w: &[I; 8], x: *const i8, by: I) -> I {
    // SAFETY: as the caller's.
    unsafe {
        match (FROM, MAX <= 31) {
            // 4·2·31·127 = 31,496 and 2·2·63·127 = 32,004 fit 16 bits.
            (0, true) => Avx2::mul_pairs(pair_sums::<0, 4>(w, x), by),
            (_, true) => Avx2::mul_pairs(pair_sums::<4, 4>(w, x), by),
            (0, false) => Avx2::add_int(
                Avx2::mul_pairs(pair_sums::<0, 2>(w, x), by),
                Avx2::mul_pairs(pair_sums::<2, 2>(w, x), by),
            ),
            (_, false) => Avx2::add_int(
                Avx2::mul_pairs(pair_sums::<4, 2>(w, x), by),
                Avx2::mul_pairs(pair_sums::<6, 2>(w, x), by),
            ),
        }
    }
}

impl Lanes for Avx2 {
    type F = F;
    type I = I;
    /// The signed bytes themselves: the sign trick's 2·128·127 fits 16 bits.
    type Bytes = [I; 8];
    const SCORE_ROWS: usize = 1;

    ops! {
        fn splat(x: f32) -> F = [_mm256_set1_ps(x); 2];
        fn load(p: *const f32) -> F = [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))];
        fn store(p: *mut f32, x: F) = { _mm256_storeu_ps(p, x[0]); _mm256_storeu_ps(p.add(8), x[1]) };
        fn load_f16(p: *const u16) -> F =
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))];
        fn load_bf16(p: *const u16) -> F = {
            let v = Self::shl::<16>([_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()))]);
            Self::bits_to_float(v)
        };
        fn store_f16(p: *mut u16, x: F) = {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]))
        };
        fn load_int(p: *const u8) -> I = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
        fn splat_int(x: i32) -> I = [_mm256_set1_epi32(x); 2];
        fn widen_u8(p: *const u8) -> I =
            [_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())), _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()))];
        fn widen_i8_pairs(p: *const u8) -> I =
            [_mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())), _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(16).cast()))];
        fn look_up(table: &[i8; 16], indices: I) -> I = {
            let t = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(t, indices[0]), _mm256_shuffle_epi8(t, indices[1])]
        };
        fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        fn store_int(p: *mut i32, a: I) = {
            _mm256_storeu_si256(p.cast(), a[0]);
            _mm256_storeu_si256(p.add(8).cast(), a[1])
        };
        fn store_narrow(p: *mut i8, a: I) = {
            // Packing works within 128-bit halves: words come as 0-3, 8-11, 4-7, 12-15.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a[0], a[1]));
            let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), _mm_packs_epi16(low, high))
        };
        fn prepare_bytes(w: &[I; 8]) -> [I; 8] = *w;
    }
    both! {
        fn add(a: F, b: F) -> F = _mm256_add_ps(a, b);
        fn sub(a: F, b: F) -> F = _mm256_sub_ps(a, b);
        fn mul(a: F, b: F) -> F = _mm256_mul_ps(a, b);
        fn div(a: F, b: F) -> F = _mm256_div_ps(a, b);
        fn fma(a: F, b: F, c: F) -> F = _mm256_fmadd_ps(a, b, c);
        fn max(a: F, b: F) -> F = _mm256_max_ps(a, b);
        fn min(a: F, b: F) -> F = _mm256_min_ps(a, b);
        fn abs(a: F) -> F = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        fn select_lt(a: F, b: F, yes: F, no: F) -> F = _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        fn to_float(a: I) -> F = _mm256_cvtepi32_ps(a);
        fn round_to_int(a: F) -> I = _mm256_cvtps_epi32(a);
        fn bits_to_float(a: I) -> F = _mm256_castsi256_ps(a);
        fn and(a: I, b: I) -> I = _mm256_and_si256(a, b);
        fn or(a: I, b: I) -> I = _mm256_or_si256(a, b);
        fn add_int(a: I, b: I) -> I = _mm256_add_epi32(a, b);
        fn sub_int(a: I, b: I) -> I = _mm256_sub_epi32(a, b);
        fn max_int(a: I, b: I) -> I = _mm256_max_epi32(a, b);
        fn float_to_bits(a: F) -> I = _mm256_castps_si256(a);
        fn mul_pairs(a: I, b: I) -> I = _mm256_madd_epi16(a, b);
    }
    #[inline(always)]
    unsafe fn shl<const N: u32>(a: I) -> I {
        // SAFETY: the trait's contract. The shift by a constant vector becomes one by an immediate.
        unsafe {
            let n = _mm256_set1_epi32(N as i32);
            [_mm256_sllv_epi32(a[0], n), _mm256_sllv_epi32(a[1], n)]
        }
    }
    #[inline(always)]
    unsafe fn shr<const N: u32>(a: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            let n = _mm256_set1_epi32(N as i32);
            [_mm256_srlv_epi32(a[0], n), _mm256_srlv_epi32(a[1], n)]
        }
    }
    #[inline(always)]
    unsafe fn shr_each(a: I, counts: I) -> I {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_srlv_epi32(a[0], counts[0]), _mm256_srlv_epi32(a[1], counts[1])] }
    }
    #[inline(always)]
    unsafe fn dot<const MAX: u32>(w: &[I; 8], x: *const i8, init: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            let ones = [_mm256_set1_epi16(1); 2];
            let sum = if MAX <= 15 {
                // 8·2·15·127 = 30,480 fits 16 bits.
                Self::mul_pairs(pair_sums::<0, 8>(w, x), ones)
            } else {
                Self::add_int(half_dot::<0, MAX>(w, x, ones), half_dot::<4, MAX>(w, x, ones))
            };
            Self::add_int(init, sum)
        }
    }
    #[inline(always)]
    unsafe fn dot_halves<const MAX: u32>(w: &[I; 8], x: *const i8, scales: I) -> I {
        // SAFETY: the trait's contract.
        unsafe {
            let low = Self::and(scales, Self::splat_int(0xffff));
            let high = Self::shr::<16>(scales);
            let s0 = Self::or(low, Self::shl::<16>(low));
            let s1 = Self::or(high, Self::shl::<16>(high));
            Self::add_int(half_dot::<0, MAX>(w, x, s0), half_dot::<4, MAX>(w, x, s1))
        }
    }
    #[inline(always)]
    unsafe fn dot_bytes(w: &[I; 8], x: *const i8, _neg_sum: I) -> I {
        // SAFETY: the trait's contract. |w| is at most 128 as an unsigned byte, and 2·128·127 = 32,512 fits 16 bits.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut sum = [_mm256_setzero_si256(); 2];
            for g in 0..8 {
                let v = splat_group(x, g);
                for h in 0..2 {
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[g][h]), _mm256_sign_epi8(v, w[g][h]));
                    sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(pairs, ones));
                }
            }
            sum
        }
    }
}
