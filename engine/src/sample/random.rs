//! The randomness of a draw: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
//! as easy as 1, 2, 3", SC 2011), addressed by (seed, choice, position, token) and read through the Gumbel-max form.
//!
//! There is no state: a word is a function of its address, so no draw depends on another one. It knows nothing of
//! logits.
//!
//! The address in full, so that any draw can be repeated elsewhere:
//! key     = [seed low, seed high]
//! counter = [token / 4, position low, choice low, position bits 32..48 | choice bits 32..48 << 16]
//! word of a token = output[token % 4]; the coin of XTC = output[0] at counter[0] = 0xffff_ffff (no token is there)
//! uniform = (word + 1/2) / 2³²;  Gumbel noise = −ln(−ln(uniform))

/// Tokens whose words [`Noise::block`] gives at once.
pub(super) const BLOCK: usize = 64;
/// No token's noise lies above this: −ln(−ln(1 − 2⁻³³)) = 22.8739, rounded up. The least is −3.1301, so two tokens'
/// noises differ by at most 26.1 nats.
pub(super) const MAX_GUMBEL: f64 = 22.875;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
const COIN: u32 = u32::MAX;

/// The noise of one choice at one position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    keys: [[u32; 2]; ROUNDS],
    address: [u32; 3],
}

impl Noise {
    /// Choice and position count up to 2⁴⁸; higher bits are not part of the address.
    pub(super) fn new(seed: u64, choice: u64, position: u64) -> Self {
        let mut keys = [[0; 2]; ROUNDS];
        let mut key = [seed as u32, (seed >> 32) as u32];
        for round in &mut keys {
            *round = key;
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let high = ((position >> 32) as u32 & 0xffff) | (((choice >> 32) as u32) << 16);
        Noise { keys, address: [position as u32, choice as u32, high] }
    }

    /// The words of tokens 4·`group` to 4·`group` + 3.
    fn group(&self, group: u32) -> [u32; 4] {
        let [a, b, c] = self.address;
        let mut counter = [group, a, b, c];
        for key in &self.keys {
            counter = round(counter, *key);
        }
        counter
    }

    /// The word of one token.
    pub(super) fn word(&self, token: u32) -> u32 {
        self.group(token / 4)[token as usize % 4]
    }

    /// The words of the [`BLOCK`] tokens from `first` (a multiple of four): that of token `first + 4·i + j` is at `[j][i]`.
    ///
    /// Sixteen counters advance side by side so that the compiler can use vectors; one at a time costs twice as much.
    pub(super) fn block(&self, first: u32) -> [[u32; BLOCK / 4]; 4] {
        let mut words = [[0; BLOCK / 4]; 4];
        for (i, group) in words[0].iter_mut().enumerate() {
            *group = first / 4 + i as u32;
        }
        for (row, &part) in words[1..].iter_mut().zip(&self.address) {
            *row = [part; BLOCK / 4];
        }
        for key in &self.keys {
            for i in 0..BLOCK / 4 {
                let next = round([words[0][i], words[1][i], words[2][i], words[3][i]], *key);
                for (row, value) in words.iter_mut().zip(next) {
                    row[i] = value;
                }
            }
        }
        words
    }

    /// A uniform number in (0, 1) that belongs to no token.
    pub(super) fn coin(&self) -> f64 {
        uniform(self.group(COIN)[0])
    }
}

#[inline(always)]
fn round(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let low = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
    let high = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
    [
        (high >> 32) as u32 ^ counter[1] ^ key[0],
        high as u32,
        (low >> 32) as u32 ^ counter[3] ^ key[1],
        low as u32,
    ]
}

fn uniform(word: u32) -> f64 {
    (f64::from(word) + 0.5) / 4_294_967_296.0
}

/// Gumbel noise of a word.
pub(super) fn gumbel(word: u32) -> f64 {
    -libm::log(-libm::log(uniform(word)))
}

/// A word below this has a Gumbel noise of less than `nats`, for certain (some at or above it have, too).
///
/// For a uniform u, −ln u ≥ 1 − u, so the noise −ln(−ln u) is at most −ln(1 − u): it reaches `nats` only if
/// 1 − u ≤ e^−nats. The exponential is a cheap one, hence the slack.
pub(super) fn least_word(nats: f64) -> u32 {
    if nats <= 0.0 {
        return 0;
    }
    let reach = f64::from(super::math::exp_nonpositive(-nats as f32)) * 1.0001;
    // A float that is negative becomes 0 here.
    (4_294_967_296.0 * (1.0 - reach) - 2.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published known answers of Random123 for philox4x32-10.
    #[test]
    fn philox_gives_the_published_words() {
        let noise = Noise::new(0, 0, 0);
        assert_eq!(noise.group(0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Noise::new(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(ones.group(u32::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = Noise {
            address: [0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            ..Noise::new(0x299f_31d0_a409_3822, 0, 0)
        };
        assert_eq!(pi.group(0x243f_6a88), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn a_word_below_the_bound_never_reaches_the_noise_asked_for() {
        for nats in [-3.0, 0.0, 0.01, 0.5, 1.0, 3.0, 8.0, 15.0, 20.0, 22.0, 22.8, 22.87, 23.0, 26.0, 90.0] {
            let least = least_word(nats);
            if least > 0 {
                assert!(gumbel(least - 1) < nats, "{nats}: {least}");
            }
        }
        assert!(gumbel(u32::MAX) < MAX_GUMBEL);
        assert!(gumbel(u32::MAX) - gumbel(0) < 26.1);
    }
}
