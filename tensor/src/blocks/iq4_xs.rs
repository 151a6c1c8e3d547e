//! IQ4_XS: 8 groups of 32 codes into IQ4_NL's table; each group has a 6-bit scale around 32 under one f16 scale.
//! x = (d·(s − 32))·table\[q\].

use bytemuck::{Pod, Zeroable};

use super::{Block, IQ4_VALUES, half};
use crate::Encoding;

/// 256 values in 136 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// f16 scale of the scales.
    pub d: [u8; 2],
    /// Bits 2g and 2g+1 of this little-endian word are the upper bits of group g's scale.
    pub scales_h: [u8; 2],
    /// Nibble g, low nibbles first, holds the lower bits of group g's scale.
    pub scales_l: [u8; 4],
    /// 16 bytes per group: low nibbles are its values 0–15, high nibbles its values 16–31.
    pub qs: [u8; 128],
}

impl BlockIq4Xs {
    /// The 8 group scales, −32 to 31.
    pub fn group_scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|group| {
            let low = self.scales_l[group / 2] >> (group % 2 * 4) & 15;
            (low | ((high >> (2 * group) & 3) as u8) << 4) as i8 - 32
        })
    }
}

impl Block for BlockIq4Xs {
    const ENCODING: Encoding = Encoding::IQ4_XS;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256);
        let d = half(self.d);
        let scales = self.group_scales();
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let scale = d * f32::from(scales[group]);
            for (i, &q) in self.qs[group * 16..][..16].iter().enumerate() {
                out[i] = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
                out[i + 16] = scale * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
            }
        }
    }
}
