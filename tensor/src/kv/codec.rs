//! The reference codec of packed keys and values: what every device's quantising kernel must give, bit for bit.
//!
//! Group quantisation after KIVI (arXiv 2402.02750), computed in f32 from the halves that the cache holds:
//!
//! ```text
//! zero  = f16(min)                          −0 becomes +0
//! scale = f16(max((max − min)/(2^b − 1), 2⁻²⁴))
//! code  = clip(round_half_even((x − zero)/scale), 0, 2^b − 1)
//! value = code·scale rounded, + zero rounded
//! ```
//!
//! A group that holds a NaN or an infinity gets scale and zero NaN and codes 0, so that a broken model reaches the
//! logits as NaN.
//!
//! Codes lie in units of 32, `4·b` bytes, in planes of 8, 4, 2 and 1 bits, the high planes last: 8 = 8, 6 = 4 + 2,
//! 5 = 4 + 1, 4 = 4, 3 = 2 + 1, 2 = 2.
//!
//! ```text
//! plane of 8: byte i is code i                     plane of 2: two u32; code i is bits 2(i mod 16) of word i / 16
//! plane of 4: byte i is code i, code i + 16 above  plane of 1: one u32; code i is bit i
//! ```

use half::f16;

use super::{BLOCK_POSITIONS, Bits, GROUP_POSITIONS, Side, SideKind};

/// Codes of one unit.
pub const UNIT: usize = 32;

/// Scale of a group whose members are all equal: 2⁻²⁴, the least positive half.
pub const LEAST_SCALE: f32 = 5.960_464_5e-8;

/// Bytes of a unit.
pub const fn unit_bytes(bits: Bits) -> usize {
    UNIT / 8 * bits.get() as usize
}

/// Planes of a code, low bits first, with their widths.
pub fn planes(bits: Bits) -> &'static [u32] {
    match bits.get() {
        8 => &[8],
        6 => &[4, 2],
        5 => &[4, 1],
        4 => &[4],
        3 => &[2, 1],
        _ => &[2],
    }
}

/// Scale and zero of a group, as stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Difference between two codes.
    pub scale: f16,
    /// Value of code 0.
    pub zero: f16,
}

impl Levels {
    /// What a code stands for.
    pub fn value(&self, code: u8) -> f32 {
        code as f32 * self.scale.to_f32() + self.zero.to_f32()
    }
}

/// Quantises up to 32 members of one group into `codes`.
pub fn quantise(bits: Bits, members: &[f32], codes: &mut [u8]) -> Levels {
    assert!(!members.is_empty() && members.len() == codes.len() && members.len() <= UNIT, "a group");
    codes.fill(0);
    if members.iter().any(|x| !x.is_finite()) {
        return Levels { scale: f16::NAN, zero: f16::NAN };
    }
    let least = members.iter().copied().fold(f32::INFINITY, f32::min);
    let most = members.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = bits.largest() as f32;
    let scale = f16::from_f32(((most - least) / largest).max(LEAST_SCALE));
    let zero = f16::from_f32(least + 0.0);
    for (code, x) in codes.iter_mut().zip(members) {
        let steps = ((x - zero.to_f32()) / scale.to_f32()).round_ties_even();
        *code = steps.clamp(0.0, largest) as u8;
    }
    Levels { scale, zero }
}

/// Packs 32 codes into `unit_bytes` bytes.
pub fn pack(bits: Bits, codes: &[u8; UNIT], out: &mut [u8]) {
    assert_eq!(out.len(), unit_bytes(bits), "a unit");
    out.fill(0);
    let (mut below, mut at) = (0, 0);
    for &width in planes(bits) {
        let mask = ((1u32 << width) - 1) as u8;
        let plane = &mut out[at..at + UNIT / 8 * width as usize];
        for (i, code) in codes.iter().enumerate() {
            let part = (code >> below) & mask;
            let (byte, shift) = place(width, i);
            plane[byte] |= part << shift;
        }
        below += width;
        at += plane.len();
    }
}

/// Unpacks a unit.
pub fn unpack(bits: Bits, unit: &[u8]) -> [u8; UNIT] {
    assert_eq!(unit.len(), unit_bytes(bits), "a unit");
    let mut codes = [0; UNIT];
    let (mut below, mut at) = (0, 0);
    for &width in planes(bits) {
        let mask = ((1u32 << width) - 1) as u8;
        let plane = &unit[at..at + UNIT / 8 * width as usize];
        for (i, code) in codes.iter_mut().enumerate() {
            let (byte, shift) = place(width, i);
            *code |= ((plane[byte] >> shift) & mask) << below;
        }
        below += width;
        at += plane.len();
    }
    codes
}

