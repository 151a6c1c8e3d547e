//! Products with weight panels: for one or two panels of 16 rows and any number of columns (activation rows),
//! `acc[column][panel][row]` = panel row · column.
//!
//! ```text
//! for each block, for each sub-block of 32 elements:
//!     unpack the panel's codes and scales once
//!     for each column: i = exact integer dot; acc = fma(f32(i), scale·x.scale, acc); [acc = fma(min, x.scale·Σx, acc)]
//! ```
//!
//! Lanes are outputs, so every (row, column) goes through this one sequence whatever the vector width, the number of
//! columns or of panels; it *is* the numerics contract for integer encodings. Departures from the plain loop:
//! 1. up to four columns keep their accumulators in registers (one column is what generation runs);
//! 2. more columns keep the unpacked weights in registers instead and stream the columns past them, two panels at a
//!    time so that each broadcast activation is used twice.

pub(crate) mod float;
pub(crate) mod kinds;

use crate::lanes::Lanes;
use kinds::Encoded;

/// A quantised block of 32 activations of one column.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub(crate) struct XBlock {
    /// round_half_even(x·(127/m)), m the block's largest magnitude.
    pub(crate) codes: [i8; 32],
    /// m/127; 0 where m < 2⁻¹²⁰, NaN where the block holds a NaN or an infinity.
    pub(crate) scale: f32,
    /// f32(Σ codes)·scale, rounded.
    pub(crate) scaled_sum: f32,
    /// Σ of the first and of the last 16 codes.
    pub(crate) half_sums: [i16; 2],
    /// −Σ codes.
    pub(crate) neg_sum: i32,
}

const _: () = assert!(size_of::<XBlock>() == 48);

impl XBlock {
    /// All zero.
    pub(crate) const ZERO: XBlock =
        XBlock { codes: [0; 32], scale: 0.0, scaled_sum: 0.0, half_sums: [0; 2], neg_sum: 0 };
}

/// The arguments of one integer product, checked by [`crate::table::Table`].
#[derive(Clone, Copy)]
pub(crate) struct IntArgs {
    /// The first panel; then either the others at `panel_bytes`, or, where this is not null, one other panel.
    pub(crate) panels: [*const u8; 2],
    /// Bytes of one panel.
    pub(crate) panel_bytes: usize,
    /// Panels in all.
    pub(crate) count: usize,
    /// Source blocks of a row.
    pub(crate) blocks: usize,
    /// Bytes from a panel's start to its codes.
    pub(crate) codes_offset: usize,
    /// `[blocks·subs][columns]`.
    pub(crate) x: *const XBlock,
    pub(crate) columns: usize,
    /// `[columns][count][16]`, written.
    pub(crate) acc: *mut f32,
}

impl IntArgs {
    /// The p-th panel.
    #[inline(always)]
    fn panel(&self, p: usize) -> *const u8 {
        if p == 1 && !self.panels[1].is_null() {
            self.panels[1]
        } else {
            self.panels[0].wrapping_add(p * self.panel_bytes)
        }
    }
}

/// An integer product of a table. Unsafe to call: the CPU must have the table's instructions, and the arguments'
/// pointers must be valid for the sizes they state.
pub(crate) type IntKernel = unsafe fn(IntArgs);

/// The product for one encoding on one instruction set.
///
/// # Safety
/// As [`IntKernel`].
#[inline(always)]
pub(crate) unsafe fn product<S: Lanes, E: Encoded>(a: IntArgs) {
    // SAFETY: the caller's contract is handed on.
    unsafe {
        match a.columns {
            1 => in_registers::<S, E, 1>(a),
            2 => in_registers::<S, E, 2>(a),
            3 => in_registers::<S, E, 3>(a),
            4 => in_registers::<S, E, 4>(a),
            _ => {
                for i in 0..a.columns * a.count {
                    S::store(a.acc.add(16 * i), S::splat(0.0));
                }
                let mut p = 0;
                // Two panels of codes kept as bytes would not stay in registers.
                while size_of::<E::W<S>>() <= 12 * size_of::<S::F>() && p + 2 <= a.count {
                    streamed::<S, E, 2>(a, p);
                    p += 2;
                }
                while p < a.count {
                    streamed::<S, E, 1>(a, p);
                    p += 1;
                }
            }
        }
    }
}

/// How far ahead of its reads a product of few columns asks for lines. The hardware's own prefetching stops at each page
/// and knows nothing of where the heads end; asked for in one straight run over the panels, every line comes in time.
const AHEAD_BYTES: usize = 4096;

/// Columns that stream past a sub-block in about the time that memory takes to answer.
const LEAD_COLUMNS: usize = 32;

