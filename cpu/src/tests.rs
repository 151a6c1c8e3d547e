//! Every kernel of every table this CPU can run, against f64 and, where the contract is bits, against the portable table.

use half::f16;
use tensor::Encoding;
use tensor::blocks;
use tensor::kv::BLOCK_POSITIONS;
use tensor::panels::{self, PANEL_ROWS, pack_panel, panel_bytes};

use crate::attention::{QueryRow, TileArgs, scratch_len, state_len};
use crate::isa::Isa;
use crate::panel::XBlock;
use crate::rows::{Finish, FinishArgs};
use crate::table::{Function, Table};
use tensor::op::{Activation, RopeLayout};

/// A small generator of test numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Roughly normal.
    fn normal(&mut self) -> f32 {
        (0..6).map(|_| (self.bits() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum::<f32>() * 1.4
    }

    pub(crate) fn vector(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }
}

pub(crate) fn tables() -> Vec<Table> {
    Isa::supported().into_iter().map(|i| Table::of(i).unwrap()).collect()
}

pub(crate) fn portable() -> Table {
    Table::of(Isa::Portable).unwrap()
}

pub(crate) fn same_bits(what: &str, isa: Isa, found: &[f32], expected: &[f32]) {
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same, "{what}, {}: element {i} is {a:e}, portable gives {b:e}", isa.name());
    }
    assert_eq!(found.len(), expected.len());
}

/// Where a block's f16 numbers lie.
fn scale_offsets(e: Encoding) -> &'static [usize] {
    use Encoding::*;
    match e {
        F32 | F16 | BF16 => &[],
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
    }
}

/// A row of random codes with scales as models have them.
fn random_row(e: Encoding, cols: usize, r: &mut Random) -> Vec<u8> {
    let mut row: Vec<u8> = (0..e.row_bytes(cols).unwrap()).map(|_| (r.bits() >> 20) as u8).collect();
    match e {
        Encoding::F32 => row = r.vector(cols).iter().flat_map(|x| x.to_le_bytes()).collect(),
        Encoding::F16 => row = r.vector(cols).iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        Encoding::BF16 => {
            row = r.vector(cols).iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
        }
        _ => {
            for block in row.chunks_exact_mut(e.block_bytes()) {
                for &at in scale_offsets(e) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(r.normal() * 0.02).to_le_bytes());
                }
            }
        }
    }
    row
}

/// Sixteen source rows and their panel.
fn random_panel(e: Encoding, cols: usize, r: &mut Random) -> (Vec<Vec<u8>>, Vec<u8>) {
    let rows: Vec<_> = (0..PANEL_ROWS).map(|_| random_row(e, cols, r)).collect();
    let mut panel = vec![0; panel_bytes(e, cols)];
    let views: Vec<&[u8]> = rows.iter().map(|r| &r[..]).collect();
    pack_panel(e, cols, &views, &mut panel);
    (rows, panel)
}

fn decoded(e: Encoding, row: &[u8], cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; cols];
    blocks::decode_row(e, row, &mut out);
    out
}

/// Quantises columns as the contract writes it, in plain Rust.
fn reference_blocks(x: &[f32]) -> Vec<XBlock> {
    let block = |x: &[f32]| {
        let mut out = XBlock::ZERO;
        if x.iter().any(|v| !v.is_finite()) {
            out.scale = f32::NAN;
            out.scaled_sum = f32::NAN;
            return out;
        }
        let m = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        if m < 2f32.powi(-120) {
            return out;
        }
        for (c, v) in out.codes.iter_mut().zip(x) {
            *c = (v * (127.0 / m)).round_ties_even() as i8;
        }
        let sum = |c: &[i8]| c.iter().map(|&c| c as i32).sum::<i32>();
        out.half_sums = [sum(&out.codes[..16]) as i16, sum(&out.codes[16..]) as i16];
        out.neg_sum = -sum(&out.codes);
        out.scale = m / 127.0;
        out.scaled_sum = sum(&out.codes) as f32 * out.scale;
        out
    };
    x.chunks_exact(32).map(block).collect()
}

