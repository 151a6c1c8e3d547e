//! The head of a `.plumb` file: fixed fields, then two JSON texts. Written and read here only.
//!
//! ```text
//!   0  magic, 8 bytes
//!   8  u32 version, u32 zero
//!  16  u64 bytes of the table's JSON, u64 bytes of the model's JSON
//!  32  u64 offset of the data region, u64 length of the whole file: both multiples of 2 MiB
//!  48  xxh3-128 of bytes 0 to 47 and of both texts, big endian
//!  64  the table: { "source": …, "tensors": […] }; offsets count from the data region's start
//!      the model: whatever the engine wrote
//! ```
//! Numbers are little endian. Magic and version keep their places in every version.
//!
//! It does not know what the model's text means, nor how the data come to be there.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{Entry, Kind, MAGIC, Source, VERSION};
use crate::map::HUGE_PAGE_BYTES;
use crate::{Error, Result};

const HUGE: u64 = HUGE_PAGE_BYTES as u64;
const FIXED_BYTES: usize = 64;
/// Every tensor starts at a multiple of this.
pub(super) const TENSOR_ALIGNMENT: u64 = 64;
/// Head and alignment are at most 16 MiB: the data region starts at 14 MiB at the latest, and less than 2 MiB follow it.
pub(super) const MAX_DATA_OFFSET: u64 = 14 << 20;

/// The table of a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) source: Source,
    pub(super) tensors: Vec<Entry>,
}

/// A checked head.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) table: Table,
    /// Where the model's JSON lies in the file.
    pub(super) model: std::ops::Range<usize>,
    pub(super) data_offset: u64,
    pub(super) file_len: u64,
}

/// Lays out tensors of the given kinds one after another, with checksums still unset.
pub(super) fn lay_out(tensors: Vec<(String, Kind)>) -> Result<Vec<Entry>> {
    let mut offset = 0u64;
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, kind) in tensors {
        let bytes = kind.prepared_bytes().ok_or_else(|| {
            Error::malformed(
                format!("tensor {name}"),
                "whole blocks of an addressable size",
                format!("{kind:?}"),
            )
        })?;
        let end = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(TENSOR_ALIGNMENT));
        let next = end.ok_or_else(|| {
            Error::malformed(format!("tensor {name}"), "an addressable size", bytes.to_string())
        })?;
        entries.push(Entry { name, kind, offset, bytes, checksum: Checksum(0) });
        offset = next;
    }
    let table = Table { source: Source::default(), tensors: entries };
    check_names(&table, "the tensors to pack")?;
    Ok(table.tensors)
}

fn check_names(table: &Table, file: &str) -> Result<()> {
    let mut names = HashSet::with_capacity(table.tensors.len());
    match table.tensors.iter().find(|entry| !names.insert(entry.name.as_str())) {
        None => Ok(()),
        Some(twice) => Err(Error::malformed(
            format!("{file}: tensor {}", twice.name),
            "one tensor of that name",
            "a second one",
        )),
    }
}

/// The head's size up to the data region, and the whole file's, for a table of this shape. Checksums and the source's
/// hashes may still change: they have a fixed width.
pub(super) fn sizes(table: &Table, model: &str) -> Result<(u64, u64)> {
    let mut filled = table.clone();
    filled.source.files.iter_mut().for_each(|f| f.sha256 = Some("0".repeat(64)));
    let head = FIXED_BYTES + to_json(&filled)?.len() + model.len();
    let data_offset = (head as u64).next_multiple_of(HUGE);
    if data_offset > MAX_DATA_OFFSET {
        return Err(Error::malformed(
            "the header of a pack",
            format!("at most {MAX_DATA_OFFSET} bytes"),
            format!("{head} bytes, {} of them tokenizer, template and specification", model.len()),
        ));
    }
    let region = table.tensors.last().map_or(0, |t| t.offset + t.bytes);
    let file_len = data_offset.checked_add(region).and_then(|len| len.checked_next_multiple_of(HUGE));
    let file_len =
        file_len.ok_or_else(|| Error::malformed("a pack", "an addressable size", region.to_string()))?;
    Ok((data_offset, file_len))
}

fn to_json(table: &Table) -> Result<String> {
    serde_json::to_string(table).map_err(|e| Error::malformed("the table of a pack", "JSON", e.to_string()))
}

/// The head's bytes, filled up to `data_offset`; both numbers as [`sizes`] gave them.
pub(super) fn encode(table: &Table, model: &str, data_offset: u64, file_len: u64) -> Result<Vec<u8>> {
    let mut head = compose(&to_json(table)?, model, data_offset, file_len);
    assert!(head.len() as u64 <= data_offset, "the head fits before the data");
    head.resize(data_offset as usize, 0);
    Ok(head)
}

/// Puts a head together, without what fills it up to the data region.
pub(super) fn compose(table: &str, model: &str, data_offset: u64, file_len: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(FIXED_BYTES + table.len() + model.len());
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&u64::from(VERSION).to_le_bytes());
    for number in [table.len() as u64, model.len() as u64, data_offset, file_len] {
        head.extend_from_slice(&number.to_le_bytes());
    }
    let checksum = checksum_of(&head, table.as_bytes(), model.as_bytes());
    head.extend_from_slice(&checksum.0.to_be_bytes());
    head.extend_from_slice(table.as_bytes());
    head.extend_from_slice(model.as_bytes());
    head
}

fn checksum_of(fixed: &[u8], table: &[u8], model: &[u8]) -> Checksum {
    let mut hash = Xxh3::new();
    for part in [fixed, table, model] {
        hash.update(part);
    }
    Checksum(hash.digest128())
}

