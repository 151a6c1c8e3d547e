//! The inverse of packing for single rows: scalar, the reference for every kernel's unpacking.

use half::{bf16, f16};

use super::{IQ4_VALUES, PANEL_ROWS, codes_offset, panel_bytes, sections};
use crate::Encoding;

/// Decodes one row of a panel to f32, bit-equal to `blocks::decode_row` on the source row.
///
/// # Panics
/// If `panel` is not one panel of rows of `out.len()` elements, or `row` is not below 16.
pub fn decode_row(encoding: Encoding, panel: &[u8], row: usize, out: &mut [f32]) {
    let cols = out.len();
    assert_eq!(panel.len(), panel_bytes(encoding, cols), "panel size");
    assert!(row < PANEL_ROWS, "row {row} of a panel");
    let Some(s) = sections(encoding) else {
        let n = encoding.block_bytes();
        for (k, x) in out.iter_mut().enumerate() {
            let e = &panel[(k * PANEL_ROWS + row) * n..][..n];
            *x = match encoding {
                Encoding::F32 => f32::from_le_bytes([e[0], e[1], e[2], e[3]]),
                Encoding::F16 => f16::from_le_bytes([e[0], e[1]]).to_f32(),
                _ => bf16::from_le_bytes([e[0], e[1]]).to_f32(),
            };
        }
        return;
    };
    let (heads, codes) = panel.split_at(codes_offset(encoding, cols));
    for (b, out) in out.chunks_exact_mut(encoding.block_len()).enumerate() {
        let head = &heads[b * s.head_bytes..][..s.head_bytes];
        let code = &codes[b * s.code_bytes..][..s.code_bytes];
        let sub_bytes = s.code_bytes / (out.len() / 32);
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            decode_sub_block(encoding, head, &code[j * sub_bytes..][..sub_bytes], j, row, out);
        }
    }
}

/// The unsigned code of element `e` of a sub-block.
fn code_of(encoding: Encoding, planes: &[u8], r: usize, e: usize) -> u8 {
    use Encoding::*;
    let (g, i) = (e / 4, e % 4);
    let nibble = || planes[64 * (g % 4) + 4 * r + i] >> (4 * (g / 4)) & 15;
    let bit = |at: usize| planes[at + 4 * r + i] >> g & 1;
    let pair = |at: usize| planes[at + 64 * (g / 4) + 4 * r + i] >> (2 * (g % 4)) & 3;
    match encoding {
        Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS => nibble(),
        Q5_0 | Q5_1 | Q5_K => nibble() | bit(256) << 4,
        Q6_K => nibble() | pair(256) << 4,
        Q3_K => pair(0) | bit(128) << 2,
        Q2_K => pair(0),
        Q8_0 => planes[64 * g + 4 * r + i],
        F32 | F16 | BF16 => unreachable!("float encodings have no codes"),
    }
}

fn decode_sub_block(encoding: Encoding, head: &[u8], planes: &[u8], j: usize, r: usize, out: &mut [f32]) {
    use Encoding::*;
    let f16_at = |at: usize| f16::from_le_bytes([head[at + 2 * r], head[at + 2 * r + 1]]).to_f32();
    let six_bit_pair = |at: usize| {
        let (low, high) = (head[at + 16 * j + r], head[at + 128 + 16 * (j % 4) + r] >> (4 * (j / 4)));
        (low & 15 | (high & 3) << 4, low >> 4 | (high >> 2 & 3) << 4)
    };
    let d = f16_at(0);
    for (e, x) in out.iter_mut().enumerate() {
        let q = code_of(encoding, planes, r, e);
        let half = e / 16;
        *x = match encoding {
            Q4_0 => d * (q as i32 - 8) as f32,
            Q5_0 => d * (q as i32 - 16) as f32,
            Q8_0 => d * (q as i8) as f32,
            IQ4_NL => d * IQ4_VALUES[q as usize] as f32,
            Q4_1 | Q5_1 => d * q as f32 + f16_at(32),
            Q4_K | Q5_K => {
                let (scale, min) = six_bit_pair(64);
                (d * scale as f32) * q as f32 - f16_at(32) * min as f32
            }
            Q3_K => {
                let (a, b) = six_bit_pair(32);
                let scale = [a, b][half] as i32 - 32;
                (d * scale as f32) * (q as i32 - 4) as f32
            }
            Q6_K => {
                let scale = head[32 + 32 * j + 2 * r + half] as i8;
                (d * scale as f32) * (q as i32 - 32) as f32
            }
            Q2_K => {
                let s = head[64 + 32 * j + 2 * r + half];
                (d * (s & 15) as f32) * q as f32 - f16_at(32) * (s >> 4) as f32
            }
            IQ4_XS => {
                let low = head[32 + 16 * (j % 4) + r] >> (4 * (j / 4)) & 15;
                let high = head[96 + 16 * (j % 2) + r] >> (2 * (j / 2)) & 3;
                (d * ((low | high << 4) as i32 - 32) as f32) * IQ4_VALUES[q as usize] as f32
            }
            F32 | F16 | BF16 => unreachable!("float encodings have no blocks"),
        };
    }
}
