//! Opening a model by its path: a prepared file as it is, anything else through a pack that is kept in a folder and
//! reused as long as its source is the same.
//!
//! It does not know which folder that is, nor how progress is shown.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tensor::files::WeightFile;
use tensor::reservoir::{MAGIC, Reservoir, Source};
use xxhash_rust::xxh3::xxh3_64;

use crate::prepare::{self, ModelBundle, Preparation, prepare};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// What happens while a model is opened, for whoever waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The weights are prepared, and the source is hashed where the pack is kept.
    Packing {
        /// Bytes done.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// Something that a person should know.
    Note(&'a str),
}

/// Told of every [`Event`].
pub type Watch<'a> = dyn FnMut(Event<'_>) + 'a;

/// A model's weights, ready to load, and what its file says of it.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The prepared weights.
    pub weights: Arc<Reservoir>,
    /// Specification, chat template, generation settings.
    pub bundle: ModelBundle,
}

impl Opened {
    fn of(weights: Reservoir) -> Result<Opened> {
        Ok(Opened { bundle: weights.model()?, weights: Arc::new(weights) })
    }

    /// Builds the model's tokenizer.
    ///
    /// # Errors
    /// The file has none, or one that cannot be built.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let missing = || tensor::Error::Missing { what: format!("tokenizer in {}", self.bundle.name) };
        Tokenizer::build(&prepare::tokenizer(&self.weights)?.ok_or_else(missing)?)
    }
}

/// Opens the model at `path`: a `.plumb` file, a GGUF file or a Hugging Face folder.
///
/// What is not prepared yet is packed into the folder `packs` and found there at the next start; a pack whose source has
/// changed or that is of another version is made again, with a note. Where the folder cannot be written, or is `None`,
/// the weights are prepared in private memory.
///
/// # Errors
/// A file that is missing, malformed or of an unknown architecture; a `.plumb` file of another version or whose source
/// has changed; a damaged pack.
pub fn open(path: &Path, packs: Option<&Path>, watch: &mut Watch<'_>) -> Result<Opened> {
    if is_pack(path)? {
        let weights = Reservoir::open(path)?;
        check_source(&weights)?;
        let marker = packs.map(|folder| folder.join(format!(".{}.pages", pack_name(path))));
        return Opened::of(with_huge_pages(weights, marker.as_deref())?);
    }
    let Some(packs) = packs else { return in_memory(path, watch) };
    let source = if path.is_dir() {
        Source::of(WeightFile::open(path)?.paths())?
    } else {
        Source::of(&[path.to_owned()])?
    };
    let name = pack_name(path);
    let (pack, marker) = (packs.join(format!("{name}.plumb")), packs.join(format!(".{name}.pages")));
    if let Some(weights) = reuse(&pack, &source, watch)? {
        return Opened::of(with_huge_pages(weights, Some(&marker))?);
    }
    let lock = match lock(packs, &name, watch) {
        Ok(lock) => lock,
        Err(e) => {
            watch(Event::Note(&format!("{e}; the weights are prepared in memory, at every start again")));
            return in_memory(path, watch);
        }
    };
    if lock.waited
        && let Some(weights) = reuse(&pack, &source, watch)?
    {
        return Opened::of(with_huge_pages(weights, Some(&marker))?);
    }
    match write(path, &pack, watch) {
        Ok(weights) => Opened::of(with_huge_pages(weights, Some(&marker))?),
        Err(Error::Tensor(e @ tensor::Error::Io { .. })) if is_about(&e, packs) => {
            watch(Event::Note(&format!("{e}; the weights are prepared in memory, at every start again")));
            in_memory(path, watch)
        }
        Err(e) => Err(e),
    }
}

/// Prepares the model at `path` and writes it to `pack`, in place of what is there.
///
/// # Errors
/// A file that is missing, malformed or of an unknown architecture; a disk or folder that cannot be written.
pub fn write(path: &Path, pack: &Path, watch: &mut Watch<'_>) -> Result<Reservoir> {
    if is_pack(path)? {
        let what = path.display().to_string();
        return Err(Error::invalid(what, "a GGUF file or a Hugging Face folder", "a .plumb file"));
    }
    let file = WeightFile::open(path)?;
    let preparation = prepare(&file)?;
    let builder = preparation.builder(Source::of(file.paths())?)?;
    let mut fill = |part, out: &mut [u8]| preparation.fill(&file, part, out);
    Ok(builder.write_file(pack, &mut fill, &mut |done, total| watch(Event::Packing { done, total }))?)
}

