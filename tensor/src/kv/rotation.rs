//! The rotation of keys and values before they are packed: signs, then a Walsh-Hadamard transform in blocks.
//!
//! It spreads a channel that stands out over its block, so that few bits serve all channels. Queries are turned the
//! same way, which leaves every score what it was but for rounding; values are turned back in the attention's output.
//! Blocks are the largest power of two that divides the head size (80 is five of 16). The butterflies run in f32, from
//! neighbours to the farthest, and one factor follows; every device gives these bits.

/// Channels of one block.
pub const fn block_len(dim: usize) -> usize {
    1 << dim.trailing_zeros()
}

/// The fixed signs of a layer: 1 or −1 per channel, from SplitMix64 seeded by the layer (keys and values alike).
pub fn signs(layer: usize, dim: usize) -> Vec<f32> {
    let mut state = (layer as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    (0..dim).map(|_| if next() >> 63 == 0 { 1.0 } else { -1.0 }).collect()
}

/// Turns one head.
#[inline(always)]
pub fn rotate(x: &mut [f32], signs: &[f32]) {
    for (x, s) in x.iter_mut().zip(signs) {
        *x *= s;
    }
    transform(x);
}

/// Turns one head back.
#[inline(always)]
pub fn rotate_back(x: &mut [f32], signs: &[f32]) {
    transform(x);
    for (x, s) in x.iter_mut().zip(signs) {
        *x *= s;
    }
}

/// The transform of each block, its own inverse but for rounding.
#[inline(always)]
fn transform(x: &mut [f32]) {
    let len = block_len(x.len());
    let factor = 1.0 / (len as f32).sqrt();
    let mut half = 1;
    while half < len {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    for x in x {
        *x *= factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_lengths_and_is_undone() {
        for dim in [16, 64, 80, 96, 128, 256] {
            let x: Vec<f32> = (0..dim).map(|i| ((i * 37 + 11) % 101) as f32 - 50.0).collect();
            let signs = signs(3, dim);
            let mut y = x.clone();
            rotate(&mut y, &signs);
            let square = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            assert!((square(&x) / square(&y) - 1.0).abs() < 1e-6, "{dim}");
            assert_ne!(x, y);
            rotate_back(&mut y, &signs);
            assert!(x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-4), "{dim}");
        }
    }

    #[test]
    fn each_entry_is_the_hadamard_matrix() {
        // H[i][j] = (−1)^(number of common one bits of i and j) / √n: Sylvester's construction.
        let n = 64;
        for i in 0..n {
            let mut x = vec![0.0; n];
            x[i] = 1.0;
            rotate(&mut x, &vec![1.0; n]);
            for (j, x) in x.iter().enumerate() {
                let expected = if (i & j).count_ones() % 2 == 0 { 0.125 } else { -0.125 };
                assert_eq!(*x, expected, "{i} {j}");
            }
        }
    }

    #[test]
    fn layers_have_their_own_signs_of_both_kinds() {
        let (a, b) = (signs(0, 256), signs(1, 256));
        assert_ne!(a, b);
        for s in [a, b] {
            let minus = s.iter().filter(|&&s| s < 0.0).count();
            assert!((90..166).contains(&minus), "{minus}");
        }
    }
}
