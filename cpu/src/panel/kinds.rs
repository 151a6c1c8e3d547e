//! The encodings as data for the product: how a sub-block's codes and scales are unpacked, and which of five forms its
//! term takes. The layouts are `tensor::panels`'.
//!
//! With i = Σ code·x exact, d the row's scale for the sub-block and s the column's:
//! - offset:   acc = fma(f32(i − OFFSET·Σx), d·s, acc)
//! - minimum:  acc = fma(f32(i), d·s, acc), then acc = fma(m, f32(Σx)·s, acc)
//! - bytes:    acc = fma(f32(i), d·s, acc), codes being signed bytes or a table's values
//! - halves:   i = Σ over the two halves of a·(iₕ − OFFSET·Σxₕ), exact, then as offset
//! - halves with minima: acc = fma(f32(Σ a·iₕ), d·s, acc), then acc = fma(f32(Σ bₕ·Σxₕ), −(d_min·s), acc)
//!
//! Products of an f16 scale with a sub-scale of at most eight bits are exact in f32.

#![allow(non_camel_case_types)] // the encodings' own names

use tensor::Encoding;
use tensor::panels::{IQ4_VALUES, sections};

use super::XBlock;
use crate::lanes::Lanes;

/// One integer encoding.
///
/// # Safety
/// As [`Lanes`]: `head` and `planes` are valid for the sizes below, x for one block.
#[allow(clippy::missing_safety_doc)] // said once, above
pub(crate) trait Encoded {
    const ENCODING: Encoding;
    /// Sub-blocks of 32 in a block.
    const SUBS: usize = Self::ENCODING.block_len() / 32;
    const HEAD_BYTES: usize = match sections(Self::ENCODING) {
        Some(s) => s.head_bytes,
        None => 0,
    };
    const SUB_BYTES: usize = match sections(Self::ENCODING) {
        Some(s) => s.code_bytes / Self::SUBS,
        None => 0,
    };
    /// An unpacked sub-block of 16 rows.
    type W<S: Lanes>: Copy;
    unsafe fn load<S: Lanes>(head: *const u8, planes: *const u8, j: usize) -> Self::W<S>;
    /// The exact integers of one column's terms.
    type Dots<S: Lanes>: Copy;
    unsafe fn dots<S: Lanes>(w: &Self::W<S>, x: *const XBlock) -> Self::Dots<S>;
    /// The same of two sub-blocks.
    #[inline(always)]
    unsafe fn dots_pair<S: Lanes>(
        one: &Self::W<S>,
        two: &Self::W<S>,
        x: *const XBlock,
    ) -> [Self::Dots<S>; 2] {
        // SAFETY: handed on.
        unsafe { [Self::dots(one, x), Self::dots(two, x)] }
    }
    /// The terms, scaled and added to acc. Apart from the integers so that a product can have several columns' dots
    /// under way before it needs the first.
    unsafe fn add<S: Lanes>(w: &Self::W<S>, dots: Self::Dots<S>, x: *const XBlock, acc: S::F) -> S::F;
    /// Both.
    #[inline(always)]
    unsafe fn apply<S: Lanes>(w: &Self::W<S>, x: *const XBlock, acc: S::F) -> S::F {
        // SAFETY: handed on.
        unsafe { Self::add(w, Self::dots(w, x), x, acc) }
    }
}

/// Eight groups of four codes of 16 rows.
type Codes<S> = [<S as Lanes>::I; 8];

#[inline(always)]
unsafe fn nibbles<S: Lanes>(planes: *const u8) -> Codes<S> {
    // SAFETY: 256 bytes at planes.
    unsafe {
        let mask = S::splat_int(0x0f0f_0f0f);
        let mut q = [mask; 8];
        for j in 0..4 {
            let line = S::load_int(planes.add(64 * j));
            q[j] = S::and(line, mask);
            q[j + 4] = S::and(S::shr::<4>(line), mask);
        }
        q
    }
}

