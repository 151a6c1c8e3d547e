//! Q5_K: as Q4_K with 5-bit codes, whose fifth bits lie apart. x = (d·s)·q − dmin·m, rounded after each operation.

use bytemuck::{Pod, Zeroable};

use super::{Block, half, q4_k::scales_and_mins};
use crate::Encoding;

/// 256 values in 176 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// f16 scale of the scales.
    pub d: [u8; 2],
    /// f16 scale of the minima.
    pub dmin: [u8; 2],
    /// 6-bit scales and minima, packed as Q4_K's.
    pub scales: [u8; 12],
    /// Bit g of byte i is the fifth bit of value i of group g.
    pub qh: [u8; 32],
    /// Four runs of 32 bytes: low nibbles are group 2r, high nibbles group 2r + 1.
    pub qs: [u8; 128],
}

impl Block for BlockQ5K {
    const ENCODING: Encoding = Encoding::Q5_K;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256);
        let (d, dmin) = (half(self.d), half(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let scale = d * f32::from(scales[group]);
            let min = dmin * f32::from(mins[group]);
            for (i, out) in out.iter_mut().enumerate() {
                let low = self.qs[group / 2 * 32 + i] >> (group % 2 * 4) & 15;
                let high = self.qh[i] >> group & 1;
                *out = scale * f32::from(low | high << 4) - min;
            }
        }
    }
}