/// The name, without `.plumb`, of a model's pack in a folder of packs: its file's name, and a hash of where it lies.
pub fn pack_name(path: &Path) -> String {
    let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let stem = if place.is_dir() { place.file_name() } else { place.file_stem() };
    let stem = stem.unwrap_or_default().to_string_lossy();
    format!("{stem}-{:016x}", xxh3_64(place.as_os_str().as_encoded_bytes()))
}

/// True if the file at `path` is a prepared one.
///
/// # Errors
/// There is nothing that can be read.
pub fn is_pack(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return Ok(false);
    }
    let mut start = Vec::new();
    let file = tensor::map::open_regular(path)?;
    file.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(|e| tensor::Error::io(path, e))?;
    Ok(start == MAGIC)
}

fn in_memory(path: &Path, watch: &mut Watch<'_>) -> Result<Opened> {
    let file = WeightFile::open(path)?;
    let preparation: Preparation = prepare(&file)?;
    let builder = preparation.builder(Source::of(file.paths())?)?;
    let mut fill = |part, out: &mut [u8]| preparation.fill(&file, part, out);
    Opened::of(builder.in_memory(&mut fill, &mut |done, total| watch(Event::Packing { done, total }))?)
}

/// The pack, if it is there, can be used and was made from `source`.
fn reuse(pack: &Path, source: &Source, watch: &mut Watch<'_>) -> Result<Option<Reservoir>> {
    let reason = match Reservoir::open(pack) {
        Ok(weights) if !weights.source().is_same(source) => "its source has changed".to_owned(),
        Ok(weights) => match weights.model::<ModelBundle>() {
            Ok(_) => return Ok(Some(weights)),
            Err(e) => e.to_string(),
        },
        Err(tensor::Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(e @ tensor::Error::Checksum { .. }) => return Err(e.into()),
        Err(e) => e.to_string(),
    };
    watch(Event::Note(&format!("{}: packed anew: {reason}", pack.display())));
    Ok(None)
}

/// Refuses a pack whose source is still where it was, and is another file by now.
fn check_source(weights: &Reservoir) -> Result<()> {
    for file in &weights.source().files {
        let Ok(now) = Source::of(&[PathBuf::from(&file.path)]) else { continue };
        let Some(now) = now.files.first() else { continue };
        let identity = |f: &tensor::reservoir::SourceFile| (f.size, f.mtime_ns);
        if identity(now) != identity(file) {
            let what = format!("{}: its source {}", weights.path().display(), file.path);
            let shown =
                |f: &tensor::reservoir::SourceFile| format!("{} bytes written at {} ns", f.size, f.mtime_ns);
            let found = format!("{}; pack it again", shown(now));
            return Err(tensor::Error::malformed(what, shown(file), found).into());
        }
    }
    Ok(())
}

/// A held lock on a pack's name.
struct Lock {
    /// Another process had it first.
    waited: bool,
    _file: File,
}

/// Makes the folder, and waits until no other process packs the same model.
fn lock(packs: &Path, name: &str, watch: &mut Watch<'_>) -> tensor::Result<Lock> {
    std::fs::create_dir_all(packs).map_err(|e| tensor::Error::io(packs, e))?;
    let path = packs.join(format!(".{name}.lock"));
    let file = File::create(&path).map_err(|e| tensor::Error::io(&path, e))?;
    let waited = match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            watch(Event::Note("another process is preparing this model; waiting for it"));
            file.lock().map_err(|e| tensor::Error::io(&path, e))?;
            true
        }
        // A file system without locks: both then write, and the last one's pack stays.
        Ok(()) | Err(TryLockError::Error(_)) => false,
    };
    Ok(Lock { waited, _file: file })
}

fn is_about(error: &tensor::Error, folder: &Path) -> bool {
    matches!(error, tensor::Error::Io { path, .. } if path.starts_with(folder))
}

/// Maps the whole pack, by huge pages where the system gives them. If it does not, the pages are dropped and read once
/// more; where that does not help either, `marker` keeps later starts from trying again before the next boot.
fn with_huge_pages(weights: Reservoir, marker: Option<&Path>) -> Result<Reservoir> {
    let falls_short = |weights: &Reservoir| {
        let mapped = weights.residency();
        mapped.huge_page_bytes < mapped.resident_bytes / 4 * 3
    };
    weights.touch();
    if !cfg!(target_os = "linux") || !falls_short(&weights) {
        return Ok(weights);
    }
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if marker.is_some_and(|marker| std::fs::read(marker).is_ok_and(|tried| tried == boot)) {
        return Ok(weights);
    }
    let weights = weights.refault()?;
    if let Some(marker) = marker
        && falls_short(&weights)
    {
        // Without it the next start only tries once more.
        let _ = std::fs::write(marker, boot);
    }
    Ok(weights)
}
