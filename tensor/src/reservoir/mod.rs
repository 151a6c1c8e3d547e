//! The reservoir: prepared weights in one read-only mapping that any number of processes share (a `.plumb` file), or in
//! private memory where that cannot be had.
//!
//! It knows names, sizes and checksums of prepared tensors. It does not know what the engine's description of the model
//! means, nor where packs are kept.

mod builder;
mod header;
mod source;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

pub use builder::{Builder, Fill, Part, Progress};
pub use header::Checksum;
pub use source::{Source, SourceFile};

use crate::device::WeightStore;
use crate::map::{HugeMap, Residency, drop_cached_pages, open_regular};
pub use crate::op::Kind;
use crate::{Error, Result};

/// The first eight bytes of a `.plumb` file. The line ending shows a file that was sent as text.
pub const MAGIC: &[u8; 8] = b"plumb\r\n\x1a";

/// The version of format and panel layout that is read and written.
pub const VERSION: u32 = 2;

/// A prepared tensor and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// What its bytes are.
    pub kind: Kind,
    /// Where they start in the data region, a multiple of 64.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
    /// Their xxh3-128 hash.
    pub checksum: Checksum,
}

/// Prepared weights, opened.
#[derive(Debug)]
pub struct Reservoir {
    map: HugeMap,
    /// The file behind `map`, unless the map is private.
    file: Option<File>,
    path: PathBuf,
    header: header::Header,
    by_name: HashMap<String, usize>,
}

impl WeightStore for Reservoir {
    fn get(&self, name: &str) -> Option<(Kind, &[u8])> {
        self.entry(name).map(|entry| (entry.kind, self.bytes(entry)))
    }
}