/// A bit plane's bit g of each byte, at bit `AT`, added to group g.
#[inline(always)]
unsafe fn with_bits<S: Lanes, const AT: u32>(q: Codes<S>, plane: *const u8) -> Codes<S> {
    // SAFETY: 64 bytes at plane.
    unsafe {
        let line = S::load_int(plane);
        let mask = S::splat_int(0x0101_0101 << AT);
        let [q0, q1, q2, q3, q4, q5, q6, q7] = q;
        // Bit g has to move from g to AT.
        if AT == 4 {
            [
                S::or(q0, S::and(S::shl::<4>(line), mask)),
                S::or(q1, S::and(S::shl::<3>(line), mask)),
                S::or(q2, S::and(S::shl::<2>(line), mask)),
                S::or(q3, S::and(S::shl::<1>(line), mask)),
                S::or(q4, S::and(line, mask)),
                S::or(q5, S::and(S::shr::<1>(line), mask)),
                S::or(q6, S::and(S::shr::<2>(line), mask)),
                S::or(q7, S::and(S::shr::<3>(line), mask)),
            ]
        } else {
            const { assert!(AT == 4 || AT == 2) };
            [
                S::or(q0, S::and(S::shl::<2>(line), mask)),
                S::or(q1, S::and(S::shl::<1>(line), mask)),
                S::or(q2, S::and(line, mask)),
                S::or(q3, S::and(S::shr::<1>(line), mask)),
                S::or(q4, S::and(S::shr::<2>(line), mask)),
                S::or(q5, S::and(S::shr::<3>(line), mask)),
                S::or(q6, S::and(S::shr::<4>(line), mask)),
                S::or(q7, S::and(S::shr::<5>(line), mask)),
            ]
        }
    }
}

/// A pair plane's codes at bits 0 and 1.
#[inline(always)]
unsafe fn pairs<S: Lanes>(plane: *const u8) -> Codes<S> {
    // SAFETY: 128 bytes at plane.
    unsafe {
        let mask = S::splat_int(0x0303_0303);
        let (a, b) = (S::load_int(plane), S::load_int(plane.add(64)));
        [
            S::and(a, mask),
            S::and(S::shr::<2>(a), mask),
            S::and(S::shr::<4>(a), mask),
            S::and(S::shr::<6>(a), mask),
            S::and(b, mask),
            S::and(S::shr::<2>(b), mask),
            S::and(S::shr::<4>(b), mask),
            S::and(S::shr::<6>(b), mask),
        ]
    }
}

/// A pair plane's codes at bits 4 and 5, added to nibbles.
#[inline(always)]
unsafe fn nibbles_with_pairs<S: Lanes>(planes: *const u8) -> Codes<S> {
    // SAFETY: 256 + 128 bytes at planes.
    unsafe {
        let mask = S::splat_int(0x3030_3030);
        let [q0, q1, q2, q3, q4, q5, q6, q7] = nibbles::<S>(planes);
        let (a, b) = (S::load_int(planes.add(256)), S::load_int(planes.add(320)));
        [
            S::or(q0, S::and(S::shl::<4>(a), mask)),
            S::or(q1, S::and(S::shl::<2>(a), mask)),
            S::or(q2, S::and(a, mask)),
            S::or(q3, S::and(S::shr::<2>(a), mask)),
            S::or(q4, S::and(S::shl::<4>(b), mask)),
            S::or(q5, S::and(S::shl::<2>(b), mask)),
            S::or(q6, S::and(b, mask)),
            S::or(q7, S::and(S::shr::<2>(b), mask)),
        ]
    }
}

#[inline(always)]
unsafe fn bytes<S: Lanes>(planes: *const u8) -> Codes<S> {
    // SAFETY: 512 bytes at planes.
    unsafe {
        let mut q = [S::splat_int(0); 8];
        for (g, q) in q.iter_mut().enumerate() {
            *q = S::load_int(planes.add(64 * g));
        }
        q
    }
}

#[inline(always)]
unsafe fn looked_up<S: Lanes>(q: Codes<S>) -> Codes<S> {
    // SAFETY: the table is 16 bytes and nibbles index it.
    unsafe {
        let mut v = q;
        for v in &mut v {
            *v = S::look_up(&IQ4_VALUES, *v);
        }
        v
    }
}

/// Sub-block j's pair of six-bit numbers per row, from their planes.
#[inline(always)]
unsafe fn six_bit_pair<S: Lanes>(planes: *const u8, j: usize) -> (S::I, S::I) {
    // SAFETY: 192 bytes at planes.
    unsafe {
        let low = S::widen_u8(planes.add(16 * j));
        let both = S::widen_u8(planes.add(128 + 16 * (j % 4)));
        let high = if j < 4 { both } else { S::shr::<4>(both) };
        let (nibble, two) = (S::splat_int(15), S::splat_int(3));
        let a = S::or(S::and(low, nibble), S::shl::<4>(S::and(high, two)));
        let b = S::or(S::shr::<4>(low), S::shl::<4>(S::and(S::shr::<2>(high), two)));
        (a, b)
    }
}

