//! Typed key-value metadata, as GGUF stores them.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// One metadata value. Integer widths are folded into 64 bits and f32 is widened to f64 (both exact).
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// u8, u16, u32, u64.
    Uint(u64),
    /// i8, i16, i32, i64.
    Int(i64),
    /// f32, f64.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// UTF-8 text.
    Str(String),
    /// A homogeneous array.
    Array(Array),
}

/// A homogeneous array of metadata values.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned integers of any width.
    Uint(Vec<u64>),
    /// Signed integers of any width.
    Int(Vec<i64>),
    /// Floats of any width.
    Float(Vec<f64>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Texts.
    Str(Vec<String>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::Uint(v) => v.len(),
            Array::Int(v) => v.len(),
            Array::Float(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Str(v) => v.len(),
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    /// The value's kind in words, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Uint(_) => "an unsigned integer",
            Value::Int(_) => "a signed integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a boolean",
            Value::Str(_) => "a text",
            Value::Array(Array::Uint(_)) => "an array of unsigned integers",
            Value::Array(Array::Int(_)) => "an array of signed integers",
            Value::Array(Array::Float(_)) => "an array of floats",
            Value::Array(Array::Bool(_)) => "an array of booleans",
            Value::Array(Array::Str(_)) => "an array of texts",
        }
    }
}

/// A file's metadata, by key. Getters give `Ok(None)` for an absent key and an error for a wrong type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub BTreeMap<String, Value>);

impl Metadata {
    /// The raw value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(v) => take(v).map(Some).ok_or_else(|| Error::malformed(key, expected, v.kind())),
        }
    }

    /// A non-negative integer of at most 32 bits, of either signedness.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an unsigned integer of at most 32 bits", |v| match v {
            Value::Uint(x) => u32::try_from(*x).ok(),
            Value::Int(x) => u32::try_from(*x).ok(),
            _ => None,
        })
    }

    /// A float.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a float", |v| match v {
            Value::Float(x) => Some(*x as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", |v| match v {
            Value::Bool(x) => Some(*x),
            _ => None,
        })
    }

    /// A text.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a text", |v| match v {
            Value::Str(x) => Some(x.as_str()),
            _ => None,
        })
    }

    /// An array of texts.
    pub fn strs(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of texts", |v| match v {
            Value::Array(Array::Str(x)) => Some(x.as_slice()),
            _ => None,
        })
    }

    /// An array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>> {
        self.typed(key, "an array of floats", |v| match v {
            Value::Array(Array::Float(x)) => Some(x.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of either signedness, each fitting i64.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.typed(key, "an array of integers", |v| match v {
            Value::Array(Array::Int(x)) => Some(x.clone()),
            Value::Array(Array::Uint(x)) => x.iter().map(|&u| i64::try_from(u).ok()).collect(),
            _ => None,
        })
    }

    /// The value that `get` found, or an error that names the missing key.
    pub fn require<T>(&self, key: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| Error::Missing { what: format!("metadata key {key}") })
    }
}
