//! A hash over the bits of logits, by which two runs show that they gave the same answer.

use xxhash_rust::xxh3::Xxh3;

/// A running XXH3-128 over rows of logits, each as little-endian f32 bits.
#[derive(Clone, Default)]
pub struct Fingerprint(Xxh3);

impl Fingerprint {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub fn update(&mut self, logits: &[f32]) {
        // One call per piece of 1 KiB: the hash is of the concatenation, however it is cut.
        let mut bytes = [0u8; 1024];
        for piece in logits.chunks(bytes.len() / 4) {
            for (to, x) in bytes.chunks_exact_mut(4).zip(piece) {
                to.copy_from_slice(&x.to_bits().to_le_bytes());
            }
            self.0.update(&bytes[..piece.len() * 4]);
        }
    }

    /// The hash of all rows so far.
    pub fn value(&self) -> u128 {
        self.0.digest128()
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.value())
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
