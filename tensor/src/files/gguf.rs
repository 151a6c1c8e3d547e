//! The GGUF reader: versions 2 and 3, little endian, any alignment.
//!
//! It does not know what keys or tensors mean; it only reads `general.alignment` and `split.count`, which concern the
//! container. Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::BTreeMap;

use super::{Array, Metadata, TensorInfo, Tensors, Value, quoted, supported_encodings};
use crate::{Encoding, Error, Result};

/// The first four bytes of every GGUF file.
pub(super) const MAGIC: &[u8] = b"GGUF";

/// Where the data section starts if the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The most dimensions a tensor can have.
const MAX_DIMENSIONS: u32 = 4;
/// Bounds on what a header may make the reader allocate. The largest published vocabularies have 2^18 tokens, each with a
/// text, a score and a type, and 2^19 merges; no published model has 2^14 tensors.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
/// The longest key that the format allows.
const MAX_KEY_BYTES: usize = 65535;

/// Reads the header of a whole GGUF file; `file` names it in errors.
pub(super) fn parse(bytes: &[u8], file: &str) -> Result<(Metadata, Tensors)> {
    let mut reader = Reader { bytes, at: 0, file, elements_left: MAX_ARRAY_ELEMENTS };
    let magic = reader.take(4, || "the magic".into())?;
    if magic != MAGIC {
        return Err(Error::malformed(file, "magic \"GGUF\"", format!("{magic:02x?}")));
    }
    let version = reader.u32(|| "the version".into())?;
    match version {
        2 | 3 => {}
        1 => {
            return Err(Error::unsupported(
                format!("{file}: GGUF version 1"),
                "plumb reads versions 2 and 3",
            ));
        }
        _ if matches!(version.swap_bytes(), 1..=3) => {
            let why = "plumb reads little-endian files; convert it with gguf-py's gguf_convert_endian";
            return Err(Error::unsupported(format!("{file}: big-endian GGUF"), why));
        }
        _ => return Err(Error::malformed(format!("{file}: GGUF version"), "2 or 3", version.to_string())),
    }
    let tensor_count = reader.count("tensors", MAX_TENSORS)?;
    let key_count = reader.count("keys", MAX_KEYS)?;
    let metadata = reader.metadata(key_count)?;
    refuse_splits(&metadata, file)?;
    let alignment = alignment(&metadata, file)?;

    let mut headers = Vec::new();
    for index in 0..tensor_count {
        headers.push(reader.tensor_header(index)?);
    }
    let data_start = (reader.at as u64).checked_next_multiple_of(alignment).ok_or_else(|| {
        Error::malformed(format!("{file}: general.alignment"), "a usable alignment", alignment.to_string())
    })?;
    let mut infos = Vec::with_capacity(headers.len());
    for header in headers {
        infos.push(header.locate(data_start, bytes.len(), file)?);
    }
    refuse_overlaps(&infos, file)?;
    Ok((metadata, Tensors::new(infos, file)?))
}

/// A model split over several files is named as such, before its missing tensors confuse anyone.
fn refuse_splits(metadata: &Metadata, file: &str) -> Result<()> {
    match metadata.u32("split.count")? {
        Some(count) if count > 1 => {
            let why = "merge its files first, for instance with llama.cpp's llama-gguf-split --merge";
            Err(Error::unsupported(format!("{file}: a model split into {count} GGUF files"), why))
        }
        _ => Ok(()),
    }
}

fn alignment(metadata: &Metadata, file: &str) -> Result<u64> {
    match metadata.u32("general.alignment")? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(0) => Err(Error::malformed(format!("{file}: general.alignment"), "at least 1", "0")),
        Some(alignment) => Ok(alignment.into()),
    }
}

