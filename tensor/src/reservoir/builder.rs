//! Making a reservoir: the layout, then one part after another, into a file or into memory.
//!
//! It does not know where the parts come from; the caller fills them. At most one part and one 2 MiB buffer are held.
//!
//! Why the data are written in aligned pieces of 2 MiB: ext4 and xfs then keep them in large folios, which a mapping can
//! use as huge pages.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3;

use super::{Checksum, Kind, Reservoir, Source, header};
use crate::map::{HUGE_PAGE_BYTES, HugeMap};
use crate::panels;
use crate::{Error, Result};

/// A piece of a tensor that is filled at once: a panel of 16 rows, or the whole of anything that is not a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index into the tensors given to [`Builder::new`].
    pub tensor: usize,
    /// Index of the panel; its rows are `16 * panel` to `16 * panel + 15` as far as the tensor has them.
    pub panel: usize,
}

/// Fills the bytes of one part. They are handed over zeroed, parts in order.
pub type Fill<'a> = dyn FnMut(Part, &mut [u8]) -> Result<()> + 'a;

/// Told the bytes done and their total.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// A reservoir to be made.
#[derive(Debug)]
pub struct Builder {
    table: header::Table,
    model: String,
    data_offset: u64,
    file_len: u64,
}

impl Builder {
    /// Lays out `tensors`. `model` is what the engine will want to know of the model when it opens the pack.
    ///
    /// # Errors
    /// If two tensors have one name, a size cannot be addressed, or the header would exceed its share of 16 MiB.
    pub fn new(model: &impl Serialize, source: Source, tensors: Vec<(String, Kind)>) -> Result<Builder> {
        let model = serde_json::to_string(model).map_err(|e| {
            Error::malformed("the model's description", "data that JSON can hold", e.to_string())
        })?;
        let table = header::Table { source, tensors: header::lay_out(tensors)? };
        let (data_offset, file_len) = header::sizes(&table, &model)?;
        Ok(Builder { table, model, data_offset, file_len })
    }

    /// Bytes of the finished file, which are also the bytes that an in-memory reservoir takes.
    pub fn len_bytes(&self) -> u64 {
        self.file_len
    }

