//! Packing: source rows to one panel.

use super::{PANEL_ROWS, codes_offset, panel_bytes, sections};
use crate::Encoding;

/// Packs up to 16 source rows (as they lie in the weight file) into one panel; missing rows are zero bytes.
///
/// # Panics
/// If there are no or more than 16 rows, a row is not `cols` elements long, or `out` is not
/// [`panel_bytes`]`(encoding, cols)` long.
pub fn pack_panel(encoding: Encoding, cols: usize, rows: &[&[u8]], out: &mut [u8]) {
    let row_bytes = encoding.row_bytes(cols).expect("whole blocks");
    assert!((1..=PANEL_ROWS).contains(&rows.len()), "{} rows in a panel", rows.len());
    assert!(rows.iter().all(|r| r.len() == row_bytes), "rows of {row_bytes} bytes");
    assert_eq!(out.len(), panel_bytes(encoding, cols), "panel size");
    out.fill(0);
    let Some(s) = sections(encoding) else {
        let n = encoding.block_bytes();
        for (r, row) in rows.iter().enumerate() {
            for (k, element) in row.chunks_exact(n).enumerate() {
                out[(k * PANEL_ROWS + r) * n..][..n].copy_from_slice(element);
            }
        }
        return;
    };
    let (heads, codes) = out.split_at_mut(codes_offset(encoding, cols));
    for (r, row) in rows.iter().enumerate() {
        for (b, block) in row.chunks_exact(encoding.block_bytes()).enumerate() {
            let head = &mut heads[b * s.head_bytes..][..s.head_bytes];
            let code = &mut codes[b * s.code_bytes..][..s.code_bytes];
            pack_block(encoding, block, r, head, code);
        }
    }
}

/// Splits one source block into row `r` of a panel block.
fn pack_block(encoding: Encoding, block: &[u8], r: usize, head: &mut [u8], code: &mut [u8]) {
    use Encoding::*;
    let mut q = [0u8; 256];
    let (scale, min): (&[u8], Option<&[u8]>) = match encoding {
        Q4_0 | IQ4_NL => {
            halves_of_nibbles(&block[2..18], &mut q);
            (&block[0..2], None)
        }
        Q4_1 => {
            halves_of_nibbles(&block[4..20], &mut q);
            (&block[0..2], Some(&block[2..4]))
        }
        Q5_0 => {
            halves_of_nibbles(&block[6..22], &mut q);
            fifth_bits(&block[2..6], &mut q);
            (&block[0..2], None)
        }
        Q5_1 => {
            halves_of_nibbles(&block[8..24], &mut q);
            fifth_bits(&block[4..8], &mut q);
            (&block[0..2], Some(&block[2..4]))
        }
        Q8_0 => {
            q[..32].copy_from_slice(&block[2..34]);
            (&block[0..2], None)
        }
        Q4_K => {
            pairs_of_sub_blocks(&block[16..144], &mut q);
            (&block[0..2], Some(&block[2..4]))
        }
        Q5_K => {
            pairs_of_sub_blocks(&block[48..176], &mut q);
            for (e, code) in q.iter_mut().enumerate() {
                *code |= (block[16 + e % 32] >> (e / 32) & 1) << 4;
            }
            (&block[0..2], Some(&block[2..4]))
        }
        Q6_K => {
            for (e, code) in q.iter_mut().enumerate() {
                let (half, within, l) = (e / 128, e % 128 / 32, e % 32);
                let low = block[64 * half + 32 * (within % 2) + l] >> (4 * (within / 2)) & 15;
                let high = block[128 + 32 * half + l] >> (2 * within) & 3;
                *code = low | high << 4;
            }
            (&block[208..210], None)
        }
        Q3_K => {
            for (e, code) in q.iter_mut().enumerate() {
                let low = block[32 + 32 * (e / 128) + e % 32] >> (2 * (e % 128 / 32)) & 3;
                let high = block[e % 32] >> (e / 32) & 1;
                *code = low | high << 2;
            }
            (&block[108..110], None)
        }
        Q2_K => {
            for (e, code) in q.iter_mut().enumerate() {
                *code = block[16 + 32 * (e / 128) + e % 32] >> (2 * (e % 128 / 32)) & 3;
            }
            (&block[80..82], Some(&block[82..84]))
        }
        IQ4_XS => {
            for (sub, qs) in block[8..136].chunks_exact(16).enumerate() {
                halves_of_nibbles(qs, &mut q[32 * sub..]);
            }
            (&block[0..2], None)
        }
        F32 | F16 | BF16 => unreachable!("float encodings have no blocks"),
    };
    head[2 * r..2 * r + 2].copy_from_slice(scale);
    if let Some(min) = min {
        head[32 + 2 * r..34 + 2 * r].copy_from_slice(min);
    }
    pack_sub_scales(encoding, block, r, head);
    let sub_bytes = code.len() / (encoding.block_len() / 32);
    for (q, code) in q.chunks_exact(32).zip(code.chunks_exact_mut(sub_bytes)) {
        match encoding {
            Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS => nibble_plane(q, r, code),
            Q5_0 | Q5_1 | Q5_K => {
                nibble_plane(q, r, code);
                bit_plane(q, 4, r, &mut code[256..]);
            }
            Q6_K => {
                nibble_plane(q, r, code);
                pair_plane(q, 4, r, &mut code[256..]);
            }
            Q3_K => {
                pair_plane(q, 0, r, code);
                bit_plane(q, 2, r, &mut code[128..]);
            }
            Q2_K => pair_plane(q, 0, r, code),
            Q8_0 => {
                for (e, &c) in q.iter().enumerate() {
                    code[64 * (e / 4) + 4 * r + e % 4] = c;
                }
            }
            F32 | F16 | BF16 => unreachable!("float encodings have no blocks"),
        }
    }
}

