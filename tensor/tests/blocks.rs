//! Every encoding decodes bit for bit as the `gguf` package does: NaN scales, infinities, subnormals and noise included.

use sha2::{Digest, Sha256};
use tensor::{Encoding, blocks};

const GOLDEN: &[u8] = include_bytes!("../../golden/blocks.bin");
const RANDOM_BLOCKS: usize = 2048;

/// All NaNs are the same NaN.
fn bits(x: f32) -> u32 {
    if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }
}

fn decode(encoding: Encoding, bytes: &[u8]) -> Vec<u32> {
    let mut out = vec![0.0; bytes.len() / encoding.block_bytes() * encoding.block_len()];
    blocks::decode_row(encoding, bytes, &mut out);
    out.into_iter().map(bits).collect()
}

/// `n` bytes of SplitMix64 from seed 0, as golden/blocks.py draws them.
fn random_bytes(n: usize) -> Vec<u8> {
    let draw = |i: u64| {
        let z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    };
    let mut bytes: Vec<u8> = (1..=n.div_ceil(8) as u64).flat_map(|i| draw(i).to_le_bytes()).collect();
    bytes.truncate(n);
    bytes
}

#[test]
fn every_encoding_decodes_to_the_reference_bits() {
    let mut golden = GOLDEN;
    let mut take = |n: usize| golden.split_off(..n).expect("the golden file is whole");
    for encoding in Encoding::ALL {
        let name_len = usize::from(take(1)[0]);
        assert_eq!(take(name_len), encoding.name().as_bytes());
        let count = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;

        let stored = take(count * encoding.block_bytes());
        let expected: Vec<u32> = take(count * encoding.block_len() * 4)
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let found = decode(encoding, stored);
        if let Some(i) = (0..expected.len()).find(|&i| expected[i] != found[i]) {
            panic!("{encoding} value {i}: expected {:#x}, found {:#x}", expected[i], found[i]);
        }

        let mut hash = Sha256::new();
        for word in decode(encoding, &random_bytes(RANDOM_BLOCKS * encoding.block_bytes())) {
            hash.update(word.to_le_bytes());
        }
        assert_eq!(hash.finalize()[..], *take(32), "{encoding}: random blocks");
    }
    assert!(golden.is_empty());
}

#[test]
fn an_empty_row_decodes_to_nothing() {
    for encoding in Encoding::ALL {
        blocks::decode_row(encoding, &[], &mut []);
    }
}
