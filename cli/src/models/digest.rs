//! SHA-256 of files, and a stamp beside a file that says which content was checked, so that gigabytes are not read
//! again at each start.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::progress;

/// The file's SHA-256 in hexadecimal.
pub(crate) fn sha256(path: &Path) -> anyhow::Result<String> {
    let named = || path.display().to_string();
    let mut file = File::open(path).with_context(named)?;
    let bar = progress::bytes("checking", file.metadata().with_context(named)?.len());
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer).with_context(named)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        bar.inc(read as u64);
    }
    bar.finish_and_clear();
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// An error if the file does not have this hash.
pub(crate) fn check(path: &Path, want: &str) -> anyhow::Result<()> {
    let got = sha256(path)?;
    if got != want {
        bail!("{}: expected sha256 {want}, found {got}", path.display());
    }
    Ok(())
}

/// Like [`check`], but a file that was checked before and has not been touched since is not read.
pub(crate) fn check_once(path: &Path, want: &str) -> anyhow::Result<()> {
    let stamp = stamp(path, want)?;
    if std::fs::read_to_string(stamp_path(path)).is_ok_and(|old| old == stamp) {
        return Ok(());
    }
    check(path, want)?;
    mark(path, want);
    Ok(())
}

/// Remembers that the file was checked.
pub(crate) fn mark(path: &Path, want: &str) {
    // A stamp that cannot be written only costs a later check its time.
    let _ = stamp(path, want).map(|stamp| std::fs::write(stamp_path(path), stamp));
}

/// Where the stamp of a file lies: a hidden file beside it.
fn stamp_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.checked"))
}

/// What identifies a checked file: hash, size, time of change.
fn stamp(path: &Path, want: &str) -> anyhow::Result<String> {
    let metadata = path.metadata().with_context(|| path.display().to_string())?;
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let changed_ns = changed.map_or(0, |time| time.as_nanos());
    Ok(format!("{want} {} {changed_ns}\n", metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn hashes_as_the_standard_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("abc");
        std::fs::write(&file, "abc").unwrap();
        assert_eq!(sha256(&file).unwrap(), ABC);
    }

    #[test]
    fn a_changed_file_is_checked_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        std::fs::write(&file, "abc").unwrap();
        check_once(&file, ABC).unwrap();
        check_once(&file, ABC).unwrap();
        std::fs::write(&file, "abcd").unwrap();
        let message = check_once(&file, ABC).unwrap_err().to_string();
        assert!(message.contains(ABC) && message.contains("model.gguf"), "{message}");
    }

    #[test]
    fn a_stamp_for_another_hash_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        std::fs::write(&file, "abc").unwrap();
        check_once(&file, ABC).unwrap();
        assert!(check_once(&file, &ABC.replace('b', "c")).is_err());
    }
}