/// Byte and bit of code i in a plane.
fn place(width: u32, i: usize) -> (usize, u32) {
    match width {
        8 => (i, 0),
        4 => (i % 16, 4 * (i as u32 / 16)),
        _ => (i * width as usize / 8, (i as u32 * width) % 8),
    }
}

/// Packs one group of one head: half 0 or 1 of a block's halves, into `side.group_bytes(bits)` bytes.
///
/// Of keys, the first `sinks` slots of the group belong to it no more and take the value of the next slot that does; a
/// group of sinks only is packed as zeros. Values are grouped by position, so no sink shares a group with another
/// token.
pub fn pack_group(side: &Side, bits: Bits, halves: &[u16], half: usize, sinks: usize, out: &mut [u8]) {
    assert_eq!(halves.len(), side.dim * BLOCK_POSITIONS, "one head's halves");
    assert_eq!(out.len(), side.group_bytes(bits), "one group");
    let (units, levels) = out.split_at_mut(side.codes_bytes(bits));
    let (scales, zeros) = levels.split_at_mut(side.levels_bytes());
    let mut note = |i: usize, l: Levels| {
        scales[2 * i..2 * i + 2].copy_from_slice(&l.scale.to_le_bytes());
        zeros[2 * i..2 * i + 2].copy_from_slice(&l.zero.to_le_bytes());
    };
    let units = &mut units.chunks_exact_mut(unit_bytes(bits));
    let value = |i: usize| f16::from_bits(halves[i]).to_f32();
    let mut codes = [0; UNIT];
    match side.kind {
        SideKind::Keys => {
            for (ch, unit) in units.enumerate() {
                let at = ch * BLOCK_POSITIONS + half * GROUP_POSITIONS;
                let slot = |i: usize| if sinks < GROUP_POSITIONS { value(at + i.max(sinks)) } else { 0.0 };
                let members: [f32; UNIT] = std::array::from_fn(slot);
                note(ch, quantise(bits, &members, &mut codes));
                pack(bits, &codes, unit);
            }
        }
        SideKind::Values => {
            let whole = side.dim / UNIT;
            let at = |p: usize, ch: usize| (half * GROUP_POSITIONS + p) * side.dim + ch;
            for p in 0..GROUP_POSITIONS {
                for (g, unit) in units.take(whole).enumerate() {
                    let members: [f32; UNIT] = std::array::from_fn(|i| value(at(p, UNIT * g + i)));
                    note(g * GROUP_POSITIONS + p, quantise(bits, &members, &mut codes));
                    pack(bits, &codes, unit);
                }
            }
            let tail = side.dim % UNIT;
            for (pair, unit) in units.enumerate() {
                for (i, codes) in codes.chunks_exact_mut(tail).enumerate() {
                    let p = 2 * pair + i;
                    let members: Vec<f32> = (0..tail).map(|i| value(at(p, UNIT * whole + i))).collect();
                    note(whole * GROUP_POSITIONS + p, quantise(bits, &members, codes));
                }
                pack(bits, &codes, unit);
            }
        }
    }
}

/// What a packed group of one head stands for: of keys `[dim][32]`, of values `[32][dim]`.
pub fn unpack_group(side: &Side, bits: Bits, group: &[u8]) -> Vec<f32> {
    assert_eq!(group.len(), side.group_bytes(bits), "one group");
    let (units, levels) = group.split_at(side.codes_bytes(bits));
    let (scales, zeros) = levels.split_at(side.levels_bytes());
    let half = |bytes: &[u8], i: usize| f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    let levels = |i: usize| Levels { scale: half(scales, i), zero: half(zeros, i) };
    let unit = |i: usize| unpack(bits, &units[i * unit_bytes(bits)..][..unit_bytes(bits)]);
    let mut out = vec![0.0; side.dim * GROUP_POSITIONS];
    match side.kind {
        SideKind::Keys => {
            for ch in 0..side.dim {
                let values = unit(ch).map(|code| levels(ch).value(code));
                out[ch * GROUP_POSITIONS..][..UNIT].copy_from_slice(&values);
            }
        }
        SideKind::Values => {
            let (whole, tail) = (side.dim / UNIT, side.dim % UNIT);
            for (i, out) in out.iter_mut().enumerate() {
                let (p, ch) = (i / side.dim, i % side.dim);
                let code = if ch < UNIT * whole {
                    unit(p * whole + ch / UNIT)[ch % UNIT]
                } else {
                    unit(GROUP_POSITIONS * whole + p / 2)[p % 2 * tail + ch % UNIT]
                };
                *out = levels(ch / UNIT * GROUP_POSITIONS + p).value(code);
            }
        }
    }
    out
}