#[test]
fn panels_decode_to_the_source() {
    let mut r = Random(1);
    for e in Encoding::ALL {
        for cols in [e.block_len(), 3 * e.block_len().max(8)] {
            let (rows, panel) = random_panel(e, cols, &mut r);
            for (i, row) in rows.iter().enumerate() {
                let mut found = vec![0.0; cols];
                panels::decode_row(e, &panel, i, &mut found);
                same_bits(&format!("{e} row {i}"), Isa::Portable, &found, &decoded(e, row, cols));
            }
        }
    }
}

#[test]
fn quantisation_is_the_written_one() {
    let mut r = Random(2);
    let mut x = r.vector(32 * 12);
    x[5] = f32::NAN;
    x[32 + 31] = f32::INFINITY;
    x[64..96].fill(1e-38);
    x[96..128].fill(0.0);
    x[128..160].iter_mut().for_each(|v| *v *= 1e-30);
    x[160..192].iter_mut().for_each(|v| *v *= 1e37);
    // Midpoints: a block whose largest magnitude is 127 has codes equal to its elements.
    for (i, v) in x[192..224].iter_mut().enumerate() {
        *v = i as f32 - 15.5;
    }
    x[192] = 127.0;
    x[224] = -3.0;
    x[225] = f32::NEG_INFINITY;
    for t in tables() {
        for stride in [1, 3] {
            let mut out = vec![XBlock::ZERO; 12 * stride];
            // SAFETY: the buffer has stride·(12 − 1) + 1 blocks and more.
            unsafe { t.quantise(&x, out.as_mut_ptr(), stride) };
            for (i, expected) in reference_blocks(&x).iter().enumerate() {
                let found = out[i * stride];
                let bits = |b: &XBlock| (b.codes, b.half_sums, b.neg_sum, b.scale.is_nan());
                assert_eq!(bits(&found), bits(expected), "{} block {i}", t.isa.name());
                if !expected.scale.is_nan() {
                    assert_eq!(found.scale.to_bits(), expected.scale.to_bits());
                    assert_eq!(found.scaled_sum.to_bits(), expected.scaled_sum.to_bits());
                }
            }
        }
    }
}

/// Products agree with f64 over decoded weights and decoded activations within 2⁻²⁰·Σ|terms|, and every table gives the
/// portable one's bits for any number of columns and panels.
#[test]
fn integer_products() {
    let mut r = Random(3);
    for e in Encoding::ALL.into_iter().filter(|e| !e.is_float()) {
        for blocks_per_row in [1, 2, 5] {
            let cols = blocks_per_row * e.block_len();
            let both: Vec<_> = (0..3).map(|_| random_panel(e, cols, &mut r)).collect();
            for columns in [1, 2, 3, 4, 5, 9] {
                let xs: Vec<Vec<XBlock>> = (0..columns)
                    .map(|c| {
                        let mut x = r.vector(cols);
                        if c == 1 {
                            // Every code at an extreme: the 16-bit sums of pairs must not saturate.
                            x.iter_mut().for_each(|v| *v = if *v < 0.0 { -1.0 } else { 1.0 });
                        }
                        reference_blocks(&x)
                    })
                    .collect();
                let x: Vec<XBlock> = (0..cols / 32).flat_map(|k| xs.iter().map(move |x| x[k])).collect();
                for count in [1, 2, 3] {
                    let panels: Vec<u8> = both[..count].iter().flat_map(|(_, p)| p.iter().copied()).collect();
                    let run = |t: Table| {
                        let mut acc = vec![0.0; columns * count * PANEL_ROWS];
                        t.int_product(e, &panels, cols, &x, columns, &mut acc);
                        if count == 2 {
                            let mut pair = vec![0.0; acc.len()];
                            let apart = [&both[0].1[..], &both[1].1[..]];
                            t.int_product_pair(e, apart, cols, &x, columns, &mut pair);
                            same_bits("panels that lie apart", t.isa, &pair, &acc);
                        }
                        acc
                    };
                    let reference = run(portable());
                    for (c, x) in xs.iter().enumerate() {
                        for (p, (rows, _)) in both[..count].iter().enumerate() {
                            for (i, row) in rows.iter().enumerate() {
                                let w = decoded(e, row, cols);
                                let terms = w.iter().enumerate().map(|(k, &w)| {
                                    let b = &x[k / 32];
                                    w as f64 * (b.codes[k % 32] as f64 * b.scale as f64)
                                });
                                let (sum, size) =
                                    terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + f64::abs(t)));
                                let found = reference[(c * count + p) * PANEL_ROWS + i] as f64;
                                let error = (found - sum).abs();
                                assert!(error <= size * 2f64.powi(-20), "{e} {cols}: {found} for {sum}");
                            }
                        }
                    }
                    for t in tables() {
                        same_bits(&format!("{e} {cols}x{columns}"), t.isa, &run(t), &reference);
                    }
                }
            }
        }
    }
}

