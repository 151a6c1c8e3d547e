//! Q2_K: 16 groups of 16 unsigned 2-bit codes; each group has a 4-bit scale and a 4-bit minimum under two f16 scales.
//! x = (d·s)·q − dmin·m, rounded after each operation.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 256 values in 84 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// Per group: scale in the low nibble, minimum in the high.
    pub scales: [u8; 16],
    /// Two runs of 32 bytes; bits 2k and 2k+1 of run r's bytes are values 128r + 32k to 128r + 32k + 31.
    pub qs: [u8; 64],
    /// f16 scale of the scales.
    pub d: [u8; 2],
    /// f16 scale of the minima.
    pub dmin: [u8; 2],
}

impl Block for BlockQ2K {
    const ENCODING: Encoding = Encoding::Q2_K;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256);
        let (d, dmin) = (half(self.d), half(self.dmin));
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[group] & 15);
            let min = dmin * f32::from(self.scales[group] >> 4);
            let (run, k, start) = (group / 8, group / 2 % 4, group % 2 * 16);
            for (out, q) in out.iter_mut().zip(&self.qs[32 * run + start..]) {
                *out = scale * f32::from(q >> (2 * k) & 3) - min;
            }
        }
    }
}
