//! Random tensor data: every block random bits, its scales set so that values are bounded and never NaN.
//!
//! It does not decode anything; where the scales of a block lie is one row of a table. Bits come from SplitMix64
//! (Steele, Lea, Flood 2014), which is a counter, so a tensor's data depend on nothing but seed and tensor.

use half::{bf16, f16};
use tensor::Encoding;

use super::gguf::{Content, TensorInfo};

/// The data of one tensor, front to back.
pub(crate) struct Source<'a> {
    tensor: &'a TensorInfo,
    counter: u64,
    /// Bytes given so far.
    at: usize,
}

impl<'a> Source<'a> {
    /// The data of the tensor with this number in a file made from `seed`.
    pub(crate) fn new(seed: u64, number: u64, tensor: &'a TensorInfo) -> Self {
        Source { tensor, counter: mix(seed ^ mix(number.wrapping_add(1))), at: 0 }
    }

    /// The next bytes: a whole number of blocks.
    pub(crate) fn next(&mut self, out: &mut [u8]) {
        match &self.tensor.content {
            Content::Exactly(values) => {
                for (slot, value) in out.chunks_exact_mut(4).zip(&values[self.at / 4..]) {
                    slot.copy_from_slice(&value.to_le_bytes());
                }
            }
            Content::Random { amplitude } => self.random(*amplitude, out),
        }
        self.at += out.len();
    }

    fn random(&mut self, amplitude: f32, out: &mut [u8]) {
        match self.tensor.encoding {
            Encoding::F32 => {
                for slot in out.chunks_exact_mut(4) {
                    slot.copy_from_slice(&(amplitude * self.unit()).to_le_bytes());
                }
            }
            Encoding::F16 => {
                for slot in out.chunks_exact_mut(2) {
                    slot.copy_from_slice(&f16::from_f32(amplitude * self.unit()).to_le_bytes());
                }
            }
            Encoding::BF16 => {
                for slot in out.chunks_exact_mut(2) {
                    slot.copy_from_slice(&bf16::from_f32(amplitude * self.unit()).to_le_bytes());
                }
            }
            blocks => {
                for slot in out.chunks_mut(8) {
                    let bits = self.bits().to_le_bytes();
                    slot.copy_from_slice(&bits[..slot.len()]);
                }
                for block in out.chunks_exact_mut(blocks.block_bytes()) {
                    for &(offset, factor) in scales(blocks) {
                        let value = f16::from_f32(amplitude * factor);
                        block[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
    }

    fn bits(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.counter)
    }

    /// A float from −1 to 1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where a block's f16 fields lie, and what they must be, as factors of the amplitude, for values of at most about the
/// amplitude around zero whatever the other bits are.
fn scales(encoding: Encoding) -> &'static [(usize, f32)] {
    use Encoding::*;
    match encoding {
        // No fields: handled value by value.
        F32 | F16 | BF16 => &[],
        // Scale × (code − 8).
        Q4_0 => &[(0, 1.0 / 8.0)],
        // Scale × code + minimum.
        Q4_1 => &[(0, 2.0 / 15.0), (2, -1.0)],
        Q5_0 => &[(0, 1.0 / 16.0)],
        Q5_1 => &[(0, 2.0 / 31.0), (2, -1.0)],
        Q8_0 => &[(0, 1.0 / 127.0)],
        // Scale × 4 bits × code − minimum × 4 bits: the minimum's factor centres the product.
        Q2_K => &[(80, 1.0 / 45.0), (82, 1.5 / 45.0)],
        // Scale × (6 bits − 32) × (code − 4).
        Q3_K => &[(108, 1.0 / 128.0)],
        // Scale × 6 bits × code − minimum × 6 bits.
        Q4_K => &[(0, 1.0 / 945.0), (2, 7.5 / 945.0)],
        Q5_K => &[(0, 1.0 / 1953.0), (2, 15.5 / 1953.0)],
        // Scale × signed 8 bits × (code − 32).
        Q6_K => &[(208, 1.0 / 4096.0)],
        IQ4_NL => &[(0, 1.0 / 127.0)],
        // Scale × (6 bits − 32) × a table of −127 to 113.
        IQ4_XS => &[(0, 1.0 / 4064.0)],
    }
}