/// Panel after panel, N columns with their accumulators in registers.
#[inline(always)]
unsafe fn in_registers<S: Lanes, E: Encoded, const N: usize>(a: IntArgs) {
    // SAFETY: the caller's contract: each panel has `blocks` heads and code blocks, x and acc `columns` columns.
    unsafe {
        // What one sub-block moves forward in the panel, heads included.
        let step = a.panel_bytes / (a.blocks * E::SUBS);
        for p in 0..a.count {
            let mut acc = [S::splat(0.0); N];
            let out = a.acc.add(16 * p);
            let mut head = a.panel(p);
            let mut planes = head.add(a.codes_offset);
            let mut ahead = head.wrapping_add(AHEAD_BYTES);
            let mut x = a.x;
            for _ in 0..a.blocks {
                for j in 0..E::SUBS {
                    let mut line = 0;
                    while line < E::SUB_BYTES + E::HEAD_BYTES / E::SUBS {
                        S::prefetch(ahead.wrapping_add(line));
                        line += 64;
                    }
                    ahead = ahead.wrapping_add(step);
                    let w = E::load::<S>(head, planes, j);
                    for (c, acc) in acc.iter_mut().enumerate() {
                        *acc = E::apply::<S>(&w, x.add(c), *acc);
                    }
                    planes = planes.add(E::SUB_BYTES);
                    x = x.add(N);
                }
                head = head.add(E::HEAD_BYTES);
            }
            for (c, acc) in acc.iter().enumerate() {
                S::store(out.add(16 * c * a.count), *acc);
            }
        }
    }
}

/// P panels from `first` with their unpacked sub-blocks in registers, columns streaming past.
#[inline(always)]
unsafe fn streamed<S: Lanes, E: Encoded, const P: usize>(a: IntArgs, first: usize) {
    // SAFETY: the caller's contract: the panels have `blocks` heads and code blocks, x and acc `columns` columns.
    unsafe {
        let mut x = a.x;
        // Sub-blocks ahead: about as long as memory takes, whatever the columns.
        let lead = (LEAD_COLUMNS / a.columns).max(1);
        for b in 0..a.blocks {
            for j in 0..E::SUBS {
                // Closures would not inherit the table's instructions, so nothing but pointers may pass through one.
                let at = |p: usize| {
                    let panel = a.panel(first + p);
                    let codes = panel.add(a.codes_offset + (b * E::SUBS + j) * E::SUB_BYTES);
                    (panel.add(b * E::HEAD_BYTES), codes)
                };
                let (head, codes) = at(0);
                let one = E::load::<S>(head, codes, j);
                let (head, codes) = at(P - 1);
                let two = if P == 2 { E::load::<S>(head, codes, j) } else { one };
                // Later sub-blocks come while the columns stream past this one.
                for p in 0..P {
                    let (head, codes) = at(p);
                    let mut line = 0;
                    while line < E::SUB_BYTES {
                        S::prefetch(codes.wrapping_add(lead * E::SUB_BYTES + line));
                        line += 64;
                    }
                    S::prefetch(head.wrapping_add(lead * E::HEAD_BYTES));
                }
                let mut acc = a.acc.add(16 * first);
                let stride = 16 * a.count;
                for _ in 0..a.columns / 2 {
                    terms::<S, E, P, 2>(&one, &two, x, acc, stride);
                    acc = acc.add(2 * stride);
                    x = x.add(2);
                }
                if a.columns % 2 == 1 {
                    terms::<S, E, P, 1>(&one, &two, x, acc, stride);
                    x = x.add(1);
                }
            }
        }
    }
}

/// One sub-block's terms of one or two panels and one or two columns: all integers first, because an accumulator's chain
/// of dot, conversion and two fused multiply-adds is as long as the processor's window, and then nothing else would be
/// under way.
#[inline(always)]
unsafe fn terms<S: Lanes, E: Encoded, const P: usize, const C: usize>(
    one: &E::W<S>,
    two: &E::W<S>,
    x: *const XBlock,
    acc: *mut f32,
    stride: usize,
) {
    const { assert!(P == 1 || P == 2) };
    const { assert!(C == 1 || C == 2) };
    // SAFETY: the caller's contract: C columns at x, and of P panels at acc.
    unsafe {
        let y = x.add(C - 1);
        let [d0, d1] = dots::<S, E, P>(one, two, x);
        let [d2, d3] = if C == 2 { dots::<S, E, P>(one, two, y) } else { [d0, d1] };
        S::store(acc, E::add::<S>(one, d0, x, S::load(acc)));
        if P == 2 {
            let acc = acc.add(16);
            S::store(acc, E::add::<S>(two, d1, x, S::load(acc)));
        }
        if C == 2 {
            let acc = acc.add(stride);
            S::store(acc, E::add::<S>(one, d2, y, S::load(acc)));
            if P == 2 {
                let acc = acc.add(16);
                S::store(acc, E::add::<S>(two, d3, y, S::load(acc)));
            }
        }
    }
}

/// The integers of one column and one or two panels.
#[inline(always)]
unsafe fn dots<S: Lanes, E: Encoded, const P: usize>(
    one: &E::W<S>,
    two: &E::W<S>,
    x: *const XBlock,
) -> [E::Dots<S>; 2] {
    // SAFETY: the caller's contract.
    unsafe { if P == 2 { E::dots_pair::<S>(one, two, x) } else { [E::dots::<S>(one, x); 2] } }
}
