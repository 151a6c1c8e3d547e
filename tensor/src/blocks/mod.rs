//! The reference decode of each encoding: one block of a weight file to f32, bit for bit as the `gguf` package does.
//!
//! It does not know about files, panels or kernels; everything faster is tested against this.

use crate::Encoding;

/// Decodes `row` (whole blocks as they lie in the file) into `out`.
///
/// # Panics
/// If `out` is not the number of elements that `row`'s bytes encode.
pub fn decode_row(encoding: Encoding, row: &[u8], out: &mut [f32]) {
    let (_, _, _) = (encoding, row, out);
    unreachable!("landed by the files branch")
}
