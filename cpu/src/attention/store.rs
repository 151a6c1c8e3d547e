//! What is done to keys and values on their way into the cache: the rotation, and the packing of groups.
//!
//! `tensor::kv` defines both; these give the same bits.

use super::TILE;
use crate::lanes::Lanes;
use crate::math;
use tensor::kv::codec::{LEAST_SCALE, planes};
use tensor::kv::{Bits, GROUP_POSITIONS as GROUP, Side, SideKind, codec, rotation};

/// Heads to rotate in place, or back.
#[derive(Clone, Copy)]
pub(crate) struct RotateArgs {
    pub(crate) x: *mut f32,
    /// 1 or −1 per channel.
    pub(crate) signs: *const f32,
    pub(crate) dim: usize,
    pub(crate) back: bool,
}

/// # Safety
/// As [`Lanes`]; x and signs hold `dim` elements.
#[inline(always)]
pub(crate) unsafe fn rotate<S: Lanes>(a: RotateArgs) {
    // SAFETY: the caller's contract.
    let (x, signs) =
        unsafe { (std::slice::from_raw_parts_mut(a.x, a.dim), std::slice::from_raw_parts(a.signs, a.dim)) };
    if a.back {
        rotation::rotate_back(x, signs);
    } else {
        rotation::rotate(x, signs);
    }
}

/// One group of one head to pack.
#[derive(Clone, Copy)]
pub(crate) struct PackArgs {
    pub(crate) side: Side,
    pub(crate) bits: Bits,
    /// The block's halves of the head: f16 keys `[dim][64]`, values `[64][dim]`.
    pub(crate) halves: *const u16,
    /// Half of the block.
    pub(crate) half: usize,
    /// First positions of the group that are sinks.
    pub(crate) sinks: usize,
    /// [`Side::group_bytes`].
    pub(crate) out: *mut u8,
}

/// # Safety
/// As [`Lanes`]; pointers hold what [`PackArgs`] says; dim is a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn pack<S: Lanes>(a: PackArgs) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (dim, unit) = (a.side.dim, codec::unit_bytes(a.bits));
        let scales = a.out.add(a.side.codes_bytes(a.bits)).cast::<u16>();
        let zeros = scales.add(a.side.levels_bytes() / 2);
        match a.side.kind {
            SideKind::Keys => {
                for ch in 0..dim {
                    let from = a.halves.add(ch * TILE + a.half * GROUP);
                    let mut v = [S::load_f16(from), S::load_f16(from.add(16))];
                    if a.sinks > 0 {
                        v = without_sinks::<S>(v, a.sinks);
                    }
                    let levels = (scales.add(ch), zeros.add(ch));
                    let codes = quantise::<S>(a.bits, v, levels);
                    put::<S>(a.bits, codes, a.out.add(ch * unit));
                }
            }
            SideKind::Values => {
                let whole = dim / codec::UNIT;
                for p in 0..GROUP {
                    let from = a.halves.add((a.half * GROUP + p) * dim);
                    for g in 0..whole {
                        let from = from.add(codec::UNIT * g);
                        let v = [S::load_f16(from), S::load_f16(from.add(16))];
                        let levels = (scales.add(g * GROUP + p), zeros.add(g * GROUP + p));
                        let codes = quantise::<S>(a.bits, v, levels);
                        put::<S>(a.bits, codes, a.out.add((p * whole + g) * unit));
                    }
                }
                if !dim.is_multiple_of(codec::UNIT) {
                    for p in (0..GROUP).step_by(2) {
                        let mut both = [S::splat_int(0); 2];
                        for (i, codes) in both.iter_mut().enumerate() {
                            let from = a.halves.add((a.half * GROUP + p + i) * dim + codec::UNIT * whole);
                            let v = S::load_f16(from);
                            let at = whole * GROUP + p + i;
                            *codes = quantise::<S>(a.bits, [v, v], (scales.add(at), zeros.add(at)))[0];
                        }
                        put::<S>(a.bits, both, a.out.add((GROUP * whole + p / 2) * unit));
                    }
                }
            }
        }
    }
}