#[inline(always)]
unsafe fn splat_pair<S: Lanes>(pair: [i16; 2]) -> S::I {
    // SAFETY: no memory is touched.
    unsafe { S::splat_int((pair[0] as u16 as u32 | (pair[1] as u16 as u32) << 16) as i32) }
}

/// acc = fma(f32(i), d·s, acc).
#[inline(always)]
unsafe fn scaled_term<S: Lanes>(i: S::I, d: S::F, x: *const XBlock, acc: S::F) -> S::F {
    // SAFETY: x is valid for one block.
    unsafe { S::fma(S::to_float(i), S::mul(d, S::splat((*x).scale)), acc) }
}

/// Encodings of the offset form.
macro_rules! offset {
    ($name:ident, $max:literal, $log2_offset:literal, |$planes:ident| $codes:expr) => {
        pub(crate) struct $name;
        impl Encoded for $name {
            const ENCODING: Encoding = Encoding::$name;
            type W<S: Lanes> = (Codes<S>, S::F);
            #[inline(always)]
            unsafe fn load<S: Lanes>(head: *const u8, $planes: *const u8, _j: usize) -> Self::W<S> {
                // SAFETY: the trait's contract.
                unsafe { ($codes, S::load_f16(head.cast())) }
            }
            type Dots<S: Lanes> = S::I;
            #[inline(always)]
            unsafe fn dots<S: Lanes>((q, _): &Self::W<S>, x: *const XBlock) -> S::I {
                // SAFETY: the trait's contract.
                unsafe {
                    let offset = S::shl::<$log2_offset>(S::splat_int((*x).neg_sum));
                    S::dot::<$max>(q, (*x).codes.as_ptr(), offset)
                }
            }
            #[inline(always)]
            unsafe fn dots_pair<S: Lanes>(
                (one, _): &Self::W<S>,
                (two, _): &Self::W<S>,
                x: *const XBlock,
            ) -> [S::I; 2] {
                // SAFETY: the trait's contract.
                unsafe {
                    let offset = S::shl::<$log2_offset>(S::splat_int((*x).neg_sum));
                    S::dot_pair::<$max>(one, two, (*x).codes.as_ptr(), offset)
                }
            }
            #[inline(always)]
            unsafe fn add<S: Lanes>((_, d): &Self::W<S>, i: S::I, x: *const XBlock, acc: S::F) -> S::F {
                // SAFETY: the trait's contract.
                unsafe { scaled_term::<S>(i, *d, x, acc) }
            }
        }
    };
}
offset!(Q4_0, 15, 3, |planes| nibbles::<S>(planes));
offset!(Q5_0, 31, 4, |planes| with_bits::<S, 4>(nibbles::<S>(planes), planes.add(256)));

/// Encodings of the minimum form.
macro_rules! minimum {
    ($name:ident, $max:literal, |$planes:ident| $codes:expr, |$head:ident, $j:ident| $scales:expr) => {
        pub(crate) struct $name;
        impl Encoded for $name {
            const ENCODING: Encoding = Encoding::$name;
            type W<S: Lanes> = (Codes<S>, S::F, S::F);
            #[inline(always)]
            unsafe fn load<S: Lanes>($head: *const u8, $planes: *const u8, $j: usize) -> Self::W<S> {
                // SAFETY: the trait's contract.
                unsafe {
                    let (d, m) = $scales;
                    ($codes, d, m)
                }
            }
            type Dots<S: Lanes> = S::I;
            #[inline(always)]
            unsafe fn dots<S: Lanes>((q, ..): &Self::W<S>, x: *const XBlock) -> S::I {
                // SAFETY: the trait's contract.
                unsafe { S::dot::<$max>(q, (*x).codes.as_ptr(), S::splat_int(0)) }
            }
            #[inline(always)]
            unsafe fn dots_pair<S: Lanes>(
                (one, ..): &Self::W<S>,
                (two, ..): &Self::W<S>,
                x: *const XBlock,
            ) -> [S::I; 2] {
                // SAFETY: the trait's contract.
                unsafe { S::dot_pair::<$max>(one, two, (*x).codes.as_ptr(), S::splat_int(0)) }
            }
            #[inline(always)]
            unsafe fn add<S: Lanes>((_, d, m): &Self::W<S>, i: S::I, x: *const XBlock, acc: S::F) -> S::F {
                // SAFETY: the trait's contract.
                unsafe {
                    let acc = scaled_term::<S>(i, *d, x, acc);
                    S::fma(*m, S::splat((*x).scaled_sum), acc)
                }
            }
        }
    };
}