fn refuse_overlaps(infos: &[TensorInfo], file: &str) -> Result<()> {
    let mut by_offset: Vec<&TensorInfo> = infos.iter().collect();
    by_offset.sort_by_key(|t| t.offset);
    for pair in by_offset.windows(2) {
        let end = pair[0].offset + pair[0].len;
        if end > pair[1].offset {
            return Err(Error::malformed(
                format!("{file}: tensor {}", quoted(&pair[1].name)),
                format!("data after that of {}, which ends at byte {end}", quoted(&pair[0].name)),
                format!("data from byte {}", pair[1].offset),
            ));
        }
    }
    Ok(())
}

/// A tensor's header entry, with everything checked that does not need the data section's start.
struct TensorHeader {
    name: String,
    encoding: Encoding,
    shape: Vec<usize>,
    rows: usize,
    cols: usize,
    len: u64,
    offset: u64,
}

impl TensorHeader {
    /// Checks that the data lie inside the file.
    fn locate(self, data_start: u64, file_len: usize, file: &str) -> Result<TensorInfo> {
        let what = || format!("{file}: tensor {}", quoted(&self.name));
        let start = data_start.checked_add(self.offset);
        let end = start.and_then(|start| start.checked_add(self.len));
        let (Some(start), Some(end)) = (start, end) else {
            let found = format!("{} bytes from offset {}", self.len, self.offset);
            return Err(Error::malformed(what(), "data inside the file", found));
        };
        if end > file_len as u64 {
            return Err(Error::malformed(
                what(),
                format!("data up to byte {end}"),
                format!(
                    "a file of {file_len} bytes: {} are missing (is it truncated?)",
                    end - file_len as u64
                ),
            ));
        }
        let (offset, len) = (start as usize, self.len as usize); // both at most `file_len`
        let TensorHeader { name, encoding, shape, rows, cols, .. } = self;
        Ok(TensorInfo { name, encoding, rows, cols, shape, file: 0, offset, len })
    }
}

