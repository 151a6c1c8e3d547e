//! A sequence's cache in a file: written block by block, mapped to be read.
//!
//! ```text
//! 0   b"plumbkv\0", u32 version, u32 length of the header, both little endian
//! 16  the header, JSON: what model and cache it belongs to, the tokens, which blocks follow
//! …   the blocks, group after group, each as it lies in the pool
//! end xxh3-128 of all before it, big endian
//! ```
//!
//! It says which model by a hash that the caller gives, and refuses another. What lies in a block is not known here.

use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tensor::device::Executor;
use tensor::kv::{BlockId, KvLayout};
use tensor::map::FileMap;
use xxhash_rust::xxh3::Xxh3;

use crate::Result;
use crate::kv::Table;

const MAGIC: [u8; 8] = *b"plumbkv\0";
const VERSION: u32 = 1;
const HEAD: usize = 16;
const CHECKSUM: usize = 16;

/// What the blocks are.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// The model's hash.
    model: String,
    /// [`tensor::kv::KvSettings::class`].
    kv: String,
    /// Bytes of a block of each group.
    block_bytes: Vec<usize>,
    tokens: Vec<u32>,
    /// The caller's.
    note: String,
    /// Per group, which blocks of the table are held.
    held: Vec<Vec<bool>>,
}

/// A file's tokens and where its blocks are.
pub(crate) struct Saved {
    map: FileMap,
    header: Header,
    blocks_at: usize,
}

/// Writes a sequence to `path`, all of it or nothing.
pub(crate) fn write(
    path: &Path,
    [model, note]: [&str; 2],
    layout: &KvLayout,
    table: &Table,
    executor: &dyn Executor,
) -> Result<u64> {
    let held = |blocks: &Vec<BlockId>| blocks.iter().map(|&b| b != BlockId::NONE).collect();
    let header = Header {
        model: model.to_owned(),
        kv: layout.settings.class(),
        block_bytes: layout.groups.iter().map(|g| g.block_bytes).collect(),
        tokens: table.tokens.clone(),
        note: note.to_owned(),
        held: table.blocks.iter().map(held).collect(),
    };
    let header = serde_json::to_vec(&header).map_err(|e| wrong(path, "a header", e))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io = |e| tensor::Error::io(path, e);
    // Under another name until it is whole; of two processes that save to one name, one file stays, whole.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    let mut out =
        Hashed { out: BufWriter::with_capacity(1 << 20, file.as_file_mut()), hash: Xxh3::new(), bytes: 0 };
    out.put(&MAGIC).map_err(io)?;
    out.put(&VERSION.to_le_bytes()).map_err(io)?;
    out.put(&(header.len() as u32).to_le_bytes()).map_err(io)?;
    out.put(&header).map_err(io)?;
    for (group, blocks) in table.blocks.iter().enumerate() {
        let mut block = vec![0; layout.groups[group].block_bytes];
        for &id in blocks.iter().filter(|&&id| id != BlockId::NONE) {
            executor.read_block(group, id, &mut block)?;
            out.put(&block).map_err(io)?;
        }
    }
    let checksum = out.hash.digest128().to_be_bytes();
    out.put(&checksum).map_err(io)?;
    out.out.flush().map_err(io)?;
    let bytes = out.bytes;
    drop(out);
    file.as_file().sync_all().map_err(io)?;
    file.persist(path).map_err(|e| io(e.error))?;
    Ok(bytes)
}

struct Hashed<W> {
    out: W,
    hash: Xxh3,
    bytes: u64,
}

impl<W: Write> Hashed<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

fn wrong(path: &Path, expected: impl Into<String>, found: impl ToString) -> crate::Error {
    tensor::Error::malformed(path.display().to_string(), expected, found.to_string()).into()
}

impl Saved {
    /// Maps a file and checks all of it.
    ///
    /// # Errors
    /// It cannot be read; it is no saved cache, of another version, cut short or damaged; it belongs to another model, or to
    /// a cache that stores otherwise.
    pub(crate) fn open(path: &Path, model: &str, layout: &KvLayout) -> Result<Saved> {
        let map = FileMap::open(path)?;
        let bytes = map.bytes();
        if bytes.len() < HEAD + CHECKSUM || bytes[..8] != MAGIC {
            return Err(wrong(path, "a saved cache", "another file"));
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(8) != VERSION {
            return Err(wrong(path, format!("a saved cache of version {VERSION}"), word(8)));
        }
        let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        let mut hash = Xxh3::new();
        hash.update(content);
        if hash.digest128().to_be_bytes() != checksum {
            let found = format!("{:032x}", hash.digest128());
            let hex: String = checksum.iter().map(|b| format!("{b:02x}")).collect();
            let what = format!("{}: a saved cache, cut short or damaged", path.display());
            return Err(tensor::Error::Checksum { what, expected: hex, found }.into());
        }
        let header = content.get(HEAD..HEAD + word(12) as usize);
        let header = header.ok_or_else(|| wrong(path, "a header within the file", word(12)))?;
        let header: Header = serde_json::from_slice(header).map_err(|e| wrong(path, "a header", e))?;
        let what = |part: &str| format!("{}: {part}", path.display());
        let differs = |part: &str, expected: String, found: String| {
            Err(tensor::Error::malformed(what(part), expected, found).into())
        };
        if header.model != model {
            return differs("the model it was saved from", model.to_owned(), header.model);
        }
        let kv = layout.settings.class();
        if header.kv != kv {
            return differs("the format of its cache", kv, header.kv);
        }
        let sizes: Vec<usize> = layout.groups.iter().map(|g| g.block_bytes).collect();
        if header.block_bytes != sizes {
            return differs("its blocks' bytes", format!("{sizes:?}"), format!("{:?}", header.block_bytes));
        }
        let lengths: Vec<usize> =
            (0..sizes.len()).map(|g| layout.table_len(g, header.tokens.len())).collect();
        let found: Vec<usize> = header.held.iter().map(Vec::len).collect();
        if found != lengths {
            return differs("its block tables", format!("{lengths:?}"), format!("{found:?}"));
        }
        let held = |g: usize| header.held[g].iter().filter(|&&h| h).count() * sizes[g];
        let needed: usize = (0..sizes.len()).map(held).sum();
        let blocks_at = HEAD + word(12) as usize;
        if content.len() - blocks_at != needed {
            return differs("its blocks", format!("{needed} bytes"), (content.len() - blocks_at).to_string());
        }
        Ok(Saved { map, header, blocks_at })
    }

    /// The tokens whose keys and values are here.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.header.tokens
    }

    /// What the caller wrote beside them.
    pub(crate) fn note(&self) -> &str {
        &self.header.note
    }

    /// Per group, which blocks of the table are here.
    pub(crate) fn held(&self) -> &[Vec<bool>] {
        &self.header.held
    }

    /// Copies the blocks to those of a table of the same shape.
    pub(crate) fn fill(&self, table: &Table, executor: &mut dyn Executor) -> Result<()> {
        let mut bytes = &self.map.bytes()[self.blocks_at..];
        for (group, blocks) in table.blocks.iter().enumerate() {
            for &id in blocks.iter().filter(|&&id| id != BlockId::NONE) {
                let (block, rest) = bytes.split_at(self.header.block_bytes[group]);
                executor.write_block(group, id, block)?;
                bytes = rest;
            }
        }
        Ok(())
    }
}
