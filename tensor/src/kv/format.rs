//! The formats a side of the cache (keys or values) can be kept in, and how a cache is set up.
//!
//! It knows names and sizes, not the codec (`codec`) nor where things lie (`layout`).

use std::fmt;
use std::str::FromStr;

use crate::kv::{BLOCK_POSITIONS, GROUP_POSITIONS};
use crate::{Error, Result};

/// How one side of the cache is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// Halves, every position.
    #[default]
    F16,
    /// Codes of this many bits (2, 3, 4, 5, 6 or 8) in groups of 32, with f16 scale and zero; the window and the sinks
    /// are halves.
    Packed(Bits),
}

/// Bits of one code: 2, 3, 4, 5, 6 or 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bits(u8);

impl Bits {
    /// The bits as a number.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The largest code.
    pub const fn largest(self) -> u32 {
        (1 << self.0) - 1
    }
}

impl Format {
    /// Every format, the widest first.
    pub const ALL: [Format; 7] = [
        Format::F16,
        Format::Packed(Bits(8)),
        Format::Packed(Bits(6)),
        Format::Packed(Bits(5)),
        Format::Packed(Bits(4)),
        Format::Packed(Bits(3)),
        Format::Packed(Bits(2)),
    ];

    /// Bits of a code; `None` for halves.
    pub fn bits(self) -> Option<Bits> {
        match self {
            Format::F16 => None,
            Format::Packed(bits) => Some(bits),
        }
    }

    /// Whether its keys are rotated unless told otherwise: codes of at most 4 bits.
    pub fn is_narrow(self) -> bool {
        self.bits().is_some_and(|b| b.get() <= 4)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Format::F16 => f.write_str("f16"),
            Format::Packed(bits) => write!(f, "q{}", bits.0),
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = || Format::ALL.map(|f| f.to_string()).join(", ");
        let found = Format::ALL.into_iter().find(|f| f.to_string() == name);
        found.ok_or_else(|| Error::malformed("KV format", format!("one of {}", known()), name.to_owned()))
    }
}

/// Most sinks that a cache can keep: they lie in the first group.
pub const MOST_SINKS: usize = GROUP_POSITIONS;

/// How a cache stores keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvSettings {
    /// Format of the keys.
    pub keys: Format,
    /// Format of the values.
    pub values: Format,
    /// Positions before a query that it sees as halves, at least: the group of positions `32g..32g + 32` is seen packed
    /// by the query at position t exactly when `32(g + 1) <= t + 1 − window`.
    pub window: usize,
    /// First positions that stay halves, at most [`MOST_SINKS`].
    pub sinks: usize,
    /// Keys are rotated before they are stored.
    pub rotate_keys: bool,
    /// Values are rotated before they are stored, and the attention's output back.
    pub rotate_values: bool,
    /// Every half is stored one unit in the last place off: the control of comparisons, which shows what any other
    /// rounding does.
    pub nudged: bool,
}

/// Positions that queries see as halves unless told otherwise.
pub const DEFAULT_WINDOW: usize = 128;

/// Sinks of a format with codes of at most 4 bits unless told otherwise.
pub const DEFAULT_SINKS: usize = 4;

impl KvSettings {
    /// Formats with the default window, sinks and rotation.
    pub fn new(keys: Format, values: Format) -> Self {
        let narrow = keys.is_narrow() || values.is_narrow();
        KvSettings {
            keys,
            values,
            window: DEFAULT_WINDOW,
            sinks: if narrow { DEFAULT_SINKS } else { 0 },
            rotate_keys: keys.is_narrow(),
            rotate_values: false,
            nudged: false,
        }
    }

    /// Everything that distinguishes it, for records: figures of different classes are not comparable.
    pub fn class(&self) -> String {
        let nudged = if self.nudged { "-nudged" } else { "" };
        if self.is_f16() {
            return format!("f16{nudged}");
        }
        let rotated = match (self.rotate_keys, self.rotate_values) {
            (false, false) => "",
            (true, false) => "-rk",
            (false, true) => "-rv",
            (true, true) => "-rkv",
        };
        format!("{self}-w{}-s{}{rotated}{nudged}", self.window, self.sinks)
    }

    /// Both sides as halves.
    pub fn is_f16(&self) -> bool {
        self.keys == Format::F16 && self.values == Format::F16
    }

    /// Groups that the query at `position` sees packed.
    pub fn packed_groups(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window) / GROUP_POSITIONS
    }

    /// Checks what a type cannot.
    ///
    /// # Errors
    /// More sinks than [`MOST_SINKS`].
    pub fn check(&self) -> Result<()> {
        if self.sinks > MOST_SINKS {
            let expected = format!("at most {MOST_SINKS}");
            return Err(Error::malformed("KV sinks", expected, self.sinks.to_string()));
        }
        Ok(())
    }

    /// Positions of storage for the sinks: 16 are stored together.
    pub fn stored_sinks(&self) -> usize {
        self.sinks.next_multiple_of(16)
    }
}

impl Default for KvSettings {
    fn default() -> Self {
        KvSettings::new(Format::F16, Format::F16)
    }
}

/// `keys/values`, or one name where they are the same.
impl fmt::Display for KvSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys == self.values {
            write!(f, "{}", self.keys)
        } else {
            write!(f, "{}/{}", self.keys, self.values)
        }
    }
}

impl FromStr for KvSettings {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let (keys, values) = name.split_once('/').unwrap_or((name, name));
        Ok(KvSettings::new(keys.parse()?, values.parse()?))
    }
}

const _: () = assert!(BLOCK_POSITIONS == 2 * GROUP_POSITIONS, "a block is two groups");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for keys in Format::ALL {
            for values in Format::ALL {
                let s = KvSettings::new(keys, values);
                assert_eq!(s.to_string().parse::<KvSettings>().unwrap(), s);
            }
        }
        for bad in ["q7", "q1", "q16", "", "q4/", "f16/q9", "Q4"] {
            let e = bad.parse::<KvSettings>().unwrap_err().to_string();
            assert!(e.contains("f16, q8, q6, q5, q4, q3, q2"), "{bad}: {e}");
        }
    }

    #[test]
    fn a_group_is_packed_when_the_window_has_left_it() {
        let s = KvSettings { window: 128, ..KvSettings::new(Format::ALL[4], Format::ALL[4]) };
        let packed = |t| s.packed_groups(t);
        assert_eq!((packed(0), packed(158), packed(159), packed(190), packed(191)), (0, 0, 1, 1, 2));
        let none = KvSettings { window: 0, ..s };
        assert_eq!((none.packed_groups(30), none.packed_groups(31)), (0, 1));
    }
}
