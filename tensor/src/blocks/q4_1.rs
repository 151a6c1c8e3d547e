//! Q4_1: 32 unsigned 4-bit codes, a scale and an offset. x = d·q + m, rounded after each operation.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 32 values in 20 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// f16 scale.
    pub d: [u8; 2],
    /// f16 offset.
    pub m: [u8; 2],
    /// Low nibbles are values 0–15, high nibbles values 16–31.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_1 {
    const ENCODING: Encoding = Encoding::Q4_1;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32);
        let (d, m) = (half(self.d), half(self.m));
        for (i, &q) in self.qs.iter().enumerate() {
            out[i] = d * f32::from(q & 15) + m;
            out[i + 16] = d * f32::from(q >> 4) + m;
        }
    }
}