/// Reads the head of a file of `file_len` bytes that starts with `bytes`.
///
/// Checks everything that makes the table safe to use; tensors' own checksums are a matter of `verify`.
pub(super) fn decode(bytes: &[u8], file_len: u64, path: &Path) -> Result<Header> {
    let file = path.display().to_string();
    let malformed = |part: &str, expected: String, found: String| {
        Error::malformed(format!("{file}: {part}"), expected, found)
    };
    if !bytes.starts_with(MAGIC) {
        let found = format!("{:02x?}", &bytes[..bytes.len().min(MAGIC.len())]);
        return Err(malformed("magic", "a .plumb file".into(), found));
    }
    let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else {
        return Err(malformed("head", format!("{FIXED_BYTES} bytes"), format!("{} bytes", bytes.len())));
    };
    let number = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
    let version = number(8) as u32; // the lower half
    if version != VERSION {
        return Err(Error::PackVersion { path: path.to_owned(), expected: VERSION, found: version });
    }
    let (table_len, model_len, data_offset, stated_len) = (number(16), number(24), number(32), number(40));
    if stated_len != file_len {
        let found = match stated_len.checked_sub(file_len) {
            Some(missing) => format!("{file_len}: {missing} bytes are missing"),
            None => format!("{file_len}: {} bytes too many", file_len - stated_len),
        };
        return Err(malformed("length", stated_len.to_string(), found));
    }
    if !data_offset.is_multiple_of(HUGE)
        || data_offset > MAX_DATA_OFFSET.min(file_len)
        || !file_len.is_multiple_of(HUGE)
    {
        let expected = format!("multiples of {HUGE} up to {MAX_DATA_OFFSET} and the file's length");
        return Err(malformed("data offset and length", expected, format!("{data_offset} and {file_len}")));
    }
    let texts_end = table_len.checked_add(model_len).and_then(|len| len.checked_add(FIXED_BYTES as u64));
    let texts = texts_end
        .filter(|&end| end <= data_offset)
        .and_then(|end| bytes.get(FIXED_BYTES..end as usize))
        .ok_or_else(|| {
            let found = format!("{table_len} bytes of table and {model_len} of model");
            malformed("head", format!("texts before the data at {data_offset}"), found)
        })?;
    let (table, model) = texts.split_at(table_len as usize);
    let found = checksum_of(&fixed[..48], table, model);
    let expected = Checksum(u128::from_be_bytes(fixed[48..64].try_into().expect("sixteen bytes")));
    if found != expected {
        let what = format!("{file}: head");
        return Err(Error::Checksum { what, expected: expected.to_string(), found: found.to_string() });
    }
    std::str::from_utf8(model).map_err(|e| malformed("model", "UTF-8 text".into(), e.to_string()))?;
    let table: Table = serde_json::from_slice(table)
        .map_err(|e| malformed("table", "source and tensors".into(), e.to_string()))?;
    check_entries(&table, file_len - data_offset, &file)?;
    let model_start = FIXED_BYTES + table_len as usize;
    Ok(Header { table, model: model_start..model_start + model_len as usize, data_offset, file_len })
}

/// Sizes follow from kinds; tensors are aligned, inside the region, and apart from each other.
fn check_entries(table: &Table, region: u64, file: &str) -> Result<()> {
    check_names(table, file)?;
    for entry in &table.tensors {
        let malformed = |part: &str, expected: String, found: u64| {
            Err(Error::malformed(
                format!("{file}: {part} of tensor {}", entry.name),
                expected,
                found.to_string(),
            ))
        };
        match entry.kind.prepared_bytes() {
            None => {
                let what = format!("{file}: tensor {}", entry.name);
                return Err(Error::malformed(
                    what,
                    "whole blocks of an addressable size",
                    format!("{:?}", entry.kind),
                ));
            }
            Some(bytes) if bytes != entry.bytes => return malformed("size", bytes.to_string(), entry.bytes),
            Some(_) => {}
        }
        if !entry.offset.is_multiple_of(TENSOR_ALIGNMENT) {
            return malformed("offset", format!("a multiple of {TENSOR_ALIGNMENT}"), entry.offset);
        }
        if entry.offset.checked_add(entry.bytes).is_none_or(|end| end > region) {
            return malformed(
                "offset",
                format!("{} bytes inside a region of {region}", entry.bytes),
                entry.offset,
            );
        }
    }
    let mut by_offset: Vec<&Entry> = table.tensors.iter().collect();
    by_offset.sort_by_key(|e| (e.offset, e.bytes));
    for pair in by_offset.windows(2) {
        let end = pair[0].offset + pair[0].bytes;
        if end > pair[1].offset {
            let what = format!("{file}: offset of tensor {}", pair[1].name);
            let expected = format!("at least {end}, where {} ends", pair[0].name);
            return Err(Error::malformed(what, expected, pair[1].offset.to_string()));
        }
    }
    Ok(())
}

/// An xxh3-128 hash: it finds accidents, not attacks. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Checksum(pub u128);

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<Checksum> for String {
    fn from(checksum: Checksum) -> String {
        checksum.to_string()
    }
}

impl TryFrom<String> for Checksum {
    type Error = String;

    fn try_from(text: String) -> Result<Checksum, String> {
        let hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = hex.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        value
            .map(Checksum)
            .ok_or_else(|| format!("expected a checksum of 32 hexadecimal digits, found {text:?}"))
    }
}
