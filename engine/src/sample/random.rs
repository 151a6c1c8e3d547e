//! The randomness of a draw: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
//! as easy as 1, 2, 3", SC 2011), addressed by (seed, choice, position, token) and read through the Gumbel-max form.
//!
//! There is no state: a noise is a function of its address, so no draw depends on another one, and policies with the
//! same seed share it. It knows nothing of logits.
//!
//! Gumbel noise is −ln of an exponential arrival time, and the token with the greatest log-weight plus noise is a draw.
//! Arrivals are made in blocks of 64 tokens so that one word tells how much a whole block can gain:
//! ```text
//! first(block)   = E(block's word) / 64         the earliest of 64 independent arrivals
//! arrival(token) = first(block)                 for the block's first, any of the 64 alike
//!                = first(block) + E(own word)   for every other: exponential arrivals have no memory
//! E(word) = −ln((word + 1/2) / 2³²);  noise(token) = −ln(arrival(token))
//! ```
//! That is 64 independent exponentials exactly. A word per token instead costs about a millisecond for 262,144 tokens,
//! near a small model's step; this way most blocks are passed over with a sixty-fourth of the words.
//!
//! The address in full, so that any draw can be repeated elsewhere:
//! ```text
//! key     = [seed low, seed high]
//! counter = [what, position low, choice low, position bits 32..48 | choice bits 32..48 << 16]
//! token's word:   output[token % 4] at what = token / 4
//! block's word:   output[block % 4] at what = 2³¹ + block / 4, block = token / 64
//! block's first:  token 64 · block + output[0] % 64 at what = 2³¹ + 2³⁰ + block
//! coin of XTC:    (output[0] + 1/2) / 2³² at what = 2³⁰
//! ```

/// Tokens that share the word of their earliest arrival.
pub(super) const BLOCK: usize = 64;
/// No token's noise lies above this: −ln(2⁻³³ / 64) = 27.0327, rounded up. The least is −ln(33 ln 2 · 65/64) = −3.1456.
pub(super) const MAX_NOISE: f64 = 27.04;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
const COIN: u32 = 1 << 30;
const BLOCK_WORDS: u32 = 1 << 31;
const BLOCK_FIRSTS: u32 = BLOCK_WORDS + (1 << 30);
const LN_BLOCK: f64 = 4.158_883_083_359_672; // ln 64

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

    fn words(&self, what: u32) -> [u32; 4] {
        let [position, choice, high] = self.address;
        self.keys.iter().fold([what, position, choice, high], |counter, key| round(counter, *key))
    }

    /// The words at sixteen counters from `what`: word `4·i + j` of the run is at `[j][i]`.
    ///
    /// The counters advance side by side so that the compiler can use vectors; one at a time costs twice as much.
    fn run_of_words(&self, what: u32) -> Words {
        let [position, choice, high] = self.address;
        let mut c0 = [0; BLOCK / 4];
        for (i, counter) in c0.iter_mut().enumerate() {
            *counter = what + i as u32;
        }
        let (mut c1, mut c2, mut c3) = ([position; BLOCK / 4], [choice; BLOCK / 4], [high; BLOCK / 4]);
        for key in &self.keys {
            for i in 0..BLOCK / 4 {
                [c0[i], c1[i], c2[i], c3[i]] = round([c0[i], c1[i], c2[i], c3[i]], *key);
            }
        }
        Words([c0, c1, c2, c3])
    }

    /// The words of a block's tokens.
    pub(super) fn token_words(&self, block: u32) -> Words {
        self.run_of_words(block * (BLOCK / 4) as u32)
    }

    /// The words of 64 blocks from `block`, a multiple of four.
    pub(super) fn block_words(&self, block: u32) -> Words {
        self.run_of_words(BLOCK_WORDS + block / 4)
    }

    /// The earliest arrival in a block.
    pub(super) fn earliest(&self, block: u32) -> Earliest {
        let word = self.words(BLOCK_WORDS + block / 4)[block as usize % 4];
        let token = block * BLOCK as u32 + self.words(BLOCK_FIRSTS + block)[0] % BLOCK as u32;
        Earliest { block, token, arrival: exponential(word) / BLOCK as f64 }
    }

    /// The noise of one token of `earliest`'s block.
    pub(super) fn of_token(&self, token: u32, earliest: &Earliest) -> f64 {
        earliest.noise_of(token, self.words(token / 4)[token as usize % 4])
    }

    /// A uniform number in (0, 1) that belongs to no token.
    pub(super) fn coin(&self) -> f64 {
        uniform(self.words(COIN)[0])
    }
}

