//! Q4_0: 32 unsigned 4-bit codes around 8, one scale. x = d·(q − 8).

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 32 values in 18 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// f16 scale.
    pub d: [u8; 2],
    /// Low nibbles are values 0–15, high nibbles values 16–31.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_0 {
    const ENCODING: Encoding = Encoding::Q4_0;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32);
        let d = half(self.d);
        for (i, &q) in self.qs.iter().enumerate() {
            out[i] = d * (i32::from(q & 15) - 8) as f32;
            out[i + 16] = d * (i32::from(q >> 4) - 8) as f32;
        }
    }
}
