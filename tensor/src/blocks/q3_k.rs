//! Q3_K: 16 groups of 16 signed 3-bit codes; each group has a 6-bit scale around 32 under one f16 scale.
//! x = (d·(s − 32))·(q − 4), where q's third bit lies apart.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 256 values in 110 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit k of byte i is the third bit of value 32k + i.
    pub hmask: [u8; 32],
    /// Two runs of 32 bytes; bits 2k and 2k+1 of run r's bytes are values 128r + 32k to 128r + 32k + 31.
    pub qs: [u8; 64],
    /// Low 4 bits of scales 0–7 (low nibbles of bytes 0–7) and 8–15 (high nibbles); bytes 8–11 hold the upper 2 bits:
    /// bits 2k and 2k+1 of byte 8 + i belong to scale 4k + i.
    pub scales: [u8; 12],
    /// f16 scale of the scales.
    pub d: [u8; 2],
}

impl BlockQ3K {
    /// The 16 group scales, −32 to 31.
    pub fn group_scales(&self) -> [i8; 16] {
        std::array::from_fn(|group| {
            let low = self.scales[group % 8] >> (group / 8 * 4) & 15;
            let high = self.scales[8 + group % 4] >> (group / 4 * 2) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Block for BlockQ3K {
    const ENCODING: Encoding = Encoding::Q3_K;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 256);
        let d = half(self.d);
        let scales = self.group_scales();
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(scales[group]);
            let (run, k, start) = (group / 8, group / 2 % 4, group % 2 * 16);
            for (i, out) in out.iter_mut().enumerate() {
                let low = self.qs[32 * run + start + i] >> (2 * k) & 3;
                let high = self.hmask[start + i] >> (group / 2) & 1;
                *out = scale * f32::from((low | high << 2) as i8 - 4);
            }
        }
    }
}