impl Reservoir {
    /// Maps the pack at `path`. The head is read and checked; the tensors are not touched.
    ///
    /// # Errors
    /// [`Error::PackVersion`] if it is of another version, [`Error::Malformed`] if it is truncated or contradicts itself,
    /// [`Error::Checksum`] if the head is damaged, [`Error::Io`] if it cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Reservoir> {
        let path = path.as_ref();
        let file = open_regular(path)?;
        let len = file.metadata().map_err(|e| Error::io(path, e))?.len();
        if len == 0 {
            return Err(Error::malformed(path.display().to_string(), "a .plumb file", "an empty file"));
        }
        let map = map_file(&file, len, path)?;
        Ok(Reservoir { file: Some(file), ..Reservoir::from_map(map, path)? })
    }

    /// Reads a pack that lies in memory, into private memory; `name` stands for it in errors.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Reservoir> {
        let mut map = anonymous(bytes.len().max(1) as u64)?;
        if let Some(target) = map.bytes_mut() {
            target[..bytes.len()].copy_from_slice(bytes);
        }
        Reservoir::from_map(map, Path::new(name))
    }

    fn from_map(map: HugeMap, path: &Path) -> Result<Reservoir> {
        let header = header::decode(map.bytes(), map.bytes().len() as u64, path)?;
        let by_name =
            header.table.tensors.iter().enumerate().map(|(i, entry)| (entry.name.clone(), i)).collect();
        Ok(Reservoir { map, file: None, path: path.to_owned(), header, by_name })
    }

    /// The pack's path, or a phrase that stands for it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the engine wrote about the model when it was packed.
    ///
    /// # Errors
    /// If it is not a `T`.
    pub fn model<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(self.model_json()).map_err(|e| {
            let what = format!("{}: the model's description", self.path.display());
            Error::malformed(what, "what this version of plumb writes", e.to_string())
        })
    }

    /// The same as JSON text.
    pub fn model_json(&self) -> &str {
        // Checked when the head was read; the file could only differ now if someone overwrote it in place.
        std::str::from_utf8(&self.map.bytes()[self.header.model.clone()]).unwrap_or_default()
    }

    /// What the pack was made from.
    pub fn source(&self) -> &Source {
        &self.header.table.source
    }

    /// All tensors, in order of their data.
    pub fn entries(&self) -> &[Entry] {
        &self.header.table.tensors
    }

    /// A hash over the model's description and every tensor's name, kind and checksum: two packs of the same content have
    /// the same, whatever they were packed from and when.
    pub fn content(&self) -> Checksum {
        let mut hash = Xxh3::new();
        hash.update(self.model_json().as_bytes());
        for entry in self.entries() {
            hash.update(format!("\n{} {:?} {}", entry.name, entry.kind, entry.checksum).as_bytes());
        }
        Checksum(hash.digest128())
    }

    /// The tensor of that name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name).map(|&i| &self.header.table.tensors[i])
    }

    /// The tensor's bytes, at an address that is a multiple of 64.
    ///
    /// # Panics
    /// If `entry` belongs to another reservoir and does not fit into this one.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        let start = (self.header.data_offset + entry.offset) as usize;
        &self.map.bytes()[start..start + entry.bytes as usize]
    }

    /// Reads every tensor and compares it with its checksum.
    ///
    /// # Errors
    /// [`Error::Checksum`] names the first tensor that differs.
    pub fn verify(&self, progress: &mut Progress<'_>) -> Result<()> {
        let total = self.entries().iter().map(|e| e.bytes).sum();
        let mut done = 0;
        for entry in self.entries() {
            let mut hash = Xxh3::new();
            for piece in self.bytes(entry).chunks(8 << 20) {
                hash.update(piece);
                done += piece.len() as u64;
                progress(done, total);
            }
            let found = Checksum(hash.digest128());
            if found != entry.checksum {
                return Err(Error::Checksum {
                    what: format!("{}: tensor {}", self.path.display(), entry.name),
                    expected: entry.checksum.to_string(),
                    found: found.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Bytes of the whole reservoir, head and padding included.
    pub fn len_bytes(&self) -> u64 {
        self.header.file_len
    }

    /// Bytes of it that this process has mapped now.
    pub fn resident_bytes(&self) -> u64 {
        self.map.residency().resident_bytes
    }

    /// Bytes of it that are mapped by huge pages now. What was not touched yet is not mapped: see [`Reservoir::touch`].
    pub fn huge_page_bytes(&self) -> u64 {
        self.map.residency().huge_page_bytes
    }

    /// Both of the above in one reading of the system's report.
    pub fn residency(&self) -> Residency {
        self.map.residency()
    }

    /// True if the bytes are this process's own rather than a shared file's.
    pub fn is_private(&self) -> bool {
        self.file.is_none()
    }

    /// Maps every 2 MiB by reading one byte of it. Costs microseconds per page if the file is cached; else it is read.
    pub fn touch(&self) {
        self.map.touch();
    }

    /// Drops the file's cached pages, maps it anew with the advice for huge pages, and touches it: pages that came into
    /// the cache in small pieces come back in large ones. It reads the whole file from its disk. Pages that another
    /// process has mapped stay as they are. A private reservoir is returned as it is.
    pub fn refault(self) -> Result<Reservoir> {
        let Reservoir { map, file, path, header, by_name } = self;
        let Some(file) = file else { return Ok(Reservoir { map, file, path, header, by_name }) };
        drop(map);
        drop_cached_pages(&file);
        let map = map_file(&file, header.file_len, &path)?;
        map.touch();
        Ok(Reservoir { map, file: Some(file), path, header, by_name })
    }

    /// A copy in private memory, which huge pages back on every file system; it is not shared with other processes.
    pub fn to_private(&self) -> Result<Reservoir> {
        Reservoir::from_bytes(&self.path.display().to_string(), self.map.bytes())
    }
}

fn map_file(file: &File, len: u64, path: &Path) -> Result<HugeMap> {
    let len = usize::try_from(len).map_err(|_| too_long(path, len))?;
    HugeMap::of_file(file, len).map_err(|e| Error::io(path, e))
}

fn too_long(path: &Path, len: u64) -> Error {
    Error::malformed(path.display().to_string(), "an addressable length", len.to_string())
}

/// Private memory of `len` bytes.
fn anonymous(len: u64) -> Result<HugeMap> {
    let refused = |_| Error::OutOfMemory {
        what: "a private copy of the prepared weights".into(),
        needed_bytes: len,
        available_bytes: 0,
    };
    let len = usize::try_from(len).map_err(|_| too_long(Path::new("prepared weights"), len))?;
    HugeMap::anonymous(len).map_err(refused)
}

/// Reads a head from `bytes` cut into its parts, with a fresh checksum: the fuzzer's way past the checksum.
#[doc(hidden)]
pub fn fuzz_head(table: &str, model: &str, data_offset: u64, file_len: u64) {
    let head = header::compose(table, model, data_offset, file_len);
    let _ = header::decode(&head, file_len, Path::new("fuzz"));
}