/// Sixty-four words.
pub(super) struct Words([[u32; BLOCK / 4]; 4]);

impl Words {
    /// The word of the `index`-th token or block of the run.
    pub(super) fn get(&self, index: usize) -> u32 {
        self.0[index % 4][index / 4]
    }
}

/// A block's earliest arrival and the token that it belongs to.
pub(super) struct Earliest {
    pub(super) block: u32,
    pub(super) token: u32,
    arrival: f64,
}

impl Earliest {
    /// The greatest noise in the block, that of [`Earliest::token`].
    pub(super) fn noise(&self) -> f64 {
        -libm::log(self.arrival)
    }

    /// The noise of a token of the block whose word is `word`.
    pub(super) fn noise_of(&self, token: u32, word: u32) -> f64 {
        if token == self.token { self.noise() } else { -libm::log(self.arrival + exponential(word)) }
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

fn exponential(word: u32) -> f64 {
    -libm::log(uniform(word))
}

/// A token, not its block's first, whose word is below this has less noise than `nats`, for certain (others may, too).
///
/// For a uniform u, −ln u ≥ 1 − u, and the arrival is later than its own exponential: the noise is at most −ln(1 − u) and
/// reaches `nats` only if 1 − u ≤ e^−nats. The exponential is a cheap one, hence the slack.
pub(super) fn least_token_word(nats: f64) -> u32 {
    if nats <= 0.0 {
        return 0;
    }
    let reach = f64::from(super::math::exp_nonpositive(-nats as f32)) * 1.0001;
    // A float that is negative becomes 0 here.
    (4_294_967_296.0 * (1.0 - reach) - 2.0) as u32
}

/// A block whose word is below this has no token with `nats` of noise.
pub(super) fn least_block_word(nats: f64) -> u32 {
    least_token_word(nats - LN_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published known answers of Random123 for philox4x32-10.
    #[test]
    fn philox_gives_the_published_words() {
        let noise = Noise::new(0, 0, 0);
        assert_eq!(noise.words(0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Noise::new(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(ones.words(u32::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = Noise {
            address: [0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            ..Noise::new(0x299f_31d0_a409_3822, 0, 0)
        };
        assert_eq!(pi.words(0x243f_6a88), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn a_word_below_the_bound_never_reaches_the_noise_asked_for() {
        let earliest = |arrival| Earliest { block: 0, token: 0, arrival };
        for nats in
            [-3.0, 0.0, 0.01, 0.5, 1.0, 3.0, 4.2, 8.0, 15.0, 20.0, 22.0, 22.8, 22.87, 23.0, 26.0, 27.0, 90.0]
        {
            let least = least_token_word(nats);
            if least > 0 {
                assert!(earliest(0.0).noise_of(1, least - 1) < nats, "{nats}: {least}");
            }
            let least = least_block_word(nats);
            if least > 0 {
                assert!(earliest(exponential(least - 1) / 64.0).noise() < nats, "{nats}: {least}");
            }
        }
        let most = earliest(exponential(u32::MAX) / 64.0).noise();
        let least = earliest(exponential(0) / 64.0).noise_of(1, 0);
        assert!(most < MAX_NOISE && most - least < 30.2, "{most} {least}");
    }
}