/// All-ones code bytes against all-extreme activations: the worst case of every 16-bit intermediate.
#[test]
fn integer_products_do_not_saturate() {
    for e in Encoding::ALL.into_iter().filter(|e| !e.is_float()) {
        let cols = 2 * e.block_len();
        for fill in [0xffu8, 0x80, 0x7f, 0x00] {
            let mut row = vec![fill; e.row_bytes(cols).unwrap()];
            for block in row.chunks_exact_mut(e.block_bytes()) {
                for &at in scale_offsets(e) {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
                }
            }
            let mut panel = vec![0; panel_bytes(e, cols)];
            pack_panel(e, cols, &[&row[..]; PANEL_ROWS], &mut panel);
            for sign in [1.0, -1.0] {
                let x = reference_blocks(&vec![sign; cols]);
                let run = |t: Table| {
                    let mut acc = vec![0.0; PANEL_ROWS];
                    t.int_product(e, &panel, cols, &x, 1, &mut acc);
                    acc
                };
                let sum: f64 = decoded(e, &row, cols).iter().map(|&w| w as f64 * sign as f64).sum();
                let size: f64 = decoded(e, &row, cols).iter().map(|&w| f64::from(w).abs()).sum();
                let reference = run(portable());
                // The column's scale 1/127 is rounded, so that its codes stand for ±1 within 2⁻²⁴.
                assert!((reference[0] as f64 - sum).abs() <= size * 2f64.powi(-20), "{e} {fill:#x}");
                for t in tables() {
                    same_bits(&format!("{e} filled with {fill:#x}"), t.isa, &run(t), &reference);
                }
            }
        }
    }
}

#[test]
fn float_products() {
    let mut r = Random(4);
    for e in [Encoding::F32, Encoding::F16, Encoding::BF16] {
        for cols in [1, 7, 33, 100] {
            let panels: Vec<_> = (0..5).map(|_| random_panel(e, cols, &mut r)).collect();
            let bytes: Vec<u8> = panels.iter().flat_map(|(_, p)| p.iter().copied()).collect();
            for columns in [1, 2, 4, 5, 9] {
                let x = r.vector(columns * cols);
                let run = |t: Table| {
                    let mut out = vec![0.0; columns * 5 * PANEL_ROWS];
                    t.float_product(e, &bytes, cols, &x, &mut out);
                    out
                };
                let reference = run(portable());
                for c in 0..columns {
                    for (p, (rows, _)) in panels.iter().enumerate() {
                        for (i, row) in rows.iter().enumerate() {
                            let w = decoded(e, row, cols);
                            let terms = w.iter().zip(&x[c * cols..]).map(|(&w, &x)| w as f64 * x as f64);
                            let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + f64::abs(t)));
                            let found = reference[(c * 5 + p) * PANEL_ROWS + i] as f64;
                            assert!((found - sum).abs() <= size * 2f64.powi(-20), "{e} {cols}");
                        }
                    }
                }
                for t in tables() {
                    same_bits(&format!("{e} {cols}x{columns}"), t.isa, &run(t), &reference);
                }
            }
        }
    }
}