    /// Writes the reservoir to `path` and opens it. A source without hashes is hashed meanwhile, on a second thread.
    ///
    /// It is written under another name in the same folder, synced, and renamed: there is never half a file at `path`.
    /// The temporary file goes away on any error; one that a killed process left behind goes away when the same pack is
    /// written next. Of several processes that write the same path, each writes its own file and the last to finish stays.
    pub fn write_file(
        self,
        path: &Path,
        fill: &mut Fill<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<Reservoir> {
        self.write_file_through(path, fill, progress, |file| file.try_clone())?;
        Reservoir::open(path)
    }

    /// As [`Builder::write_file`], through whatever `store` makes of the temporary file.
    fn write_file_through<S: Store>(
        mut self,
        path: &Path,
        fill: &mut Fill<'_>,
        progress: &mut Progress<'_>,
        store: impl FnOnce(&File) -> io::Result<S>,
    ) -> Result<()> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let temporary = create_temporary(folder, path).map_err(|e| Error::io(folder, e))?;
        let at_path = |e| Error::io(path, e);
        reserve_space(temporary.as_file(), self.file_len).map_err(at_path)?;
        let mut store = store(temporary.as_file()).map_err(at_path)?;
        self.write_data_hashing(&mut store, path, fill, progress)?;
        self.write_head(&mut store, path)?;
        temporary.as_file().sync_all().map_err(at_path)?;
        temporary.persist(path).map_err(|e| Error::io(path, e.error))?;
        // The rename itself must survive a power failure too.
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| Error::io(folder, e))
    }

    /// Makes the reservoir in private memory, with huge pages where the system has them. The source is not hashed.
    pub fn in_memory(mut self, fill: &mut Fill<'_>, progress: &mut Progress<'_>) -> Result<Reservoir> {
        let mut map = super::anonymous(self.file_len)?;
        let name = Path::new("prepared weights in memory");
        self.write_data(&mut map, name, fill, progress)?;
        self.write_head(&mut map, name)?;
        Reservoir::from_map(map, name)
    }

    /// Writes the data while a second thread hashes the source.
    fn write_data_hashing(
        &mut self,
        store: &mut impl Store,
        path: &Path,
        fill: &mut Fill<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut source = self.table.source.clone();
        if source.is_hashed() {
            return self.write_data(store, path, fill, progress);
        }
        let to_hash = source.len_bytes();
        let (hashed, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
        let source = std::thread::scope(|scope| {
            let hasher = scope.spawn(|| {
                let result = source.hash_while(&mut |bytes| {
                    hashed.fetch_add(bytes, Ordering::Relaxed);
                    !stopped.load(Ordering::Relaxed)
                });
                result.map(|()| source)
            });
            let (mut written, mut to_write) = (0, 0);
            let result = self.write_data(store, path, fill, &mut |done, total| {
                (written, to_write) = (done, total);
                progress(done + hashed.load(Ordering::Relaxed), total + to_hash);
            });
            stopped.store(result.is_err(), Ordering::Relaxed);
            while !hasher.is_finished() {
                std::thread::sleep(Duration::from_millis(10));
                if result.is_ok() {
                    progress(written + hashed.load(Ordering::Relaxed), to_write + to_hash);
                }
            }
            let source = hasher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.and(source)
        })?;
        self.table.source = source;
        progress(self.data_bytes() + to_hash, self.data_bytes() + to_hash);
        Ok(())
    }

    /// Bytes of the data region.
    fn data_bytes(&self) -> u64 {
        self.file_len - self.data_offset
    }

    fn write_data(
        &mut self,
        store: &mut impl Store,
        path: &Path,
        fill: &mut Fill<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let total = self.data_bytes();
        let mut out = Pieces { store, at: self.data_offset, buffer: Vec::with_capacity(HUGE_PAGE_BYTES) };
        let mut part_bytes = Vec::new();
        for tensor in 0..self.table.tensors.len() {
            let entry = &self.table.tensors[tensor];
            let (parts, len) = entry.kind.parts();
            let mut hash = Xxh3::new();
            out.pad_to(self.data_offset + entry.offset).map_err(|e| Error::io(path, e))?;
            for panel in 0..parts {
                part_bytes.clear();
                part_bytes.resize(len, 0);
                fill(Part { tensor, panel }, &mut part_bytes)?;
                hash.update(&part_bytes);
                out.put(&part_bytes).map_err(|e| Error::io(path, e))?;
                progress(out.at - self.data_offset, total);
            }
            self.table.tensors[tensor].checksum = Checksum(hash.digest128());
        }
        out.pad_to(self.file_len).map_err(|e| Error::io(path, e))?;
        progress(total, total);
        Ok(())
    }

    /// The head comes last, when checksums and hashes are known.
    fn write_head(&self, store: &mut impl Store, path: &Path) -> Result<()> {
        let head = header::encode(&self.table, &self.model, self.data_offset, self.file_len)?;
        let mut out = Pieces { store, at: 0, buffer: Vec::with_capacity(HUGE_PAGE_BYTES) };
        out.put(&head).map_err(|e| Error::io(path, e))
    }
}

impl Kind {
    /// How many parts the tensor is filled in, and how long each is.
    fn parts(&self) -> (usize, usize) {
        match *self {
            Kind::Panels { encoding, rows, cols } => {
                (rows.div_ceil(panels::PANEL_ROWS), panels::panel_bytes(encoding, cols))
            }
            Kind::Vector { len } => (1, len * size_of::<f32>()),
            Kind::Bytes { len } => (1, len),
        }
    }
}

/// Where the bytes go.
trait Store {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl Store for File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }
}

impl Store for HugeMap {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = offset as usize;
        let target = self.bytes_mut().and_then(|all| all.get_mut(at..at + bytes.len()));
        target.ok_or(io::ErrorKind::WriteZero)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// Gathers bytes into aligned writes of 2 MiB. Starts and ends at multiples of that.
struct Pieces<'a, S> {
    store: &'a mut S,
    /// Where the next byte goes.
    at: u64,
    buffer: Vec<u8>,
}