/// A cursor over the header. Every read checks what is left.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file: &'a str,
    /// Array elements that all arrays together may still have.
    elements_left: u64,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: usize, what: impl FnOnce() -> String) -> Result<&'a [u8]> {
        let Some(taken) = self.bytes[self.at..].get(..len) else {
            return Err(Error::malformed(
                format!("{}: {}", self.file, what()),
                format!("{len} bytes at byte {}", self.at),
                format!("{} before the end of the file (is it truncated?)", self.left()),
            ));
        };
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count from the file's head.
    fn count(&mut self, of: &str, most: u64) -> Result<u64> {
        let count = self.u64(|| format!("the number of {of}"))?;
        if count > most {
            let what = format!("{}: number of {of}", self.file);
            return Err(Error::malformed(what, format!("at most {most}"), count.to_string()));
        }
        Ok(count)
    }

    fn string(&mut self, what: impl Fn() -> String) -> Result<&'a str> {
        let len = self.u64(&what)?;
        if len > self.left() as u64 {
            return Err(Error::malformed(
                format!("{}: {}", self.file, what()),
                format!("a text of at most {} bytes, which are left in the file", self.left()),
                format!("a length of {len} (is the file truncated?)"),
            ));
        }
        let bytes = self.take(len as usize, &what)?;
        std::str::from_utf8(bytes).map_err(|e| {
            Error::malformed(
                format!("{}: {}", self.file, what()),
                "UTF-8 text",
                format!("an invalid byte at {}", e.valid_up_to()),
            )
        })
    }

    fn metadata(&mut self, count: u64) -> Result<Metadata> {
        let mut values = BTreeMap::new();
        for index in 0..count {
            let key = self.string(|| format!("key {index} of {count}"))?;
            if key.len() > MAX_KEY_BYTES {
                return Err(Error::malformed(
                    format!("{}: key {index}", self.file),
                    format!("at most {MAX_KEY_BYTES} bytes"),
                    format!("{} bytes", key.len()),
                ));
            }
            let shown = quoted(key);
            let kind = self.u32(|| format!("the type of key {shown}"))?;
            let value = self.value(kind, &shown)?;
            if values.insert(key.to_owned(), value).is_some() {
                let what = format!("{}: key {shown}", self.file);
                return Err(Error::malformed(what, "one value", "a second one"));
            }
        }
        Ok(Metadata(values))
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value> {
        let what = || format!("the value of key {key}");
        Ok(match kind {
            0 => Value::Uint(self.array::<1>(what)?[0].into()),
            1 => Value::Int(i8::from_le_bytes(self.array(what)?).into()),
            2 => Value::Uint(u16::from_le_bytes(self.array(what)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array(what)?).into()),
            4 => Value::Uint(u32::from_le_bytes(self.array(what)?).into()),
            5 => Value::Int(i32::from_le_bytes(self.array(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(what)?).into()),
            7 => Value::Bool(self.boolean(self.at, key)?),
            8 => Value::Str(self.string(what)?.to_owned()),
            9 => Value::Array(self.array_value(key)?),
            10 => Value::Uint(u64::from_le_bytes(self.array(what)?)),
            11 => Value::Int(i64::from_le_bytes(self.array(what)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            _ => return Err(self.unknown_type(key, kind)),
        })
    }

    fn unknown_type(&self, key: &str, kind: u32) -> Error {
        Error::malformed(format!("{}: type of key {key}", self.file), "0 to 12", kind.to_string())
    }

    fn boolean(&mut self, at: usize, key: &str) -> Result<bool> {
        match self.array::<1>(|| format!("the value of key {key}"))?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => {
                let what = format!("{}: boolean of key {key} at byte {at}", self.file);
                Err(Error::malformed(what, "0 or 1", other.to_string()))
            }
        }
    }

    fn array_value(&mut self, key: &str) -> Result<Array> {
        let kind = self.u32(|| format!("the element type of key {key}"))?;
        let count = self.u64(|| format!("the number of elements of key {key}"))?;
        let least_bytes: u64 = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8, // a text has at least its length
            9 => {
                let why = "no key that a model needs has one";
                return Err(Error::unsupported(format!("{}: key {key}: an array of arrays", self.file), why));
            }
            _ => return Err(self.unknown_type(key, kind)),
        };
        let fit = self.left() as u64 / least_bytes;
        if count > fit || count > self.elements_left {
            return Err(Error::malformed(
                format!("{}: number of elements of key {key}", self.file),
                format!("at most {}", fit.min(self.elements_left)),
                count.to_string(),
            ));
        }
        self.elements_left -= count;
        let count = count as usize; // at most the file's length
        Ok(match kind {
            0 => Array::Uint(self.numbers(key, count, |b: [u8; 1]| b[0].into())?),
            1 => Array::Int(self.numbers(key, count, |b| i8::from_le_bytes(b).into())?),
            2 => Array::Uint(self.numbers(key, count, |b| u16::from_le_bytes(b).into())?),
            3 => Array::Int(self.numbers(key, count, |b| i16::from_le_bytes(b).into())?),
            4 => Array::Uint(self.numbers(key, count, |b| u32::from_le_bytes(b).into())?),
            5 => Array::Int(self.numbers(key, count, |b| i32::from_le_bytes(b).into())?),
            6 => Array::Float(self.numbers(key, count, |b| f32::from_le_bytes(b).into())?),
            7 => Array::Bool((0..count).map(|_| self.boolean(self.at, key)).collect::<Result<_>>()?),
            10 => Array::Uint(self.numbers(key, count, u64::from_le_bytes)?),
            11 => Array::Int(self.numbers(key, count, i64::from_le_bytes)?),
            12 => Array::Float(self.numbers(key, count, f64::from_le_bytes)?),
            _ => {
                let mut texts = Vec::with_capacity(count);
                for index in 0..count {
                    texts.push(self.string(|| format!("element {index} of key {key}"))?.to_owned());
                }
                Array::Str(texts)
            }
        })
    }

    fn numbers<const N: usize, T>(
        &mut self,
        key: &str,
        count: usize,
        read: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        // `count` times `N` is at most what is left of the file.
        let bytes = self.take(count * N, || format!("the elements of key {key}"))?;
        let (chunks, _) = bytes.as_chunks::<N>();
        Ok(chunks.iter().map(|chunk| read(*chunk)).collect())
    }

    fn tensor_header(&mut self, index: u64) -> Result<TensorHeader> {
        let name = self.string(|| format!("the name of tensor {index}"))?.to_owned();
        let shown = quoted(&name);
        let file = self.file;
        let what = |part: &str| format!("{part} of tensor {shown}");
        let malformed = |part: &str, expected: String, found: String| {
            Error::malformed(format!("{file}: {}", what(part)), expected, found)
        };
        let dimensions = self.u32(|| what("the number of dimensions"))?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(malformed(
                "number of dimensions",
                format!("1 to {MAX_DIMENSIONS}"),
                dimensions.to_string(),
            ));
        }
        let mut dims = Vec::new(); // contiguous first, as the file has them
        for _ in 0..dimensions {
            dims.push(self.u64(|| what("a dimension"))?);
        }
        let kind = self.u32(|| what("the type"))?;
        let offset = self.u64(|| what("the offset"))?;
        let encoding = encoding(kind).map_err(|other| {
            Error::unsupported(
                format!("{}: tensor {shown}: encoding {other}", self.file),
                supported_encodings(&Encoding::ALL),
            )
        })?;

        let shape: Option<Vec<usize>> =
            dims.iter().rev().map(|&d| usize::try_from(d).ok().filter(|&d| d > 0)).collect();
        let sizes = shape.and_then(|shape| {
            let (cols, outer) = shape.split_last()?;
            let rows = outer.iter().try_fold(1usize, |product, &d| product.checked_mul(d))?;
            // The element count must fit too: it is what later code multiplies by element sizes.
            rows.checked_mul(*cols)?.checked_mul(size_of::<f32>())?;
            Some((rows, *cols, shape))
        });
        let Some((rows, cols, shape)) = sizes else {
            let expected = "positive numbers whose product can be addressed".into();
            return Err(malformed("dimensions", expected, format!("{dims:?}")));
        };
        let Some(row_bytes) = encoding.row_bytes(cols) else {
            let expected = format!("a multiple of {}'s block of {}", encoding, encoding.block_len());
            return Err(malformed("first dimension", expected, cols.to_string()));
        };
        let Some(len) = (row_bytes as u64).checked_mul(rows as u64) else {
            return Err(malformed(
                "size",
                "a number of bytes that can be addressed".into(),
                format!("{dims:?}"),
            ));
        };
        Ok(TensorHeader { name, encoding, shape, rows, cols, len, offset })
    }
}

/// The encoding of a GGUF type number, or the name of one that plumb does not read.
fn encoding(kind: u32) -> Result<Encoding, String> {
    use Encoding::*;
    let name = match kind {
        0 => return Ok(F32),
        1 => return Ok(F16),
        2 => return Ok(Q4_0),
        3 => return Ok(Q4_1),
        6 => return Ok(Q5_0),
        7 => return Ok(Q5_1),
        8 => return Ok(Q8_0),
        10 => return Ok(Q2_K),
        11 => return Ok(Q3_K),
        12 => return Ok(Q4_K),
        13 => return Ok(Q5_K),
        14 => return Ok(Q6_K),
        20 => return Ok(IQ4_NL),
        23 => return Ok(IQ4_XS),
        30 => return Ok(BF16),
        4 => "Q4_2 (removed from the format)",
        5 => "Q4_3 (removed from the format)",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (removed from the format)",
        32 => "Q4_0_4_8 (removed from the format)",
        33 => "Q4_0_8_8 (removed from the format)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL_4_4 or a relative of it (removed from the format)",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return Err(format!("number {kind}, which this version does not know,")),
    };
    Err(name.to_owned())
}
