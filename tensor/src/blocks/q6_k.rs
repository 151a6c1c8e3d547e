//! Q6_K: 16 groups of 16 signed 6-bit codes; each group has a signed 8-bit scale under one f16 scale.
//! x = (d·s)·(q − 32), where q's two upper bits lie apart.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 256 values in 210 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// Two runs of 64 bytes: low nibbles are values 128r to 128r + 63, high nibbles the next 64.
    pub ql: [u8; 128],
    /// Two runs of 32 bytes: bits 2k and 2k+1 are the upper bits of values 128r + 32k to 128r + 32k + 31.
    pub qh: [u8; 64],
    /// One scale per group.
    pub scales: [i8; 16],
    /// f16 scale of the scales.
    pub d: [u8; 2],
}

impl Block for BlockQ6K {
    const ENCODING: Encoding = Encoding::Q6_K;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256);
        let d = half(self.d);
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[group]);
            let run = group / 8;
            for (i, out) in out.iter_mut().enumerate() {
                let at = group % 8 * 16 + i; // within the run of 128 values
                let low = self.ql[64 * run + at % 64] >> (at / 64 * 4) & 15;
                let high = self.qh[32 * run + at % 32] >> (at / 32 * 2) & 3;
                *out = scale * f32::from((low | high << 4) as i8 - 32);
            }
        }
    }
}
