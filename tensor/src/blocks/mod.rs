//! The reference decode of each encoding: one block of a weight file to f32, bit for bit as the `gguf` package does.
//!
//! It does not know about files, panels or kernels; everything faster is tested against this.

mod float;
mod iq4_nl;
mod iq4_xs;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

pub use float::{BlockBf16, BlockF16, BlockF32};
pub use iq4_nl::{BlockIq4Nl, IQ4_VALUES};
pub use iq4_xs::BlockIq4Xs;
pub use q2_k::BlockQ2K;
pub use q3_k::BlockQ3K;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::{BlockQ4K, scales_and_mins};
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;

use crate::Encoding;

/// One block as it lies in a weight file: made of bytes only, so it has no alignment and any bytes are valid.
pub trait Block: bytemuck::Pod {
    /// The encoding whose block this is.
    const ENCODING: Encoding;

    /// Decodes the block into `out`.
    ///
    /// # Panics
    /// If `out` is not [`Encoding::block_len`] long.
    fn decode(&self, out: &mut [f32]);

    /// The blocks that lie in `bytes`.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of blocks.
    fn slice(bytes: &[u8]) -> &[Self] {
        bytemuck::cast_slice(bytes)
    }
}

/// The size of `B`, checked at compile time against what [`Encoding`] says of it.
const fn assert_layout<B: Block>() {
    assert!(size_of::<B>() == B::ENCODING.block_bytes() && align_of::<B>() == 1);
}

const _: () = {
    assert_layout::<BlockF32>();
    assert_layout::<BlockF16>();
    assert_layout::<BlockBf16>();
    assert_layout::<BlockQ4_0>();
    assert_layout::<BlockQ4_1>();
    assert_layout::<BlockQ5_0>();
    assert_layout::<BlockQ5_1>();
    assert_layout::<BlockQ8_0>();
    assert_layout::<BlockQ2K>();
    assert_layout::<BlockQ3K>();
    assert_layout::<BlockQ4K>();
    assert_layout::<BlockQ5K>();
    assert_layout::<BlockQ6K>();
    assert_layout::<BlockIq4Nl>();
    assert_layout::<BlockIq4Xs>();
};

/// Decodes `row` (whole blocks as they lie in the file) into `out`.
///
/// # Panics
/// If `out` is not the number of elements that `row`'s bytes encode.
pub fn decode_row(encoding: Encoding, row: &[u8], out: &mut [f32]) {
    match encoding {
        Encoding::F32 => decode_blocks::<BlockF32>(row, out),
        Encoding::F16 => decode_blocks::<BlockF16>(row, out),
        Encoding::BF16 => decode_blocks::<BlockBf16>(row, out),
        Encoding::Q4_0 => decode_blocks::<BlockQ4_0>(row, out),
        Encoding::Q4_1 => decode_blocks::<BlockQ4_1>(row, out),
        Encoding::Q5_0 => decode_blocks::<BlockQ5_0>(row, out),
        Encoding::Q5_1 => decode_blocks::<BlockQ5_1>(row, out),
        Encoding::Q8_0 => decode_blocks::<BlockQ8_0>(row, out),
        Encoding::Q2_K => decode_blocks::<BlockQ2K>(row, out),
        Encoding::Q3_K => decode_blocks::<BlockQ3K>(row, out),
        Encoding::Q4_K => decode_blocks::<BlockQ4K>(row, out),
        Encoding::Q5_K => decode_blocks::<BlockQ5K>(row, out),
        Encoding::Q6_K => decode_blocks::<BlockQ6K>(row, out),
        Encoding::IQ4_NL => decode_blocks::<BlockIq4Nl>(row, out),
        Encoding::IQ4_XS => decode_blocks::<BlockIq4Xs>(row, out),
    }
}

fn decode_blocks<B: Block>(row: &[u8], out: &mut [f32]) {
    let blocks = B::slice(row);
    let block_len = B::ENCODING.block_len();
    assert_eq!(out.len(), blocks.len() * block_len, "{}: elements of the row", B::ENCODING);
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(block_len)) {
        block.decode(out);
    }
}

/// A half-precision scale as it lies in a block.
fn half(bytes: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(bytes).to_f32()
}
