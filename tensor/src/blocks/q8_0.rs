//! Q8_0: 32 signed 8-bit codes, one scale. x = d·q.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// 32 values in 34 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// f16 scale.
    pub d: [u8; 2],
    /// The codes, in order.
    pub qs: [i8; 32],
}

impl Block for BlockQ8_0 {
    const ENCODING: Encoding = Encoding::Q8_0;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32);
        let d = half(self.d);
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = d * f32::from(q);
        }
    }
}