/// The f16 scale and minimum of a row.
#[inline(always)]
unsafe fn scale_and_min<S: Lanes>(head: *const u8) -> (S::F, S::F) {
    // SAFETY: 64 bytes at head.
    unsafe { (S::load_f16(head.cast()), S::load_f16(head.add(32).cast())) }
}

/// Q4_K's and Q5_K's scale d·sc and minimum −(d_min·m) of sub-block j.
#[inline(always)]
unsafe fn k_scale_and_min<S: Lanes>(head: *const u8, j: usize) -> (S::F, S::F) {
    // SAFETY: 256 bytes at head.
    unsafe {
        let (d, d_min) = scale_and_min::<S>(head);
        let (scale, min) = six_bit_pair::<S>(head.add(64), j);
        let m = S::to_float(S::sub_int(S::splat_int(0), min));
        (S::mul(d, S::to_float(scale)), S::mul(d_min, m))
    }
}

minimum!(Q4_1, 15, |planes| nibbles::<S>(planes), |head, _j| scale_and_min::<S>(head));
minimum!(Q5_1, 31, |planes| with_bits::<S, 4>(nibbles::<S>(planes), planes.add(256)), |head, _j| {
    scale_and_min::<S>(head)
});
minimum!(Q4_K, 15, |planes| nibbles::<S>(planes), |head, j| k_scale_and_min::<S>(head, j));
minimum!(Q5_K, 31, |planes| with_bits::<S, 4>(nibbles::<S>(planes), planes.add(256)), |head, j| {
    k_scale_and_min::<S>(head, j)
});

/// Encodings of the bytes form.
macro_rules! signed_bytes {
    ($name:ident, |$planes:ident| $codes:expr, |$head:ident, $j:ident| $scale:expr) => {
        pub(crate) struct $name;
        impl Encoded for $name {
            const ENCODING: Encoding = Encoding::$name;
            type W<S: Lanes> = (S::Bytes, S::F);
            #[inline(always)]
            unsafe fn load<S: Lanes>($head: *const u8, $planes: *const u8, $j: usize) -> Self::W<S> {
                // SAFETY: the trait's contract.
                unsafe { (S::prepare_bytes(&$codes), $scale) }
            }
            type Dots<S: Lanes> = S::I;
            #[inline(always)]
            unsafe fn dots<S: Lanes>((q, _): &Self::W<S>, x: *const XBlock) -> S::I {
                // SAFETY: the trait's contract.
                unsafe { S::dot_bytes(q, (*x).codes.as_ptr(), S::splat_int((*x).neg_sum)) }
            }
            #[inline(always)]
            unsafe fn add<S: Lanes>((_, d): &Self::W<S>, i: S::I, x: *const XBlock, acc: S::F) -> S::F {
                // SAFETY: the trait's contract.
                unsafe { scaled_term::<S>(i, *d, x, acc) }
            }
        }
    };
}
signed_bytes!(Q8_0, |planes| bytes::<S>(planes), |head, _j| S::load_f16(head.cast()));
signed_bytes!(IQ4_NL, |planes| looked_up::<S>(nibbles::<S>(planes)), |head, _j| S::load_f16(head.cast()));
signed_bytes!(IQ4_XS, |planes| looked_up::<S>(nibbles::<S>(planes)), |head, j| {
    let low = S::widen_u8(head.add(32 + 16 * (j % 4)));
    let low = if j < 4 { S::and(low, S::splat_int(15)) } else { S::shr::<4>(low) };
    let high = S::widen_u8(head.add(96 + 16 * (j % 2)));
    let high = match j / 2 {
        0 => high,
        1 => S::shr::<2>(high),
        2 => S::shr::<4>(high),
        _ => S::shr::<6>(high),
    };
    let scale = S::or(low, S::shl::<4>(S::and(high, S::splat_int(3))));
    S::mul(S::load_f16(head.cast()), S::to_float(S::sub_int(scale, S::splat_int(32))))
});

