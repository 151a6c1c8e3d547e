//! The encodings a stored weight can have: how many elements a block holds and how many bytes it takes.
//!
//! It does not know how a block is decoded (`blocks`) nor in which container it lies (`files`).

use serde::{Deserialize, Serialize};

/// How the elements of one tensor are stored, row by row, in blocks along the row.
///
/// Names and layouts are GGUF's (`gguf-py/gguf/constants.py`, `ggml-common.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(non_camel_case_types, missing_docs)] // the field's own names
pub enum Encoding {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl Encoding {
    /// Every encoding that plumb reads.
    pub const ALL: [Encoding; 15] = {
        use Encoding::*;
        [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS]
    };

    /// Elements in one block; 1 for the float encodings.
    pub const fn block_len(self) -> usize {
        use Encoding::*;
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL => 32,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS => 256,
        }
    }

    /// Bytes that one block takes in a weight file.
    pub const fn block_bytes(self) -> usize {
        use Encoding::*;
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 | IQ4_NL => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q2_K => 84,
            Q3_K => 110,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
            IQ4_XS => 136,
        }
    }

    /// True for F32, F16 and BF16: products with these use float activations; all others use int8 activations.
    pub const fn is_float(self) -> bool {
        matches!(self, Encoding::F32 | Encoding::F16 | Encoding::BF16)
    }

    /// The encoding's usual name, as it stands in file names and tools.
    pub const fn name(self) -> &'static str {
        use Encoding::*;
        match self {
            F32 => "F32",
            F16 => "F16",
            BF16 => "BF16",
            Q4_0 => "Q4_0",
            Q4_1 => "Q4_1",
            Q5_0 => "Q5_0",
            Q5_1 => "Q5_1",
            Q8_0 => "Q8_0",
            Q2_K => "Q2_K",
            Q3_K => "Q3_K",
            Q4_K => "Q4_K",
            Q5_K => "Q5_K",
            Q6_K => "Q6_K",
            IQ4_NL => "IQ4_NL",
            IQ4_XS => "IQ4_XS",
        }
    }

    /// Bytes of one row of `len` elements, or `None` where `len` is not a whole number of blocks or overflows.
    pub fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