/// The members with the first slots replaced by the first that belongs to the group, or zeros where none does.
#[inline(always)]
unsafe fn without_sinks<S: Lanes>(v: [S::F; 2], sinks: usize) -> [S::F; 2] {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut members = [0.0f32; GROUP];
        S::store(members.as_mut_ptr(), v[0]);
        S::store(members.as_mut_ptr().add(16), v[1]);
        let first = members.get(sinks).copied().unwrap_or(0.0);
        members[..sinks.min(GROUP)].fill(first);
        [S::load(members.as_ptr()), S::load(members.as_ptr().add(16))]
    }
}

/// Codes of up to 32 members, and their levels.
#[inline(always)]
unsafe fn quantise<S: Lanes>(bits: Bits, v: [S::F; 2], levels: (*mut u16, *mut u16)) -> [S::I; 2] {
    // SAFETY: as the caller vouches.
    unsafe {
        // As integers, magnitudes are ordered with NaN above infinity above all numbers.
        let magnitudes = S::max_int(S::float_to_bits(S::abs(v[0])), S::float_to_bits(S::abs(v[1])));
        let mut lanes = [0i32; 16];
        S::store_int(lanes.as_mut_ptr(), magnitudes);
        let most = f32::from_bits(lanes.iter().fold(0, |m, &x| m.max(x)) as u32);
        let nan = half::f16::NAN.to_bits();
        if !most.is_finite() {
            (*levels.0, *levels.1) = (nan, nan);
            return [S::splat_int(0); 2];
        }
        let least = math::lanes::<S>(S::min(v[0], v[1])).into_iter().fold(f32::INFINITY, f32::min);
        let most = math::lanes::<S>(S::max(v[0], v[1])).into_iter().fold(f32::NEG_INFINITY, f32::max);
        let largest = bits.largest() as f32;
        let scale = half::f16::from_f32(((most - least) / largest).max(LEAST_SCALE));
        let zero = half::f16::from_f32(least + 0.0);
        (*levels.0, *levels.1) = (scale.to_bits(), zero.to_bits());
        let (scale, zero) = (S::splat(scale.to_f32()), S::splat(zero.to_f32()));
        let mut codes = [S::splat_int(0); 2];
        for (code, v) in codes.iter_mut().zip(v) {
            let steps = S::div(S::sub(v, zero), scale);
            *code = S::round_to_int(S::min(S::max(steps, S::splat(0.0)), S::splat(largest)));
        }
        codes
    }
}

/// Packs 32 codes.
#[inline(always)]
unsafe fn put<S: Lanes>(bits: Bits, codes: [S::I; 2], out: *mut u8) {
    // SAFETY: as the caller vouches: `unit_bytes` at out.
    unsafe {
        let mut lanes = [0i32; codec::UNIT];
        S::store_int(lanes.as_mut_ptr(), codes[0]);
        S::store_int(lanes.as_mut_ptr().add(16), codes[1]);
        let (mut below, mut at) = (0, out);
        for &width in planes(bits) {
            let mask = (1 << width) - 1;
            let part = |i: usize| (lanes[i] >> below & mask) as u32;
            match width {
                8 => (0..32).for_each(|i| *at.add(i) = part(i) as u8),
                4 => (0..16).for_each(|i| *at.add(i) = (part(i) | part(i + 16) << 4) as u8),
                2 => {
                    for word in 0..2 {
                        let bits = (0..16).fold(0, |w, i| w | part(16 * word + i) << (2 * i));
                        at.cast::<u32>().add(word).write_unaligned(bits.to_le());
                    }
                }
                _ => {
                    let bits = (0..32).fold(0, |w, i| w | part(i) << i);
                    at.cast::<u32>().write_unaligned(bits.to_le());
                }
            }
            below += width;
            at = at.add(codec::UNIT / 8 * width as usize);
        }
    }
}
