//! Sixteen lanes in plain Rust: runs everywhere, and defines what each operation means.

use half::{bf16, f16};

use super::Lanes;

/// The portable lanes.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type F = [f32; 16];
type I = [i32; 16];

macro_rules! lanewise {
    ($($(#[$m:meta])* fn $name:ident($($a:ident: $t:ty),*) -> $r:ty = $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($a: $t),*) -> $r { std::array::from_fn(|i| { $(let $a = $a[i];)* $e }) }
    )*};
}

#[inline(always)]
fn byte(x: i32, i: usize) -> u8 {
    x.to_le_bytes()[i]
}

/// Σ over `groups` of unsigned bytes of w times x.
#[inline(always)]
unsafe fn dot_groups(w: &[I; 8], x: *const i8, groups: std::ops::Range<usize>, lane: usize) -> i32 {
    let mut sum = 0i32;
    for g in groups {
        for i in 0..4 {
            // SAFETY: the caller vouches for 32 bytes at x.
            sum += byte(w[g][lane], i) as i32 * unsafe { *x.add(4 * g + i) } as i32;
        }
    }
    sum
}

impl Lanes for Portable {
    type F = F;
    type I = I;
    type Bytes = [I; 8];
    const SCORE_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: the caller vouches for 16 f32.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: F) {
        // SAFETY: the caller vouches for 16 f32.
        unsafe { p.cast::<F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        // SAFETY: the caller vouches for 16 f16.
        unsafe { p.cast::<[u16; 16]>().read_unaligned() }.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> F {
        // SAFETY: the caller vouches for 16 bf16.
        unsafe { p.cast::<[u16; 16]>().read_unaligned() }.map(|b| bf16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: F) {
        // SAFETY: the caller vouches for 16 f16.
        unsafe { p.cast::<[u16; 16]>().write_unaligned(x.map(|v| f16::from_f32(v).to_bits())) }
    }
    lanewise! {
        fn add(a: F, b: F) -> F = a + b;
        fn sub(a: F, b: F) -> F = a - b;
        fn mul(a: F, b: F) -> F = a * b;
        fn div(a: F, b: F) -> F = a / b;
        fn fma(a: F, b: F, c: F) -> F = a.mul_add(b, c);
        fn max(a: F, b: F) -> F = if a > b { a } else { b };
        fn min(a: F, b: F) -> F = if a < b { a } else { b };
        fn abs(a: F) -> F = a.abs();
        fn select_lt(a: F, b: F, yes: F, no: F) -> F = if a < b { yes } else { no };
        fn to_float(a: I) -> F = a as f32;
        fn round_to_int(a: F) -> I = a.round_ties_even() as i32;
        fn bits_to_float(a: I) -> F = f32::from_bits(a as u32);
        fn and(a: I, b: I) -> I = a & b;
        fn or(a: I, b: I) -> I = a | b;
        fn shr_each(a: I, counts: I) -> I = (a as u32 >> counts) as i32;
        fn add_int(a: I, b: I) -> I = a.wrapping_add(b);
        fn sub_int(a: I, b: I) -> I = a.wrapping_sub(b);
        fn max_int(a: I, b: I) -> I = a.max(b);
        fn float_to_bits(a: F) -> I = a.to_bits() as i32;
        fn mul_pairs(a: I, b: I) -> I =
            a as i16 as i32 * b as i16 as i32 + (a >> 16) * (b >> 16);
    }
    #[inline(always)]
    unsafe fn load_int(p: *const u8) -> I {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { p.cast::<[[u8; 4]; 16]>().read_unaligned() }.map(i32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn store_int(p: *mut i32, a: I) {
        // SAFETY: the caller vouches for 16 i32.
        unsafe { p.cast::<I>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn store_narrow(p: *mut i8, a: I) {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { p.cast::<[i8; 16]>().write_unaligned(a.map(|v| v as i8)) }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> I {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn shl<const N: u32>(a: I) -> I {
        a.map(|v| ((v as u32) << N) as i32)
    }
    #[inline(always)]
    unsafe fn shr<const N: u32>(a: I) -> I {
        a.map(|v| (v as u32 >> N) as i32)
    }
    #[inline(always)]
    unsafe fn widen_u8(p: *const u8) -> I {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { p.cast::<[u8; 16]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn widen_i8_pairs(p: *const u8) -> I {
        // SAFETY: the caller vouches for 32 bytes.
        let pairs = unsafe { p.cast::<[[i8; 2]; 16]>().read_unaligned() };
        pairs.map(|[a, b]| (a as i16 as u16 as u32 | (b as i16 as u16 as u32) << 16) as i32)
    }
    #[inline(always)]
    unsafe fn look_up(table: &[i8; 16], indices: I) -> I {
        indices.map(|v| i32::from_le_bytes(v.to_le_bytes().map(|b| table[(b & 15) as usize] as u8)))
    }
    #[inline(always)]
    unsafe fn dot<const MAX: u32>(w: &[I; 8], x: *const i8, init: I) -> I {
        // SAFETY: the caller vouches for 32 bytes at x.
        std::array::from_fn(|l| init[l] + unsafe { dot_groups(w, x, 0..8, l) })
    }
    #[inline(always)]
    unsafe fn dot_halves<const MAX: u32>(w: &[I; 8], x: *const i8, scales: I) -> I {
        std::array::from_fn(|l| {
            let (s0, s1) = (scales[l] as i16 as i32, scales[l] >> 16);
            // SAFETY: the caller vouches for 32 bytes at x.
            unsafe { s0 * dot_groups(w, x, 0..4, l) + s1 * dot_groups(w, x, 4..8, l) }
        })
    }
    #[inline(always)]
    unsafe fn prepare_bytes(w: &[I; 8]) -> [I; 8] {
        *w
    }
    #[inline(always)]
    unsafe fn dot_bytes(w: &[I; 8], x: *const i8, _neg_sum: I) -> I {
        std::array::from_fn(|l| {
            let mut sum = 0i32;
            for (g, w) in w.iter().enumerate() {
                for i in 0..4 {
                    // SAFETY: the caller vouches for 32 bytes at x.
                    sum += byte(w[l], i) as i8 as i32 * unsafe { *x.add(4 * g + i) } as i32;
                }
            }
            sum
        })
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}
