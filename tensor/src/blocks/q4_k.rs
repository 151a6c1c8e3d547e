//! Q4_K: 8 groups of 32 unsigned 4-bit codes; each group has a 6-bit scale and a 6-bit minimum under two f16 scales.
//! x = (d·s)·q − dmin·m, rounded after each operation.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 256 values in 144 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    /// f16 scale of the scales.
    pub d: [u8; 2],
    /// f16 scale of the minima.
    pub dmin: [u8; 2],
    /// 6-bit scales and minima, as [`scales_and_mins`] unpacks them.
    pub scales: [u8; 12],
    /// Four runs of 32 bytes: low nibbles are group 2r, high nibbles group 2r + 1.
    pub qs: [u8; 128],
}

/// The 8 scales and the 8 minima, 0 to 63, that Q4_K and Q5_K pack into 12 bytes.
///
/// Groups 0–3 lie in the low 6 bits of bytes 0–3 (scales) and 4–7 (minima); the two upper bits of those bytes are the
/// upper bits of groups 4–7, whose low 4 bits are the nibbles of bytes 8–11 (scale low, minimum high).
pub fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        mins[i] = packed[4 + i] & 63;
        scales[4 + i] = packed[8 + i] & 15 | packed[i] >> 6 << 4;
        mins[4 + i] = packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
    }
    (scales, mins)
}

impl Block for BlockQ4K {
    const ENCODING: Encoding = Encoding::Q4_K;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256);
        let (d, dmin) = (half(self.d), half(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let scale = d * f32::from(scales[group]);
            let min = dmin * f32::from(mins[group]);
            for (out, q) in out.iter_mut().zip(&self.qs[group / 2 * 32..]) {
                *out = scale * f32::from(q >> (group % 2 * 4) & 15) - min;
            }
        }
    }
}
