//! What a pack was made from: recognised by file identity at every start, by hash when it matters.
//!
//! It does not know what the files hold.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::map::open_regular;
use crate::{Error, Result};

/// The files that a model consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// One for a GGUF; configuration, tokenizer and shards for a folder.
    pub files: Vec<SourceFile>,
}

/// One file's identity and, once it was read, its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Where it lay, for people; it is recognised by what follows.
    pub path: String,
    /// The device it lies on.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
    /// Its length in bytes.
    pub size: u64,
    /// When its content last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// SHA-256 of its content, in hexadecimal; `None` before [`Source::hash`].
    pub sha256: Option<String>,
}

impl SourceFile {
    fn new(path: &Path, metadata: &Metadata) -> SourceFile {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        SourceFile {
            path: path.to_string_lossy().into_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            mtime_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
            sha256: None,
        }
    }

    fn is_same_file(&self, other: &SourceFile) -> bool {
        let identity = |f: &SourceFile| (f.device, f.inode, f.size, f.mtime_ns);
        identity(self) == identity(other)
    }
}

impl Source {
    /// The identity of the files at `paths`, without reading them.
    pub fn of(paths: &[PathBuf]) -> Result<Source> {
        let file = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
            Ok(SourceFile::new(path, &metadata))
        };
        Ok(Source { files: paths.iter().map(file).collect::<Result<_>>()? })
    }

    /// True if both are the same files on disk, unchanged: same device, inode, size and modification time, whatever
    /// their paths and hashes.
    pub fn is_same(&self, other: &Source) -> bool {
        self.files.len() == other.files.len()
            && self.files.iter().zip(&other.files).all(|(a, b)| a.is_same_file(b))
    }

    /// Bytes of all files.
    pub fn len_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).fold(0, u64::saturating_add)
    }

    /// Reads and hashes all files. `progress` is told the bytes done and their total.
    ///
    /// # Errors
    /// If a file is no longer the one that [`Source::of`] saw.
    pub fn hash(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let total = self.len_bytes();
        let mut done = 0;
        self.hash_while(&mut |bytes| {
            done += bytes;
            progress(done, total);
            true
        })
    }

    /// As [`Source::hash`], as long as `go_on`, told of the bytes read since it was last asked, says so.
    pub(super) fn hash_while(&mut self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        for file in &mut self.files {
            file.sha256 = sha256(file, go_on)?;
        }
        Ok(())
    }

    /// True if every file has its hash.
    pub(super) fn is_hashed(&self) -> bool {
        self.files.iter().all(|f| f.sha256.is_some())
    }

    /// Hashes the files where they lay and compares with the hashes recorded here.
    ///
    /// # Errors
    /// [`Error::Checksum`] names the first file whose content differs.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let paths: Vec<PathBuf> = self.files.iter().map(|f| PathBuf::from(&f.path)).collect();
        let mut now = Source::of(&paths)?;
        now.hash(progress)?;
        for (recorded, now) in self.files.iter().zip(&now.files) {
            if recorded.sha256 != now.sha256 {
                let shown = |hash: &Option<String>| hash.clone().unwrap_or_else(|| "none".into());
                return Err(Error::Checksum {
                    what: recorded.path.clone(),
                    expected: shown(&recorded.sha256),
                    found: shown(&now.sha256),
                });
            }
        }
        Ok(())
    }
}

/// The hash of a file, or `None` if it was not to go on.
fn sha256(expected: &SourceFile, go_on: &mut dyn FnMut(u64) -> bool) -> Result<Option<String>> {
    let path = Path::new(&expected.path);
    let mut file = open_regular(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer).map_err(|e| Error::io(path, e))?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        if !go_on(n as u64) {
            return Ok(None);
        }
    }
    let now = SourceFile::new(path, &file.metadata().map_err(|e| Error::io(path, e))?);
    if !now.is_same_file(expected) {
        return Err(Error::malformed(
            &expected.path,
            "the same file as before it was hashed",
            "a changed one",
        ));
    }
    Ok(Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_no_longer_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, "abc").unwrap();
        let mut source = Source::of(std::slice::from_ref(&path)).unwrap();
        source.hash(&mut |_, _| {}).unwrap();
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(source.files[0].sha256.as_deref(), Some(abc));
        assert!(source.is_same(&Source::of(std::slice::from_ref(&path)).unwrap()));
        source.verify(&mut |_, _| {}).unwrap();

        std::fs::write(&path, "abcd").unwrap();
        assert!(!source.is_same(&Source::of(std::slice::from_ref(&path)).unwrap()));
        assert!(matches!(source.verify(&mut |_, _| {}), Err(Error::Checksum { .. })));
        assert!(source.hash(&mut |_, _| {}).is_err());
    }

    #[test]
    fn a_renamed_file_is_still_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "abc").unwrap();
        let source = Source::of(std::slice::from_ref(&a)).unwrap();
        std::fs::rename(&a, &b).unwrap();
        assert!(source.is_same(&Source::of(&[b]).unwrap()));
    }
}