impl<S: Store> Pieces<'_, S> {
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(HUGE_PAGE_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            self.at += now.len() as u64;
            bytes = later;
            self.flush_full()?;
        }
        Ok(())
    }

    fn pad_to(&mut self, offset: u64) -> io::Result<()> {
        while self.at < offset {
            let now = (offset - self.at).min((HUGE_PAGE_BYTES - self.buffer.len()) as u64);
            self.buffer.resize(self.buffer.len() + now as usize, 0);
            self.at += now;
            self.flush_full()?;
        }
        Ok(())
    }

    fn flush_full(&mut self) -> io::Result<()> {
        if self.buffer.len() == HUGE_PAGE_BYTES {
            self.store.write_at(&self.buffer, self.at - HUGE_PAGE_BYTES as u64)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

/// Finds a full disk before the work instead of after it, where the file system can say.
fn reserve_space(file: &File, len: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::io::Errno;
        // Not every file system can reserve; then the write itself will tell.
        let reserved = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len);
        if let Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
            return Err(e.into());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, len);
    Ok(())
}

const TEMPORARY_SUFFIX: &str = ".tmp";

fn temporary_prefix(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

/// A new temporary file beside `path`, locked as long as it is being written; those of dead writers are removed.
fn create_temporary(folder: &Path, path: &Path) -> io::Result<NamedTempFile> {
    let prefix = temporary_prefix(path);
    remove_abandoned(folder, &prefix);
    loop {
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(TEMPORARY_SUFFIX)
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder)?;
        // A file system without locks keeps abandoned files, and nothing worse.
        let _ = file.as_file().lock();
        // Another writer may have taken the file for abandoned before it was locked.
        if file.as_file().metadata()?.nlink() > 0 {
            return Ok(file);
        }
    }
}

/// Removes the temporary files of writers that no longer live, which is seen by their locks.
fn remove_abandoned(folder: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(prefix) || !name.ends_with(TEMPORARY_SUFFIX) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        if file.try_lock().is_ok() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> Builder {
        let tensors =
            vec![("a".to_owned(), Kind::Vector { len: 1 << 20 }), ("b".to_owned(), Kind::Vector { len: 3 })];
        Builder::new(&"model", Source::default(), tensors).unwrap()
    }

    /// A disk that is full after some bytes.
    struct FullDisk(u64);

    impl Store for FullDisk {
        fn write_at(&mut self, bytes: &[u8], _: u64) -> io::Result<()> {
            self.0 = self.0.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::StorageFull)?;
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_leaves_nothing_behind_and_the_old_pack_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.plumb");
        std::fs::write(&path, "an older pack").unwrap();
        for room in [0, HUGE_PAGE_BYTES as u64, 3 * HUGE_PAGE_BYTES as u64] {
            let error = builder()
                .write_file_through(&path, &mut |_, _| Ok(()), &mut |_, _| {}, |_| Ok(FullDisk(room)));
            assert!(matches!(error, Err(Error::Io { .. })), "{error:?}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the old pack is there");
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"an older pack");
    }

    #[test]
    fn a_failing_source_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.plumb");
        let mut fill = |part: Part, _: &mut [u8]| match part.tensor {
            0 => Ok(()),
            _ => Err(Error::malformed("b", "readable", "not")),
        };
        assert!(builder().write_file(&path, &mut fill, &mut |_, _| {}).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_a_living_writers_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.plumb");
        let abandoned = folder.path().join(".m.plumb.dead.tmp");
        std::fs::write(&abandoned, "half").unwrap();
        let living = create_temporary(folder.path(), &path).unwrap();
        assert!(!abandoned.exists());
        let second = create_temporary(folder.path(), &path).unwrap();
        assert!(living.path().exists() && second.path().exists() && living.path() != second.path());
    }

    /// Writes must be aligned pieces of 2 MiB, or the page cache does not keep the file in large folios.
    #[test]
    fn all_writes_are_aligned_pieces() {
        struct Aligned;
        impl Store for Aligned {
            fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
                assert_eq!((bytes.len(), offset % HUGE_PAGE_BYTES as u64), (HUGE_PAGE_BYTES, 0));
                Ok(())
            }
        }
        let mut builder = builder();
        builder.write_data(&mut Aligned, Path::new("m"), &mut |_, _| Ok(()), &mut |_, _| {}).unwrap();
        builder.write_head(&mut Aligned, Path::new("m")).unwrap();
    }

    #[test]
    fn progress_ends_at_the_total() {
        let mut last = (0, 0);
        builder()
            .in_memory(&mut |_, _| Ok(()), &mut |done, total| {
                assert!(done >= last.0 && done <= total);
                last = (done, total);
            })
            .unwrap();
        assert!(last.0 == last.1 && last.1 > 0);
    }
}
