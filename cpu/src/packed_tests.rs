//! Packing and attention over codes: against goldens of another implementation, against f64, and bit for bit on every
//! table.

use half::f16;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tensor::kv::codec::{pack_group, unpack_group};
use tensor::kv::{
    BLOCK_POSITIONS, Bits, Codes, Format, GROUP_POSITIONS, KvLayout, KvSettings, Side, SideKind,
};

use crate::attention::packed::{Half, MixedArgs, Sinks};
use crate::attention::store::PackArgs;
use crate::attention::{QueryRow, scratch_len, state_len};
use crate::table::Table;
use crate::tests::{Random, portable, same_bits, tables};

fn bits(n: u32) -> Bits {
    Format::ALL.into_iter().filter_map(Format::bits).find(|b| b.get() == n).unwrap()
}

fn side(kind: SideKind, dim: usize, bits: Bits) -> (Side, Codes) {
    let format = Format::Packed(bits);
    let mut layout = KvLayout::new(KvSettings::new(format, format));
    layout.push(1, dim, dim, None);
    let side = match kind {
        SideKind::Keys => layout.layers[0].keys,
        SideKind::Values => layout.layers[0].values,
    };
    (side, side.codes.unwrap())
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    kind: String,
    dim: usize,
    bits: u32,
    pattern: String,
    seed: u64,
    half: usize,
    sinks: usize,
    sha256: String,
}

/// The halves that `golden/kv/make.py` makes.
fn inputs(case: &Case) -> Vec<u16> {
    let mut r = Random(case.seed);
    let half = |i: usize| {
        let u = r.bits() >> 40;
        let x = u as f64 / (1u64 << 24) as f64 * 8.0 - 4.0;
        match case.pattern.as_str() {
            "tiny" => return (u & 0x83ff) as u16,
            "outliers" if i % 17 == 3 => f16::from_f64(x * 500.0),
            "midpoints" => f16::from_f64((u % (2 * ((1 << case.bits) - 1) + 1)) as f64 / 4.0),
            "constant" => f16::from_f64(1.5),
            _ => f16::from_f64(x),
        }
        .to_bits()
    };
    (0..case.dim * BLOCK_POSITIONS).map(half).collect()
}

fn pack(t: Table, side: Side, bits: Bits, halves: &[u16], half: usize, sinks: usize) -> Vec<u8> {
    let mut out = vec![0xaa; side.group_bytes(bits)];
    // SAFETY: a head's halves and a group's bytes, as the arguments say.
    unsafe { t.pack(PackArgs { side, bits, halves: halves.as_ptr(), half, sinks, out: out.as_mut_ptr() }) };
    out
}

/// The reference codec gives NumPy's values, and every table's kernel the reference's bytes.
#[test]
fn packing() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/kv/codec.json")).unwrap();
    assert!(golden.cases.len() >= 300);
    for case in &golden.cases {
        let kind = if case.kind == "keys" { SideKind::Keys } else { SideKind::Values };
        let bits = bits(case.bits);
        let (side, _) = side(kind, case.dim, bits);
        let halves = inputs(case);
        let mut group = vec![0; side.group_bytes(bits)];
        pack_group(&side, bits, &halves, case.half, case.sinks, &mut group);
        let what = format!("{} {} of {} bits, {}", case.kind, case.dim, case.bits, case.pattern);
        let values = unpack_group(&side, bits, &group);
        let bytes: Vec<u8> = values.iter().flat_map(|x| (x + 0.0).to_le_bytes()).collect();
        let hash: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hash, case.sha256, "{what}");
        for t in tables() {
            let found = pack(t, side, bits, &halves, case.half, case.sinks);
            assert_eq!(found, group, "{what}, {}", t.isa.name());
        }
    }
}

