//! Where plumb keeps files: models and prepared weights, in one cache folder that a person can move or delete; results, which
//! cannot be made again, in the user's data folder.
//!
//! It does not know what the files are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The folders of this user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Places {
    /// Model files by name: `$PLUMB_MODELS`, else `models` in the cache.
    pub(crate) models: PathBuf,
    /// Prepared weights: `packs` in the cache.
    pub(crate) packs: PathBuf,
    /// What machines can do, as probed: `probes` in the cache.
    pub(crate) probes: PathBuf,
    /// What was typed in chats: `history` in the cache.
    pub(crate) history: PathBuf,
    /// The results database: `results.sqlite` in `$PLUMB_DATA`, else in `plumb` in `$XDG_DATA_HOME`, else in
    /// `~/.local/share/plumb`; beside the caches where there is no home.
    pub(crate) results: PathBuf,
}

impl Places {
    /// The folders that the environment names. Nothing is created.
    pub(crate) fn from_env() -> anyhow::Result<Places> {
        Places::of(|key| std::env::var_os(key))
    }

    /// The cache is `$PLUMB_CACHE`, else `plumb` in `$XDG_CACHE_HOME`, else in `~/.cache`. An empty variable is unset,
    /// and a relative `$XDG_CACHE_HOME` is ignored, as its specification asks.
    fn of(variable: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<Places> {
        let path = |key| variable(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = path("PLUMB_CACHE")
            .or_else(|| path("XDG_CACHE_HOME").filter(|p| p.is_absolute()).map(|p| p.join("plumb")))
            .or_else(|| path("HOME").map(|home| home.join(".cache/plumb")));
        let Some(cache) = cache else {
            bail!("no place for files: none of PLUMB_CACHE, XDG_CACHE_HOME and HOME is set");
        };
        let data = path("PLUMB_DATA")
            .or_else(|| path("XDG_DATA_HOME").filter(|p| p.is_absolute()).map(|p| p.join("plumb")))
            .or_else(|| path("HOME").map(|home| home.join(".local/share/plumb")))
            .unwrap_or_else(|| cache.clone());
        Ok(Places {
            results: data.join("results.sqlite"),
            models: path("PLUMB_MODELS").unwrap_or_else(|| cache.join("models")),
            packs: cache.join("packs"),
            probes: cache.join("probes"),
            history: cache.join("history"),
        })
    }
}

/// Makes the folder, and what is above it, if it is not there.
pub(crate) fn create_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot make this folder", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(variables: &[(&str, &str)]) -> anyhow::Result<Places> {
        Places::of(|key| variables.iter().find(|(k, _)| *k == key).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn the_most_particular_variable_wins() {
        let all = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("PLUMB_CACHE", "/p"), ("PLUMB_MODELS", "/m")];
        let models = |n: usize| places(&all[..n]).unwrap().models;
        assert_eq!(models(1), Path::new("/h/.cache/plumb/models"));
        assert_eq!(models(2), Path::new("/x/plumb/models"));
        assert_eq!(models(3), Path::new("/p/models"));
        assert_eq!(models(4), Path::new("/m"));
        assert_eq!(places(&all).unwrap().packs, Path::new("/p/packs"));
    }

    #[test]
    fn results_lie_in_the_data_folder() {
        let all = [("HOME", "/h"), ("XDG_DATA_HOME", "/x"), ("PLUMB_DATA", "/p")];
        let results = |n: usize| places(&all[..n]).unwrap().results;
        assert_eq!(results(1), Path::new("/h/.local/share/plumb/results.sqlite"));
        assert_eq!(results(2), Path::new("/x/plumb/results.sqlite"));
        assert_eq!(results(3), Path::new("/p/results.sqlite"));
        assert_eq!(places(&[("PLUMB_CACHE", "/c")]).unwrap().results, Path::new("/c/results.sqlite"));
    }

    #[test]
    fn empty_and_relative_variables_are_passed_over() {
        let found = places(&[("HOME", "/h"), ("XDG_CACHE_HOME", "rel"), ("PLUMB_CACHE", "")]).unwrap();
        assert_eq!(found.packs, Path::new("/h/.cache/plumb/packs"));
    }

    #[test]
    fn without_a_home_it_says_which_variables_would_help() {
        assert!(places(&[]).unwrap_err().to_string().contains("PLUMB_CACHE"));
    }
}
