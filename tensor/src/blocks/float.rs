//! F32, F16 and BF16: a block is one value.

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// One single-precision value, little endian.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockF32 {
    /// The value.
    pub x: [u8; 4],
}

/// One half-precision value, little endian.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockF16 {
    /// The value.
    pub x: [u8; 2],
}

/// The upper half of a single-precision value, little endian.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockBf16 {
    /// The value.
    pub x: [u8; 2],
}

impl Block for BlockF32 {
    const ENCODING: Encoding = Encoding::F32;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 1);
        out[0] = f32::from_le_bytes(self.x);
    }
}

impl Block for BlockF16 {
    const ENCODING: Encoding = Encoding::F16;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 1);
        out[0] = half(self.x);
    }
}

impl Block for BlockBf16 {
    const ENCODING: Encoding = Encoding::BF16;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 1);
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes(self.x)) << 16);
    }
}