#[test]
fn functions_are_near_f64_and_the_same_everywhere() {
    let gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    // (function, reference, largest relative error, absolute floor)
    type Row = (Function, fn(f64) -> f64, f64, f64);
    let rows: [Row; 4] = [
        (Function::Exp, f64::exp, 2f64.powi(-22), 1e-45),
        (Function::Silu, |x| x / (1.0 + (-x).exp()), 2f64.powi(-21), 3e-37),
        (Function::GeluTanh, gelu, 2f64.powi(-19), 1e-6),
        (Function::Tanh, f64::tanh, 2f64.powi(-21), 1e-38),
    ];
    for (function, reference, relative, floor) in rows {
        let mut xs: Vec<f32> = (-20000..20000).map(|i| i as f32 * 0.0051).collect();
        xs.extend((0..4000).map(|i| (i as f32 - 2000.0) * 1e-4));
        xs.extend([
            0.0,
            -0.0,
            1e-30,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            88.7,
            89.5,
            -103.9,
            -104.5,
            1e30,
        ]);
        xs.resize(xs.len().next_multiple_of(16), 1.0);
        for chunk in xs.chunks_exact(16) {
            let x: [f32; 16] = chunk.try_into().unwrap();
            let mut expected = x;
            portable().map(function, &mut expected);
            for (&x, &y) in x.iter().zip(&expected) {
                let want = reference(x as f64);
                if x.is_nan() {
                    assert!(y.is_nan(), "{function:?}({x})");
                } else if x.is_finite() && want.abs() < f32::MAX as f64 {
                    let error = (y as f64 - want).abs();
                    assert!(error <= relative * want.abs() + floor, "{function:?}({x}) = {y}, not {want}");
                }
            }
            for t in tables() {
                let mut found = x;
                t.map(function, &mut found);
                same_bits(&format!("{function:?}"), t.isa, &found, &expected);
            }
        }
        let mut edge = [f32::NEG_INFINITY; 16];
        edge[1] = 0.0;
        portable().map(Function::Exp, &mut edge);
        assert_eq!((edge[0], edge[1]), (0.0, 1.0));
    }
}

#[test]
fn norms() {
    let mut r = Random(5);
    for len in [1, 15, 16, 17, 64, 576, 577] {
        let (x, w) = (r.vector(len), r.vector(len));
        let mean = x.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / len as f64;
        let mut reference = vec![0.0; len];
        portable().norm(&x, &w, 1e-5, &mut reference);
        for i in 0..len {
            let want = x[i] as f64 / (mean + 1e-5f32 as f64).sqrt() * w[i] as f64;
            assert!((reference[i] as f64 - want).abs() <= want.abs() * 2f64.powi(-20), "{len}: {i}");
        }
        for t in tables() {
            let mut out = vec![0.0; len];
            t.norm(&x, &w, 1e-5, &mut out);
            same_bits("norm", t.isa, &out, &reference);
            let mut out = x.clone();
            t.norm_in_place(&mut out, &w, 1e-5);
            same_bits("norm in place", t.isa, &out, &reference);
            let mut out = x.clone();
            t.norm_add(&x, &w, 1e-5, &mut out);
            let sums: Vec<f32> = x.iter().zip(&reference).map(|(a, b)| a + b).collect();
            same_bits("norm and add", t.isa, &out, &sums);
        }
    }
}