/// Elements 0..16 in the low nibbles, 16..32 in the high ones.
fn halves_of_nibbles(qs: &[u8], q: &mut [u8]) {
    for (i, &b) in qs.iter().enumerate() {
        q[i] = b & 15;
        q[i + 16] = b >> 4;
    }
}

/// Per 32 bytes, sub-block 2p in the low nibbles and 2p + 1 in the high ones.
fn pairs_of_sub_blocks(qs: &[u8], q: &mut [u8; 256]) {
    for (p, bytes) in qs.chunks_exact(32).enumerate() {
        for (i, &b) in bytes.iter().enumerate() {
            q[64 * p + i] = b & 15;
            q[64 * p + 32 + i] = b >> 4;
        }
    }
}

/// Bit e of the little-endian word is the fifth bit of element e.
fn fifth_bits(word: &[u8], q: &mut [u8]) {
    for (e, code) in q.iter_mut().take(32).enumerate() {
        *code |= (word[e / 8] >> (e % 8) & 1) << 4;
    }
}

fn nibble_plane(q: &[u8], r: usize, lines: &mut [u8]) {
    for (e, &c) in q.iter().enumerate() {
        let (group, i) = (e / 4, e % 4);
        lines[64 * (group % 4) + 4 * r + i] |= (c & 15) << (4 * (group / 4));
    }
}

/// Bit `from` of each code.
fn bit_plane(q: &[u8], from: u32, r: usize, line: &mut [u8]) {
    for (e, &c) in q.iter().enumerate() {
        line[4 * r + e % 4] |= (c >> from & 1) << (e / 4);
    }
}

/// Bits `from` and `from + 1` of each code.
fn pair_plane(q: &[u8], from: u32, r: usize, lines: &mut [u8]) {
    for (e, &c) in q.iter().enumerate() {
        let (group, i) = (e / 4, e % 4);
        lines[64 * (group / 4) + 4 * r + i] |= (c >> from & 3) << (2 * (group % 4));
    }
}

fn pack_sub_scales(encoding: Encoding, block: &[u8], r: usize, head: &mut [u8]) {
    use Encoding::*;
    match encoding {
        Q4_K | Q5_K => {
            let s = &block[4..16];
            for j in 0..8 {
                let (scale, min) = if j < 4 {
                    (s[j] & 63, s[j + 4] & 63)
                } else {
                    (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
                };
                six_bit_pair(scale, min, j, r, &mut head[64..]);
            }
        }
        Q3_K => {
            let s = &block[96..108];
            let scale = |i: usize| {
                let low = s[i % 8] >> (4 * (i / 8)) & 15;
                low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4
            };
            for j in 0..8 {
                six_bit_pair(scale(2 * j), scale(2 * j + 1), j, r, &mut head[32..]);
            }
        }
        Q6_K => byte_pairs(&block[192..208], r, &mut head[32..]),
        Q2_K => byte_pairs(&block[0..16], r, &mut head[64..]),
        IQ4_XS => {
            let high = u16::from_le_bytes([block[2], block[3]]);
            for j in 0..8 {
                let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
                head[32 + 16 * (j % 4) + r] |= low << (4 * (j / 4));
                head[96 + 16 * (j % 2) + r] |= ((high >> (2 * j) & 3) as u8) << (2 * (j / 2));
            }
        }
        _ => {}
    }
}

fn six_bit_pair(a: u8, b: u8, j: usize, r: usize, planes: &mut [u8]) {
    planes[16 * j + r] = a & 15 | (b & 15) << 4;
    planes[128 + 16 * (j % 4) + r] |= (a >> 4 | b >> 4 << 2) << (4 * (j / 4));
}

fn byte_pairs(scales: &[u8], r: usize, plane: &mut [u8]) {
    for (i, &s) in scales.iter().enumerate() {
        plane[32 * (i / 2) + 2 * r + i % 2] = s;
    }
}
