//! Q5_1: 32 unsigned 5-bit codes, a scale and an offset; the fifth bits lie apart. x = d·q + m, rounded after each
//! operation.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 32 values in 24 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// f16 scale.
    pub d: [u8; 2],
    /// f16 offset.
    pub m: [u8; 2],
    /// Bit i of this little-endian word is the fifth bit of value i.
    pub qh: [u8; 4],
    /// Low nibbles are values 0–15, high nibbles values 16–31.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_1 {
    const ENCODING: Encoding = Encoding::Q5_1;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32);
        let (d, m) = (half(self.d), half(self.m));
        let qh = u32::from_le_bytes(self.qh);
        for (i, &q) in self.qs.iter().enumerate() {
            let low = u32::from(q & 15) | (qh >> i & 1) << 4;
            let high = u32::from(q >> 4) | (qh >> (i + 16) & 1) << 4;
            out[i] = d * low as f32 + m;
            out[i + 16] = d * high as f32 + m;
        }
    }
}