#[test]
fn rotations_keep_lengths_and_undo() {
    let mut r = Random(6);
    for layout in [RopeLayout::Adjacent, RopeLayout::Halves] {
        let x = r.vector(80);
        let angles: Vec<f64> = (0..32).map(|i| 0.37 * i as f64).collect();
        let table: Vec<f32> =
            angles.iter().map(|a| a.cos() as f32).chain(angles.iter().map(|a| a.sin() as f32)).collect();
        let mut reference = x.clone();
        portable().rope(&mut reference, &table, layout);
        for (i, angle) in angles.iter().enumerate() {
            let (a, b) = match layout {
                RopeLayout::Adjacent => (2 * i, 2 * i + 1),
                RopeLayout::Halves => (i, i + 32),
            };
            let (c, s) = (angle.cos(), angle.sin());
            let want = (x[a] as f64 * c - x[b] as f64 * s, x[a] as f64 * s + x[b] as f64 * c);
            assert!(
                (reference[a] as f64 - want.0).abs() < 1e-6 && (reference[b] as f64 - want.1).abs() < 1e-6
            );
        }
        assert_eq!(reference[64..], x[64..], "channels beyond the rotary ones pass");
        for t in tables() {
            let mut found = x.clone();
            t.rope(&mut found, &table, layout);
            same_bits("rope", t.isa, &found, &reference);
        }
    }
}

#[test]
fn epilogues() {
    let mut r = Random(7);
    let (product, second, bias) = (r.vector(16 * 3), r.vector(16 * 3), r.vector(16));
    for then in [
        Finish::Store,
        Finish::Add,
        Finish::SoftCap(30.0),
        Finish::Glu(Activation::Silu),
        Finish::Glu(Activation::GeluTanh),
    ] {
        for rows in [1, 7, 16] {
            let run = |t: Table| {
                let mut out = vec![0.5f32; 3 * 20];
                let args = FinishArgs {
                    product: product.as_ptr(),
                    second: second.as_ptr(),
                    stride: 16,
                    bias: bias.as_ptr(),
                    second_bias: std::ptr::null(),
                    columns: 3,
                    out: out.as_mut_ptr(),
                    out_stride: 20,
                    rows,
                    then,
                };
                // SAFETY: three columns of 16 products and of 20 outputs.
                unsafe { t.finish(args) };
                out
            };
            let reference = run(portable());
            for c in 0..3 {
                for i in 0..20 {
                    let v = if i < 16 { (product[16 * c + i] + bias[i]) as f64 } else { 0.0 };
                    let want = match then {
                        _ if i >= rows => 0.5,
                        Finish::Store => v,
                        Finish::Add => v + 0.5,
                        Finish::SoftCap(cap) => cap as f64 * (v / cap as f64).tanh(),
                        Finish::Glu(Activation::Silu) => v / (1.0 + (-v).exp()) * second[16 * c + i] as f64,
                        Finish::Glu(Activation::GeluTanh) => {
                            let y = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3));
                            0.5 * v * (1.0 + y.tanh()) * second[16 * c + i] as f64
                        }
                    };
                    let found = reference[20 * c + i] as f64;
                    assert!((found - want).abs() <= 4e-6 * want.abs().max(0.1), "{found} for {want}");
                }
            }
            for t in tables() {
                same_bits("epilogue", t.isa, &run(t), &reference);
            }
        }
    }
}

