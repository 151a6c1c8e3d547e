//! Prepared weights: 16 rows interleaved so that one vector load feeds 16 outputs.
//!
//! A panel is lossless from its source encoding, and the same on every instruction set. This module packs panels and
//! decodes single rows of them (embedding lookups); products belong to a device's kernels.
//!
//! # Layout
//! A panel of an integer encoding holds `cols / block_len` blocks in two sections, the second starting at a multiple
//! of 64 bytes:
//!
//! ```text
//! heads  [block][head_bytes]   f16 scales of 16 rows, f16 minima where there are any, then packed sub-scales
//! codes  [block][sub-block of 32 elements][planes]
//! ```
//!
//! Every code plane is made of 64-byte lines whose byte `4·row + i` belongs to row `row`. With element 4g + i of a
//! sub-block said to lie in group g (0 to 7):
//! - nibble plane, 4 lines: line j holds group j in the low and group j + 4 in the high nibbles;
//! - bit plane, 1 line: bit g of a byte belongs to group g;
//! - pair plane, 2 lines: line h holds groups 4h + t in bits 2t and 2t + 1;
//! - byte plane, 8 lines: line g holds group g.
//!
//! Sub-scales lie as bytes `[sub-block j][row]`:
//! - six-bit pairs (a, b) of Q4_K, Q5_K (scale, minimum) and Q3_K (scales of both halves): a plane of 128 bytes with the
//!   low four bits of a and b, then 64 bytes, at `16·(j mod 4) + row`, whose bits `4·(j div 4)…` are the high two of
//!   a, then of b;
//! - six-bit singles of IQ4_XS: 64 bytes at `16·(j mod 4) + row`, low nibble for j < 4, then 32 bytes at
//!   `16·(j mod 2) + row` with the high two bits at `2·(j div 2)`;
//! - byte pairs of Q6_K (signed scales of both halves) and Q2_K (scale in the low, minimum in the high nibble, of both
//!   halves): 256 bytes at `32·j + 2·row + half`.
//!
//! A panel of a float encoding is `[cols][16]` elements as the source has them.
//!
//! Rows beyond the last are zero bytes.

mod pack;
mod unpack;

pub use pack::pack_panel;
pub use unpack::decode_row;

use crate::Encoding;

/// Rows of one panel.
pub const PANEL_ROWS: usize = 16;

/// Elements of a sub-block: what one activation scale covers.
pub const SUB_BLOCK: usize = 32;

/// Sizes of the two sections of an integer encoding's panel, per source block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Scales, minima and sub-scales of 16 rows.
    pub head_bytes: usize,
    /// Code planes of 16 rows.
    pub code_bytes: usize,
}

/// The section sizes of an encoding; `None` for the float encodings.
pub const fn sections(encoding: Encoding) -> Option<Sections> {
    use Encoding::*;
    let (head_bytes, code_bytes) = match encoding {
        F32 | F16 | BF16 => return None,
        Q4_0 | IQ4_NL => (32, 256),
        Q4_1 => (64, 256),
        Q5_0 => (32, 320),
        Q5_1 => (64, 320),
        Q8_0 => (32, 512),
        Q2_K => (64 + 256, 8 * 128),
        Q3_K => (32 + 192, 8 * 192),
        Q4_K => (64 + 192, 8 * 256),
        Q5_K => (64 + 192, 8 * 320),
        Q6_K => (32 + 256, 8 * 384),
        IQ4_XS => (32 + 96, 8 * 256),
    };
    Some(Sections { head_bytes, code_bytes })
}

/// Bytes of one panel with rows of `cols` elements, a multiple of 64.
///
/// # Panics
/// If `cols` is not a whole number of blocks.
pub fn panel_bytes(encoding: Encoding, cols: usize) -> usize {
    assert!(
        cols.is_multiple_of(encoding.block_len()),
        "{cols} columns in blocks of {}",
        encoding.block_len()
    );
    match sections(encoding) {
        None => (cols * PANEL_ROWS * encoding.block_bytes()).next_multiple_of(64),
        Some(s) => {
            codes_offset(encoding, cols) + (cols / encoding.block_len() * s.code_bytes).next_multiple_of(64)
        }
    }
}

/// Bytes from a panel's start to its codes.
pub fn codes_offset(encoding: Encoding, cols: usize) -> usize {
    let heads = sections(encoding).map_or(0, |s| s.head_bytes);
    (cols / encoding.block_len() * heads).next_multiple_of(64)
}

/// Bytes of a whole prepared matrix.
pub fn matrix_bytes(encoding: Encoding, rows: usize, cols: usize) -> usize {
    rows.div_ceil(PANEL_ROWS) * panel_bytes(encoding, cols)
}

/// The value table of IQ4_NL and IQ4_XS (`kvalues_iq4nl` of the GGUF format).
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[cfg(test)]
mod tests {
    use super::*;

    /// Prepared tensors may be at most 2% larger than the source's.
    #[test]
    fn panels_are_as_small_as_their_source() {
        for e in Encoding::ALL {
            for cols in [256, 512, 768, 1536, 4864, 8960] {
                let source = 16 * e.row_bytes(cols).unwrap();
                let panel = panel_bytes(e, cols);
                assert!(panel >= source && panel * 100 <= source * 102, "{e} {cols}: {panel} for {source}");
            }
        }
    }
}