/// A NaN or an infinity makes its group NaN, and no other.
#[test]
fn broken_members_stay_broken() {
    for bad in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
        let (side, codes) = side(SideKind::Keys, 16, bits(4));
        let mut halves = vec![f16::ONE.to_bits(); 16 * BLOCK_POSITIONS];
        halves[5 * BLOCK_POSITIONS + 3] = bad.to_bits();
        let mut group = vec![0; side.group_bytes(codes.bits)];
        pack_group(&side, codes.bits, &halves, 0, 0, &mut group);
        for (i, x) in unpack_group(&side, codes.bits, &group).iter().enumerate() {
            assert_eq!(x.is_nan(), i / GROUP_POSITIONS == 5, "{i}");
        }
        for t in tables() {
            assert_eq!(pack(t, side, codes.bits, &halves, 0, 0), group, "{}", t.isa.name());
        }
    }
}

/// One side of a block in all its forms.
struct Block {
    side: Side,
    bits: Option<Bits>,
    halves: Vec<u16>,
    groups: [Vec<u8>; 2],
    /// What the groups stand for.
    decoded: [Vec<f32>; 2],
}

impl Block {
    fn new(kind: SideKind, dim: usize, format: Format, sinks: usize, r: &mut Random) -> Block {
        let halves: Vec<u16> =
            r.vector(dim * BLOCK_POSITIONS).iter().map(|&x| f16::from_f32(x).to_bits()).collect();
        let bits = format.bits();
        let (side, _) = side(kind, dim, bits.unwrap_or(self::bits(8)));
        let groups = [0, 1].map(|half| match bits {
            None => Vec::new(),
            Some(b) => pack(portable(), side, b, &halves, half, if half == 0 { sinks } else { 0 }),
        });
        let decoded = [0, 1].map(|half| bits.map_or(Vec::new(), |b| unpack_group(&side, b, &groups[half])));
        Block { side, bits, halves, groups, decoded }
    }

    /// Where the halves of the tile lie for a query that sees `packed`.
    fn at(&self, packed: [bool; 2]) -> [Half; 2] {
        std::array::from_fn(|h| match self.bits {
            Some(b) if packed[h] => Half { ptr: self.groups[h].as_ptr(), bits: b.get() },
            _ => Half { ptr: self.halves.as_ptr().cast(), bits: 0 },
        })
    }

    /// What a query that sees `packed` finds, f64.
    fn value(&self, packed: [bool; 2], sinks: usize, position: usize, channel: usize) -> f64 {
        let (dim, half) = (self.side.dim, position / GROUP_POSITIONS);
        let (at, within) = match self.side.kind {
            SideKind::Keys => {
                (channel * BLOCK_POSITIONS + position, channel * GROUP_POSITIONS + position % GROUP_POSITIONS)
            }
            SideKind::Values => (position * dim + channel, position % GROUP_POSITIONS * dim + channel),
        };
        match self.bits {
            Some(_) if packed[half] && position >= sinks => self.decoded[half][within] as f64,
            _ => f16::from_bits(self.halves[at]).to_f64(),
        }
    }

    /// The sinks' halves, 32 stored.
    fn sinks(&self) -> Vec<u16> {
        let dim = self.side.dim;
        (0..dim * 32)
            .map(|i| match self.side.kind {
                SideKind::Keys => self.halves[i / 32 * BLOCK_POSITIONS + i % 32],
                SideKind::Values => self.halves[i],
            })
            .collect()
    }
}

/// One tile attended by some rows over every pair of formats and every mix of packed and f16 halves, against f64; rows in
/// any grouping and every table give the same bits.
#[test]
fn attention_over_codes() {
    let mut r = Random(41);
    let mut run = 0;
    for dim in [16, 64, 80, 96, 128, 256] {
        for keys in Format::ALL {
            for values in Format::ALL {
                run += 1;
                // Every format of each side at each size, and every pair at some size.
                if keys != values && run % 6 != dim / 16 % 6 {
                    continue;
                }
                for packed in [[true, true], [true, false], [false, true]] {
                    one_tile(&mut r, dim, keys, values, packed, [0, 4, 20][run % 3]);
                }
            }
        }
    }
}

