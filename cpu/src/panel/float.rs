//! Products with float panels: `acc[column][row] = fma(w[k][row], x[k][column], acc)`, k ascending, from zero.
//!
//! Lanes are outputs; several columns and panels advance together, as many as the registers hold, to hide the latency of
//! the fused multiply-add and to use each load often.

use tensor::Encoding;

use crate::lanes::Lanes;

/// The arguments of one float product, checked by [`crate::table::Table`].
#[derive(Clone, Copy)]
pub(crate) struct FloatArgs {
    /// The first panel; the others follow at `panel_bytes`.
    pub(crate) panels: *const u8,
    /// Bytes from one panel to the next.
    pub(crate) panel_bytes: usize,
    /// Panels.
    pub(crate) count: usize,
    /// Elements of a row.
    pub(crate) cols: usize,
    /// `[columns][cols]`.
    pub(crate) x: *const f32,
    pub(crate) columns: usize,
    /// `[columns][count][16]`, stored.
    pub(crate) out: *mut f32,
}

/// A float product of a table; unsafe as `IntKernel` is.
pub(crate) type FloatKernel = unsafe fn(FloatArgs);

/// A float encoding.
pub(crate) trait FloatEncoded {
    const ENCODING: Encoding;
    /// 16 rows' element.
    ///
    /// # Safety
    /// 16 elements at p; the CPU has the instructions.
    unsafe fn load<S: Lanes>(p: *const u8) -> S::F;
}

macro_rules! float {
    ($name:ident, $load:ident) => {
        pub(crate) struct $name;
        impl FloatEncoded for $name {
            const ENCODING: Encoding = Encoding::$name;
            #[inline(always)]
            unsafe fn load<S: Lanes>(p: *const u8) -> S::F {
                // SAFETY: the caller's contract.
                unsafe { S::$load(p.cast()) }
            }
        }
    };
}
float!(F32, load);
float!(F16, load_f16);
float!(BF16, load_bf16);

/// The product for one encoding on one instruction set.
///
/// # Safety
/// As [`FloatKernel`].
#[inline(always)]
pub(crate) unsafe fn product<S: Lanes, E: FloatEncoded>(a: FloatArgs) {
    // SAFETY: the caller's contract is handed on; the ranges stay within columns and count.
    unsafe {
        // Columns that fill the registers together with two panels.
        let wide = if S::SCORE_ROWS >= 4 { 8 } else { 2 };
        let mut c = 0;
        while c < a.columns {
            let n = if a.columns - c >= wide { wide } else { 1 };
            let mut p = 0;
            while p < a.count {
                let left = a.count - p;
                p += match (n, left) {
                    (8, 2..) => tile::<S, E, 2, 8>(a, p, c),
                    (8, _) => tile::<S, E, 1, 8>(a, p, c),
                    (2, 2..) => tile::<S, E, 2, 2>(a, p, c),
                    (2, _) => tile::<S, E, 1, 2>(a, p, c),
                    (_, 4..) => tile::<S, E, 4, 1>(a, p, c),
                    _ => tile::<S, E, 1, 1>(a, p, c),
                };
            }
            c += n;
        }
    }
}

/// P panels from p times N columns from c; gives P.
#[inline(always)]
unsafe fn tile<S: Lanes, E: FloatEncoded, const P: usize, const N: usize>(
    a: FloatArgs,
    p: usize,
    c: usize,
) -> usize {
    // SAFETY: panels p..p+P and columns c..c+N exist, of `cols` elements each.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; P];
        let step = 16 * E::ENCODING.block_bytes();
        let base = a.panels.add(p * a.panel_bytes);
        let x = a.x.add(c * a.cols);
        for k in 0..a.cols {
            for (i, acc) in acc.iter_mut().enumerate() {
                let w = E::load::<S>(base.add(i * a.panel_bytes + k * step));
                for (n, acc) in acc.iter_mut().enumerate() {
                    *acc = S::fma(w, S::splat(*x.add(n * a.cols + k)), *acc);
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (n, acc) in acc.iter().enumerate() {
                S::store(a.out.add(((c + n) * a.count + p + i) * 16), *acc);
            }
        }
    }
    P
}
