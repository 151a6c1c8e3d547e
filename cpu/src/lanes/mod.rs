//! Sixteen lanes: the one vector type that every kernel is written in, and its implementations by instruction set.
//!
//! A kernel is generic over [`Lanes`] and compiled once per table; each operation here is exactly rounded or exact, so
//! every table gives the same bits. The portable implementation is the definition of each operation.

pub(crate) mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

use crate::math;

/// One instruction set's sixteen lanes of f32 (`F`) and of 32-bit integers, or 64 bytes (`I`).
///
/// # Safety
/// Every function may be called only where the CPU has the instruction set (a kernel table is handed out only after
/// that check), and pointers must be valid for the bytes that the function's description names; no alignment is needed.
///
/// All functions are inlined into a kernel with the right target features; none of them is called on its own.
#[allow(clippy::missing_safety_doc)] // said once, above
pub(crate) trait Lanes: Copy + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32, 32 × i16 or 64 × i8.
    type I: Copy;
    /// Eight groups of signed bytes made ready for [`Lanes::dot_bytes`].
    type Bytes: Copy;
    /// Query rows that a score kernel keeps in registers.
    const SCORE_ROWS: usize;

    unsafe fn splat(x: f32) -> Self::F;
    /// 16 f32.
    unsafe fn load(p: *const f32) -> Self::F;
    /// 16 f32.
    unsafe fn store(p: *mut f32, x: Self::F);
    /// 16 f16, widened exactly.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// 16 bf16, widened exactly.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// 16 f16, rounded to nearest even.
    unsafe fn store_f16(p: *mut u16, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// a·b + c, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// a where a > b, else b: b where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// a where a < b, else b: b where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// yes where a < b, else no.
    unsafe fn select_lt(a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// Exact below 2²⁴ in magnitude, else to nearest even.
    unsafe fn to_float(a: Self::I) -> Self::F;
    /// The sum of each vector's lanes by [`math::tree_sum`]'s tree.
    #[inline(always)]
    unsafe fn tree_sums(v: [Self::F; 4]) -> [f32; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            let [a, b, c, d] = v;
            let [a, b] = [math::tree_sum(math::lanes::<Self>(a)), math::tree_sum(math::lanes::<Self>(b))];
            [a, b, math::tree_sum(math::lanes::<Self>(c)), math::tree_sum(math::lanes::<Self>(d))]
        }
    }
    /// The greatest of each vector's lanes by the same tree.
    #[inline(always)]
    unsafe fn tree_maxima(v: [Self::F; 4]) -> [f32; 4] {
        // SAFETY: the trait's contract.
        unsafe {
            let [a, b, c, d] = v;
            let [a, b] = [math::tree_max(math::lanes::<Self>(a)), math::tree_max(math::lanes::<Self>(b))];
            [a, b, math::tree_max(math::lanes::<Self>(c)), math::tree_max(math::lanes::<Self>(d))]
        }
    }
    /// The low N bits of each lane, 2 or 4.
    #[inline(always)]
    unsafe fn low_bits<const N: u32>(a: Self::I) -> Self::F {
        // SAFETY: the trait's contract.
        unsafe { Self::to_float(Self::and(a, Self::splat_int((1 << N) - 1))) }
    }
    /// To nearest, ties to even; lanes outside i32 are unspecified.
    unsafe fn round_to_int(a: Self::F) -> Self::I;
    /// The same bits.
    unsafe fn bits_to_float(a: Self::I) -> Self::F;

    /// 64 bytes.
    unsafe fn load_int(p: *const u8) -> Self::I;
    unsafe fn splat_int(x: i32) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// 32-bit lanes, zeros shifted in; N is the same for all.
    unsafe fn shl<const N: u32>(a: Self::I) -> Self::I;
    /// 32-bit lanes, zeros shifted in.
    unsafe fn shr<const N: u32>(a: Self::I) -> Self::I;
    /// 32-bit lanes, each by its own count below 32, zeros shifted in.
    unsafe fn shr_each(a: Self::I, counts: Self::I) -> Self::I;
    /// 32-bit lanes.
    unsafe fn add_int(a: Self::I, b: Self::I) -> Self::I;
    /// 32-bit lanes.
    unsafe fn sub_int(a: Self::I, b: Self::I) -> Self::I;
    /// 32-bit lanes, signed.
    unsafe fn max_int(a: Self::I, b: Self::I) -> Self::I;
    /// The same bits.
    unsafe fn float_to_bits(a: Self::F) -> Self::I;
    /// 16 i32 to memory.
    unsafe fn store_int(p: *mut i32, a: Self::I);
    /// The low bytes of 16 lanes to memory; lanes are within i8.
    unsafe fn store_narrow(p: *mut i8, a: Self::I);
    /// a₀·b₀ + a₁·b₁ of the signed 16-bit pairs in each 32-bit lane; not both products may be 2³⁰.
    unsafe fn mul_pairs(a: Self::I, b: Self::I) -> Self::I;
    /// 16 bytes, zero-extended to 32 bits.
    unsafe fn widen_u8(p: *const u8) -> Self::I;
    /// 32 bytes, sign-extended to 16 bits.
    unsafe fn widen_i8_pairs(p: *const u8) -> Self::I;
    /// Byte-wise table look-up; indices are 0 to 15.
    unsafe fn look_up(table: &[i8; 16], indices: Self::I) -> Self::I;

    /// init + Σ over the eight groups g and four bytes i of `w[g]·x[4g + i]`, exactly; w unsigned, at most MAX, which is
    /// 3, 7, 15, 31 or 63, x within ±127. 32 bytes at x.
    unsafe fn dot<const MAX: u32>(w: &[Self::I; 8], x: *const i8, init: Self::I) -> Self::I;
    /// [`Lanes::dot`] of two panels with one column.
    #[inline(always)]
    unsafe fn dot_pair<const MAX: u32>(
        a: &[Self::I; 8],
        b: &[Self::I; 8],
        x: *const i8,
        init: Self::I,
    ) -> [Self::I; 2] {
        // SAFETY: handed on.
        unsafe { [Self::dot::<MAX>(a, x, init), Self::dot::<MAX>(b, x, init)] }
    }
    /// s₀·(first four groups' dot) + s₁·(last four groups' dot), exactly, (s₀, s₁) being each lane's 16-bit pair.
    unsafe fn dot_halves<const MAX: u32>(w: &[Self::I; 8], x: *const i8, scales: Self::I) -> Self::I;
    /// [`Lanes::dot_halves`] of two panels with one column.
    #[inline(always)]
    unsafe fn dot_halves_pair<const MAX: u32>(
        a: &[Self::I; 8],
        b: &[Self::I; 8],
        x: *const i8,
        scales: [Self::I; 2],
    ) -> [Self::I; 2] {
        // SAFETY: handed on.
        unsafe { [Self::dot_halves::<MAX>(a, x, scales[0]), Self::dot_halves::<MAX>(b, x, scales[1])] }
    }
    /// Prepares signed bytes for [`Lanes::dot_bytes`].
    unsafe fn prepare_bytes(w: &[Self::I; 8]) -> Self::Bytes;
    /// Σ of signed `w[g]·x[4g + i]`, exactly. `neg_sum` is −Σx in every lane. 32 bytes at x.
    unsafe fn dot_bytes(w: &Self::Bytes, x: *const i8, neg_sum: Self::I) -> Self::I;

    /// Asks for the cache line at p; p need not be valid.
    unsafe fn prefetch(p: *const u8);
}
