//! Q5_0: 32 unsigned 5-bit codes around 16, one scale; the fifth bits lie apart. x = d·(q − 16).

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 32 values in 22 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// f16 scale.
    pub d: [u8; 2],
    /// Bit i of this little-endian word is the fifth bit of value i.
    pub qh: [u8; 4],
    /// Low nibbles are values 0–15, high nibbles values 16–31.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_0 {
    const ENCODING: Encoding = Encoding::Q5_0;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32);
        let d = half(self.d);
        let qh = u32::from_le_bytes(self.qh);
        for (i, &q) in self.qs.iter().enumerate() {
            let low = u32::from(q & 15) | (qh >> i & 1) << 4;
            let high = u32::from(q >> 4) | (qh >> (i + 16) & 1) << 4;
            out[i] = d * (low as i32 - 16) as f32;
            out[i + 16] = d * (high as i32 - 16) as f32;
        }
    }
}