/// Encodings of the halves form.
macro_rules! halves {
    ($name:ident, $max:literal, $log2_offset:literal, |$planes:ident| $codes:expr, |$head:ident, $j:ident| $scales:expr) => {
        pub(crate) struct $name;
        impl Encoded for $name {
            const ENCODING: Encoding = Encoding::$name;
            /// Codes, 16-bit pairs of sub-scales, scale.
            type W<S: Lanes> = (Codes<S>, S::I, S::F);
            #[inline(always)]
            unsafe fn load<S: Lanes>($head: *const u8, $planes: *const u8, $j: usize) -> Self::W<S> {
                // SAFETY: the trait's contract.
                unsafe { ($codes, $scales, S::load_f16($head.cast())) }
            }
            type Dots<S: Lanes> = S::I;
            #[inline(always)]
            unsafe fn dots<S: Lanes>((q, a, _): &Self::W<S>, x: *const XBlock) -> S::I {
                // SAFETY: the trait's contract.
                unsafe {
                    let i = S::dot_halves::<$max>(q, (*x).codes.as_ptr(), *a);
                    let offset = S::mul_pairs(*a, splat_pair::<S>((*x).half_sums));
                    S::sub_int(i, S::shl::<$log2_offset>(offset))
                }
            }
            #[inline(always)]
            unsafe fn dots_pair<S: Lanes>(
                (one, a, _): &Self::W<S>,
                (two, b, _): &Self::W<S>,
                x: *const XBlock,
            ) -> [S::I; 2] {
                // SAFETY: the trait's contract.
                unsafe {
                    let [i, j] = S::dot_halves_pair::<$max>(one, two, (*x).codes.as_ptr(), [*a, *b]);
                    let sums = splat_pair::<S>((*x).half_sums);
                    [
                        S::sub_int(i, S::shl::<$log2_offset>(S::mul_pairs(*a, sums))),
                        S::sub_int(j, S::shl::<$log2_offset>(S::mul_pairs(*b, sums))),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn add<S: Lanes>((_, _, d): &Self::W<S>, i: S::I, x: *const XBlock, acc: S::F) -> S::F {
                // SAFETY: the trait's contract.
                unsafe { scaled_term::<S>(i, *d, x, acc) }
            }
        }
    };
}
halves!(Q6_K, 63, 5, |planes| nibbles_with_pairs::<S>(planes), |head, j| {
    S::widen_i8_pairs(head.add(32 + 32 * j))
});
halves!(Q3_K, 7, 2, |planes| with_bits::<S, 2>(pairs::<S>(planes), planes.add(128)), |head, j| {
    let (a, b) = six_bit_pair::<S>(head.add(32), j);
    let (a, b) = (S::sub_int(a, S::splat_int(32)), S::sub_int(b, S::splat_int(32)));
    S::or(S::and(a, S::splat_int(0xffff)), S::shl::<16>(b))
});

/// The halves form with minima.
pub(crate) struct Q2_K;

impl Encoded for Q2_K {
    const ENCODING: Encoding = Encoding::Q2_K;
    /// Codes, pairs of sub-scales, pairs of sub-minima, scale, −scale of the minima.
    type W<S: Lanes> = (Codes<S>, S::I, S::I, S::F, S::F);
    #[inline(always)]
    unsafe fn load<S: Lanes>(head: *const u8, planes: *const u8, j: usize) -> Self::W<S> {
        // SAFETY: the trait's contract.
        unsafe {
            let both = S::widen_i8_pairs(head.add(64 + 32 * j));
            let nibble = S::splat_int(0x000f_000f);
            let (d, d_min) = scale_and_min::<S>(head);
            let neg = S::sub(S::splat(0.0), d_min);
            (pairs::<S>(planes), S::and(both, nibble), S::and(S::shr::<4>(both), nibble), d, neg)
        }
    }
    /// Of the codes and of the minima.
    type Dots<S: Lanes> = (S::I, S::I);
    #[inline(always)]
    unsafe fn dots<S: Lanes>((q, a, b, ..): &Self::W<S>, x: *const XBlock) -> (S::I, S::I) {
        // SAFETY: the trait's contract.
        unsafe {
            let minima = S::mul_pairs(*b, splat_pair::<S>((*x).half_sums));
            (S::dot_halves::<3>(q, (*x).codes.as_ptr(), *a), minima)
        }
    }
    #[inline(always)]
    unsafe fn add<S: Lanes>(w: &Self::W<S>, (i, m): (S::I, S::I), x: *const XBlock, acc: S::F) -> S::F {
        // SAFETY: the trait's contract.
        unsafe { scaled_term::<S>(m, w.4, x, scaled_term::<S>(i, w.3, x, acc)) }
    }
}
