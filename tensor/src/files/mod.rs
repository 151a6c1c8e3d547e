//! Weight files as they come: what tensors and metadata a container holds, checked, and where each tensor's bytes lie.
//!
//! It does not know what the metadata mean for a model.
//!
//! Every reader treats its file as hostile: each count, offset, length and product is checked, and compared with the
//! file's real length, before anything is touched or allocated.

mod gguf;
mod huggingface;
mod metadata;
mod safetensors;

use std::path::{Path, PathBuf};

pub use huggingface::{HfFolder, fuzz_texts};
pub use metadata::{Array, Metadata, Value};

use crate::{Encoding, Error, Result, map::FileMap};

/// An opened model: a GGUF file or a Hugging Face folder.
#[derive(Debug)]
pub struct WeightFile {
    description: Description,
    tensors: Tensors,
    contents: Vec<Contents>,
    paths: Vec<PathBuf>,
}

/// What a container says about its model beside the tensors.
#[derive(Clone, Debug)]
pub enum Description {
    /// A GGUF file's key-value pairs.
    Gguf(Metadata),
    /// A Hugging Face folder's other files.
    HuggingFace(Box<HfFolder>),
}

/// One tensor: its name, encoding and shape, and (privately) where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The container's name for it.
    pub name: String,
    /// How its elements are stored.
    pub encoding: Encoding,
    /// Product of all dimensions but the contiguous one; 1 for a vector.
    pub rows: usize,
    /// The contiguous dimension.
    pub cols: usize,
    /// All dimensions, outermost first; empty for a safetensors scalar.
    pub shape: Vec<usize>,
    file: usize,
    offset: usize,
    len: usize,
}

impl TensorInfo {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.len / self.rows
    }

    /// Bytes of the whole tensor.
    pub fn len_bytes(&self) -> usize {
        self.len
    }
}

/// A file's bytes, mapped or owned.
#[derive(Debug)]
enum Contents {
    Mapped(FileMap),
    Owned(Vec<u8>),
}

impl Contents {
    fn bytes(&self) -> &[u8] {
        match self {
            Contents::Mapped(map) => map.bytes(),
            Contents::Owned(bytes) => bytes,
        }
    }
}

impl WeightFile {
    /// Opens a `.gguf` file or a Hugging Face folder. Nothing but headers is read; tensors are mapped.
    ///
    /// # Errors
    /// If there is no such file or folder, it is of another kind, or anything in it contradicts its format.
    pub fn open(path: impl AsRef<Path>) -> Result<WeightFile> {
        let path = path.as_ref();
        if path.is_dir() {
            return huggingface::open(path);
        }
        let map = FileMap::open(path)?;
        let bytes = map.bytes();
        if !bytes.starts_with(gguf::MAGIC) {
            return Err(not_a_gguf(path, bytes));
        }
        let (metadata, tensors) = gguf::parse(bytes, &path.display().to_string())?;
        Ok(WeightFile {
            description: Description::Gguf(metadata),
            tensors,
            contents: vec![Contents::Mapped(map)],
            paths: vec![path.to_owned()],
        })
    }

    /// Reads a GGUF file that lies in memory; `name` stands for it in errors.
    pub fn from_gguf_bytes(name: &str, bytes: Vec<u8>) -> Result<WeightFile> {
        let (metadata, tensors) = gguf::parse(&bytes, name)?;
        Ok(WeightFile {
            description: Description::Gguf(metadata),
            tensors,
            contents: vec![Contents::Owned(bytes)],
            paths: Vec::new(),
        })
    }

    /// Reads one safetensors file that lies in memory, with an empty configuration; `name` stands for it in errors.
    pub fn from_safetensors_bytes(name: &str, bytes: Vec<u8>) -> Result<WeightFile> {
        let tensors = Tensors::new(safetensors::parse(&bytes, 0, name)?, name)?;
        Ok(WeightFile {
            description: Description::HuggingFace(Box::default()),
            tensors,
            contents: vec![Contents::Owned(bytes)],
            paths: Vec::new(),
        })
    }

    /// What the container says beside the tensors.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// All tensors, in the container's order (for a folder: file by file, each in order of offset).
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors.infos
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The tensor's bytes: `rows` rows of [`TensorInfo::row_bytes`].
    ///
    /// # Panics
    /// If `tensor` belongs to another file and does not fit into this one.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.contents[tensor.file].bytes()[tensor.offset..tensor.offset + tensor.len]
    }

    /// The files whose content makes the model: they identify it. Empty for one read from memory.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

/// Tensors with an index by name; no name occurs twice.
#[derive(Debug, Default)]
struct Tensors {
    infos: Vec<TensorInfo>,
    by_name: std::collections::HashMap<String, usize>,
}

impl Tensors {
    fn new(infos: Vec<TensorInfo>, file: &str) -> Result<Tensors> {
        let mut by_name = std::collections::HashMap::with_capacity(infos.len());
        for (i, info) in infos.iter().enumerate() {
            if by_name.insert(info.name.clone(), i).is_some() {
                let what = format!("{file}: tensor {}", quoted(&info.name));
                return Err(Error::malformed(what, "one tensor of that name", "a second one"));
            }
        }
        Ok(Tensors { infos, by_name })
    }

    fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.infos[i])
    }
}

/// A name from a file as it may be shown: control characters escaped, at most 80 characters.
fn quoted(name: &str) -> String {
    let mut shown: String = name.chars().take(80).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    if shown.is_empty() || shown.chars().any(char::is_control) { format!("{shown:?}") } else { shown }
}

/// Says which encodings plumb reads, for errors about others.
fn supported_encodings(among: &[Encoding]) -> String {
    let names: Vec<&str> = among.iter().map(|e| e.name()).collect();
    format!("plumb reads {}", names.join(", "))
}

/// What a file that does not start as a GGUF seems to be.
fn not_a_gguf(path: &Path, bytes: &[u8]) -> Error {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let found = match bytes {
        [b'P', b'K', 3, 4, ..] => {
            "a ZIP archive (PyTorch checkpoints are; convert it to safetensors)".to_owned()
        }
        [b't', b'j', b'g', b'g', ..] | [b'l', b'm', b'g', b'g', ..] | [b'f', b'm', b'g', b'g', ..] => {
            "a GGML file of before GGUF".to_owned()
        }
        _ if bytes.starts_with(crate::reservoir::MAGIC) => {
            "a .plumb file, which is opened as a pack".to_owned()
        }
        _ if extension == "safetensors" => {
            "a safetensors file, which is opened by the folder it lies in".to_owned()
        }
        [_, _, _, _, ..] => format!("{:02x?}", &bytes[..4]),
        _ => format!("{} bytes", bytes.len()),
    };
    Error::malformed(
        path.display().to_string(),
        "a GGUF file (magic \"GGUF\") or a Hugging Face folder",
        found,
    )
}