fn one_tile(r: &mut Random, dim: usize, keys: Format, values: Format, packed: [bool; 2], sinks: usize) {
    let sinks = if packed[0] { sinks } else { 0 };
    let (keys, values) = (
        Block::new(SideKind::Keys, dim, keys, sinks, r),
        Block::new(SideKind::Values, dim, values, sinks, r),
    );
    let (sink_keys, sink_values) = (keys.sinks(), values.sinks());
    let q: Vec<Vec<f32>> = (0..11).map(|_| r.vector(dim)).collect();
    // A packed half is seen to its end; a row may begin within it.
    let end = if packed[1] { [64, 64, 64] } else { [64, 33, 40] };
    let seen: Vec<(usize, usize)> = (0..11).map(|i| ([0, 3, 0, 31][i % 4], end[i % 3])).collect();
    let scale = 1.0 / (dim as f32).sqrt();
    let run = |t: Table, group: usize| {
        let mut states = vec![vec![0.0f32; state_len(dim)]; q.len()];
        let mut scratch = vec![f32::NAN; scratch_len(dim, dim)];
        let rows: Vec<QueryRow> = (0..q.len())
            .map(|i| QueryRow {
                q: q[i].as_ptr(),
                state: states[i].as_mut_ptr(),
                lo: seen[i].0 as u8,
                hi: seen[i].1 as u8,
                first: true,
            })
            .collect();
        for rows in rows.chunks(group) {
            let null = std::ptr::null();
            let args = MixedArgs {
                rows: rows.as_ptr(),
                count: rows.len(),
                keys: keys.at(packed),
                values: values.at(packed),
                sinks: Sinks {
                    count: sinks,
                    stored: 32,
                    keys: if keys.bits.is_some() { sink_keys.as_ptr() } else { null },
                    values: if values.bits.is_some() { sink_values.as_ptr() } else { null },
                },
                k_dim: dim,
                v_dim: dim,
                scale,
                softcap: 0.0,
                scratch: scratch.as_mut_ptr(),
                next: [std::ptr::null(); 2],
            };
            // SAFETY: tiles, states and scratch have the sizes that the arguments state.
            unsafe { t.mixed_tile(rows, args) };
        }
        let mut out = vec![0.0; q.len() * dim];
        for (state, out) in states.iter().zip(out.chunks_exact_mut(dim)) {
            t.output(state, out);
        }
        out
    };
    let what = format!("{dim}: keys {:?}, values {:?}, {packed:?}, {sinks} sinks", keys.bits, values.bits);
    let reference = run(portable(), 1);
    for (i, q) in q.iter().enumerate() {
        let positions = seen[i].0..seen[i].1;
        let score = |p: usize| {
            (0..dim).map(|ch| q[ch] as f64 * keys.value(packed, sinks, p, ch)).sum::<f64>() * scale as f64
        };
        let scores: Vec<f64> = positions.clone().map(score).collect();
        let m = scores.iter().fold(f64::MIN, |m, &s| m.max(s));
        let p: Vec<f64> = scores.iter().map(|s| (s - m).exp()).collect();
        let sum: f64 = p.iter().sum();
        for ch in (0..dim).step_by(7) {
            let terms =
                positions.clone().zip(&p).map(|(pos, p)| p / sum * values.value(packed, sinks, pos, ch));
            let (want, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + f64::abs(t)));
            let found = reference[i * dim + ch] as f64;
            assert!((found - want).abs() <= (size + 1.0) * 8e-6, "{what}: row {i}: {found} for {want}");
        }
    }
    for t in tables() {
        for group in [1, 4, 11] {
            same_bits(&format!("{what} by {group}"), t.isa, &run(t, group), &reference);
        }
    }
}
