//! Long lists in JSON without a parser's work per element: numbers below 2^24 as four characters of base64 each, texts
//! as one text with their lengths.
//!
//! It does not know what is listed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Numbers that a list can hold are below this.
pub(super) const LIMIT: usize = 1 << 24;

/// Writes numbers.
pub(super) fn serialize<S: Serializer>(numbers: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    let mut bytes = Vec::with_capacity(3 * numbers.len());
    for number in numbers {
        let [a, b, c, 0] = number.to_le_bytes() else {
            return Err(S::Error::custom(format!("{number} is not below 2^24")));
        };
        bytes.extend([a, b, c]);
    }
    serializer.serialize_str(&STANDARD.encode(bytes))
}

/// Reads numbers.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    struct Numbers;
    impl Visitor<'_> for Numbers {
        type Value = Vec<u32>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("base64 of 24-bit numbers")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<u32>, E> {
            let bytes = STANDARD.decode(text).map_err(E::custom)?;
            let (numbers, []) = bytes.as_chunks::<3>() else {
                return Err(E::custom("base64 that is not of 24-bit numbers"));
            };
            Ok(numbers.iter().map(|[a, b, c]| u32::from_le_bytes([*a, *b, *c, 0])).collect())
        }
    }
    deserializer.deserialize_str(Numbers)
}

/// A list of texts in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    joined: String,
    /// Where each text ends.
    ends: Vec<u32>,
}

impl Texts {
    /// Joins texts; `None` if they are more than 4 GiB.
    pub fn new<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Option<Self> {
        let mut out = Texts::default();
        for text in texts {
            out.joined.push_str(text.as_ref());
            out.ends.push(u32::try_from(out.joined.len()).ok()?);
        }
        Some(out)
    }

    /// Memory that the texts take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.joined.capacity() + 4 * self.ends.capacity()
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text at an index.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.joined[start as usize..end as usize])
    }

    /// All texts in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.joined[start as usize..*end as usize])
    }
}

#[derive(Serialize, Deserialize)]
struct Written<T> {
    joined: T,
    #[serde(with = "self")]
    lengths: Vec<u32>,
}

impl Serialize for Texts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A length that does not fit 32 bits does not fit 24 either, and is refused as such.
        let lengths = self.iter().map(|text| u32::try_from(text.len()).unwrap_or(u32::MAX)).collect();
        Written { joined: self.joined.as_str(), lengths }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { joined, lengths } = Written::<String>::deserialize(deserializer)?;
        let mut end = 0u32;
        let mut ends = lengths;
        for length in &mut ends {
            end = end.checked_add(*length).ok_or_else(|| D::Error::custom("more than 4 GiB of texts"))?;
            *length = end;
        }
        if end as usize != joined.len() || ends.iter().any(|end| !joined.is_char_boundary(*end as usize)) {
            return Err(D::Error::custom("lengths that are not those of the texts"));
        }
        Ok(Texts { joined, ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        let texts = Texts::new(["", "a", "é\"\n", "", "日本"]).unwrap();
        let json = serde_json::to_string(&texts).unwrap();
        let back: Texts = serde_json::from_str(&json).unwrap();
        assert_eq!(back, texts);
        assert_eq!(back.iter().collect::<Vec<_>>(), ["", "a", "é\"\n", "", "日本"]);
        assert_eq!((back.len(), back.get(2), back.get(5)), (5, Some("é\"\n"), None));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        for lengths in ["", "AQAA", "AwAA", "AQAAAQAA", "####", "AQ=="] {
            let json = format!("{{\"joined\": \"é\", \"lengths\": \"{lengths}\"}}");
            assert!(serde_json::from_str::<Texts>(&json).is_err(), "{lengths}");
        }
        assert!(serialize(&[1 << 24], serde_json::value::Serializer).is_err());
    }
}