/// Two tiles attended by some rows, against f64 softmax attention; rows in any grouping give the same bits, and stale
/// NaNs behind the mask never matter.
#[test]
fn attention() {
    let mut r = Random(8);
    for dim in [64, 80, 96, 128, 256] {
        let scale = 1.0 / (dim as f32).sqrt();
        let tiles: Vec<(Vec<u16>, Vec<u16>)> = (0..2)
            .map(|_| {
                let mut half = |n: usize| r.vector(n).iter().map(|&x| f16::from_f32(x).to_bits()).collect();
                (half(dim * BLOCK_POSITIONS), half(dim * BLOCK_POSITIONS))
            })
            .collect();
        for softcap in [0.0, 5.0] {
            let q: Vec<Vec<f32>> = (0..11).map(|_| r.vector(dim)).collect();
            // Each row sees the first tile from `lo` on, and `hi` positions of the second.
            let seen: Vec<(usize, usize)> =
                (0..11).map(|i| ([0, 3, 63][i % 3], [64, 1, 17, 64][i % 4])).collect();
            let run = |t: Table, group: usize| {
                let mut tiles = tiles.clone();
                // What no row sees is NaN.
                let last = seen.iter().map(|s| s.1).max().unwrap();
                for pos in last..BLOCK_POSITIONS {
                    for ch in 0..dim {
                        tiles[1].0[ch * BLOCK_POSITIONS + pos] = f16::NAN.to_bits();
                        tiles[1].1[pos * dim + ch] = f16::NAN.to_bits();
                    }
                }
                let mut states = vec![vec![0.0f32; state_len(dim)]; q.len()];
                let mut scratch = vec![0.0f32; scratch_len(dim, dim)];
                for (index, (keys, values)) in tiles.iter().enumerate() {
                    let rows: Vec<QueryRow> = (0..q.len())
                        .map(|i| QueryRow {
                            q: q[i].as_ptr(),
                            state: states[i].as_mut_ptr(),
                            lo: if index == 0 { seen[i].0 as u8 } else { 0 },
                            hi: if index == 0 { 64 } else { seen[i].1 as u8 },
                            first: index == 0,
                        })
                        .collect();
                    for rows in rows.chunks(group) {
                        let args = TileArgs {
                            rows: rows.as_ptr(),
                            count: rows.len(),
                            keys: keys.as_ptr(),
                            values: values.as_ptr(),
                            k_dim: dim,
                            v_dim: dim,
                            scale,
                            softcap,
                            scratch: scratch.as_mut_ptr(),
                            next: std::ptr::null(),
                        };
                        // SAFETY: tiles, states and scratch have the sizes that the arguments state.
                        unsafe { t.tile(rows, args) };
                    }
                }
                let mut out = vec![0.0; q.len() * dim];
                for (state, out) in states.iter().zip(out.chunks_exact_mut(dim)) {
                    t.output(state, out);
                }
                out
            };
            let reference = run(portable(), 1);
            for (i, q) in q.iter().enumerate() {
                let key = |tile: usize, pos: usize, ch: usize| {
                    f16::from_bits(tiles[tile].0[ch * BLOCK_POSITIONS + pos]).to_f64()
                };
                let positions: Vec<(usize, usize)> =
                    (seen[i].0..64).map(|p| (0, p)).chain((0..seen[i].1).map(|p| (1, p))).collect();
                let scores: Vec<f64> = positions
                    .iter()
                    .map(|&(t, p)| {
                        let s: f64 =
                            (0..dim).map(|ch| q[ch] as f64 * key(t, p, ch)).sum::<f64>() * scale as f64;
                        if softcap > 0.0 { softcap as f64 * (s / softcap as f64).tanh() } else { s }
                    })
                    .collect();
                let m = scores.iter().fold(f64::MIN, |m, &s| m.max(s));
                let p: Vec<f64> = scores.iter().map(|s| (s - m).exp()).collect();
                let sum: f64 = p.iter().sum();
                for ch in 0..dim {
                    let terms = positions
                        .iter()
                        .zip(&p)
                        .map(|(&(t, pos), p)| p / sum * f16::from_bits(tiles[t].1[pos * dim + ch]).to_f64());
                    let (want, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + f64::abs(t)));
                    let found = reference[i * dim + ch] as f64;
                    // Scores up to about 5 carry their f32 error into the weights.
                    assert!((found - want).abs() <= size * 4e-6, "{dim}: row {i}: {found} for {want}");
                }
            }
            for t in tables() {
                for group in [1, 2, 3, 4, 7, 11] {
                    same_bits(&format!("attention {dim} by {group}"), t.isa, &run(t, group), &reference);
                }
            }
        }
    }
}
