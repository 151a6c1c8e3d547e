//! IQ4_NL: 32 codes into a fixed table of 16 values, one scale. x = d·table\[q\].

use bytemuck::{Pod, Zeroable};

use super::{Block, half};
use crate::Encoding;

/// The table of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 values in 18 bytes.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// f16 scale.
    pub d: [u8; 2],
    /// Low nibbles are values 0–15, high nibbles values 16–31.
    pub qs: [u8; 16],
}

impl Block for BlockIq4Nl {
    const ENCODING: Encoding = Encoding::IQ4_NL;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), 32);
        let d = half(self.d);
        for (i, &q) in self.qs.iter().enumerate() {
            out[i] = d * f32::from(IQ4_VALUES[usize::from(q & 15)]);
            out[i + 16] = d * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
        }
    }
}
