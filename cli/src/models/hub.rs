//! Files from the Hugging Face hub, into its own cache that other programs share.
//!
//! The client has no time limits, so each call runs beside a clock: an unreachable hub is a message within seconds, a
//! stalled download one within half a minute, and the next try goes on where it stopped.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Cache, Repo};

use super::digest;
use crate::failure::usage;
use crate::progress;

/// How long the hub may take to say what a file is.
const ANSWER: Duration = Duration::from_secs(8);

/// How long a download may bring nothing.
const STALL: Duration = Duration::from_secs(30);

/// A connection to the hub; opening one touches no network.
pub(crate) struct Hub {
    api: Api,
}

impl Hub {
    /// The hub that `HF_ENDPOINT`, `HF_HOME` and the stored token describe. `HF_HUB_OFFLINE` is an error.
    pub(crate) fn open() -> anyhow::Result<Hub> {
        if std::env::var_os("HF_HUB_OFFLINE").is_some_and(|v| !v.is_empty() && v != "0") {
            bail!("HF_HUB_OFFLINE is set");
        }
        let builder = ApiBuilder::from_env().with_progress(false);
        let api = builder.with_user_agent("plumb", env!("CARGO_PKG_VERSION")).build()?;
        Ok(Hub { api })
    }

    /// The names of a repository's files.
    pub(crate) fn files(&self, repository: &str) -> anyhow::Result<Vec<String>> {
        let model = self.api.model(repository.to_owned());
        let info = within(ANSWER, move || model.info())?;
        Ok(info.siblings.into_iter().map(|file| file.rfilename).collect())
    }

    /// Fetches one file and says where it lies in the hub's cache. The hub must say that it has the file with the hash
    /// `want`; what comes must have the hash that the hub says. A file that is there already is not fetched again.
    pub(crate) fn file(&self, repository: &str, name: &str, want: Option<&str>) -> anyhow::Result<PathBuf> {
        let model = self.api.model(repository.to_owned());
        let (api, url) = (self.api.clone(), model.url(name));
        let metadata = within(ANSWER, move || api.metadata(&url))?;
        let etag = metadata.etag().to_owned();
        // Large files have their SHA-256 as the tag, small ones a git hash.
        let hash = (etag.len() == 64).then_some(etag.as_str());
        if let (Some(want), Some(has)) = (want, hash)
            && want != has
        {
            bail!("{repository}/{name} has changed: expected sha256 {want}, the hub has {has}");
        }

        let cached = Cache::from_env().model(repository.to_owned());
        let here = cached.pointer_path(metadata.commit_hash()).join(name);
        if here.exists() && cached.get(name).as_deref() == Some(&here) {
            return Ok(here);
        }
        let path = download(model, name, metadata.size() as u64)?;
        if let Some(hash) = hash {
            let blob = path.canonicalize().with_context(|| path.display().to_string())?;
            digest::check(&blob, hash).inspect_err(|_| {
                // A bad copy must not be taken for a good one by the next try.
                let _ = std::fs::remove_file(&blob);
                let _ = std::fs::remove_file(&path);
            })?;
        }
        Ok(path)
    }
}

/// The folder of a repository that was fetched before, in the state that its main branch had then.
pub(crate) fn cached_folder(repository: &str) -> Option<PathBuf> {
    let cache = Cache::from_env();
    let reference = cache.path().join(Repo::model(repository.to_owned()).folder_name()).join("refs/main");
    let commit = std::fs::read_to_string(reference).ok()?;
    let folder = cache.model(repository.to_owned()).pointer_path(commit.trim());
    folder.is_dir().then_some(folder)
}

/// Which of a repository's files make up one model: a GGUF file, or a folder's configuration, tokenizer and weights.
pub(crate) fn choose(files: &[String], wanted: Option<&str>) -> anyhow::Result<Vec<String>> {
    if let Some(wanted) = wanted {
        if !files.iter().any(|file| file == wanted) {
            return Err(usage(format!("no file {wanted}; there are: {}", files.join(", "))));
        }
        return Ok(vec![wanted.to_owned()]);
    }
    let with_end = |end: &str| files.iter().filter(|file| file.ends_with(end)).cloned().collect::<Vec<_>>();
    let top = |file: &&String| !file.contains('/');
    let weights: Vec<_> = with_end(".safetensors").iter().filter(top).cloned().collect();
    let has_config = files.iter().any(|file| file == "config.json");
    if has_config && !weights.is_empty() {
        let beside =
            files.iter().filter(top).filter(|file| file.ends_with(".json") || file.ends_with(".jinja"));
        return Ok(beside.cloned().chain(weights).collect());
    }
    match with_end(".gguf").as_slice() {
        [one] => Ok(vec![one.clone()]),
        [] => Err(anyhow!("neither a .gguf file nor config.json with .safetensors files in this repository")),
        several => {
            Err(usage(format!("several models; name one, as OWNER/REPO/FILE: {}", several.join(", "))))
        }
    }
}

/// What the download's thread says of its way.
enum Event {
    Bytes(usize),
    Done(Result<PathBuf, String>),
}

struct Reporter(SyncSender<Event>);

impl Progress for Reporter {
    fn init(&mut self, _size: usize, _filename: &str) {}
    fn update(&mut self, bytes: usize) {
        // Nobody listens any more only when the program is on its way out.
        let _ = self.0.send(Event::Bytes(bytes));
    }
    fn finish(&mut self) {}
}

fn download(model: hf_hub::api::sync::ApiRepo, name: &str, bytes: u64) -> anyhow::Result<PathBuf> {
    let bar = progress::bytes(name, bytes);
    let (sender, events) = mpsc::sync_channel(64);
    let owned = name.to_owned();
    std::thread::spawn(move || {
        let result = model.download_with_progress(&owned, Reporter(sender.clone()));
        let _ = sender.send(Event::Done(result.map_err(|error| error.to_string())));
    });
    loop {
        match events.recv_timeout(STALL) {
            Ok(Event::Bytes(n)) => bar.inc(n as u64),
            Ok(Event::Done(result)) => {
                bar.finish_and_clear();
                return result.map_err(|error| anyhow!("{name}: {error}"));
            }
            Err(RecvTimeoutError::Timeout) => {
                bar.abandon();
                bail!("{name}: nothing came for {} s; the next try goes on from here", STALL.as_secs());
            }
            Err(RecvTimeoutError::Disconnected) => bail!("{name}: the download stopped without a word"),
        }
    }
}

/// Runs `call` in a thread of its own and gives up waiting after `limit`; the thread is left to end by itself.
fn within<T: Send + 'static, E: std::fmt::Display + Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(call().map_err(|error| error.to_string()));
    });
    match answer.recv_timeout(limit) {
        Ok(result) => result.map_err(|error| anyhow!("{error}")),
        Err(RecvTimeoutError::Timeout) => bail!("no answer within {} s", limit.as_secs_f32()),
        Err(RecvTimeoutError::Disconnected) => bail!("the connection failed without a word"),
    }
}

/// True if `name` has the form of a repository, or of a file in one: OWNER/REPO[/FILE].
pub(crate) fn split_repository(name: &str) -> Option<(String, Option<&str>)> {
    let mut words = name.splitn(3, '/');
    let (owner, repository, file) = (words.next()?, words.next()?, words.next());
    let plain = |word: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !word.is_empty() && word.chars().all(allowed) && !word.starts_with('.')
    };
    let good = plain(owner)
        && plain(repository)
        && file.is_none_or(|f| !f.is_empty() && !Path::new(f).is_absolute());
    good.then(|| (format!("{owner}/{repository}"), file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| (*file).to_owned()).collect()
    }

    #[test]
    fn a_folder_model_brings_all_that_belongs_to_it() {
        let files = names(&[
            "README.md",
            "config.json",
            "tokenizer.json",
            "chat_template.jinja",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "onnx/model.onnx",
            "original/consolidated.safetensors",
            "pytorch_model.bin",
        ]);
        let chosen = choose(&files, None).unwrap();
        assert_eq!(chosen, names(&files[1..7].iter().map(String::as_str).collect::<Vec<_>>()));
    }

    #[test]
    fn one_gguf_is_taken_and_of_several_one_must_be_named() {
        assert_eq!(choose(&names(&["README.md", "a.gguf"]), None).unwrap(), ["a.gguf"]);
        let several = names(&["a.Q4_1.gguf", "a.Q8_0.gguf"]);
        let error = choose(&several, None).unwrap_err();
        assert!(error.is::<crate::failure::Usage>() && error.to_string().contains("a.Q8_0.gguf"));
        assert_eq!(choose(&several, Some("a.Q8_0.gguf")).unwrap(), ["a.Q8_0.gguf"]);
        assert!(choose(&several, Some("b.gguf")).unwrap_err().to_string().contains("a.Q4_1.gguf"));
    }

    #[test]
    fn a_repository_without_a_model_says_what_was_sought() {
        assert!(choose(&names(&["README.md"]), None).unwrap_err().to_string().contains(".gguf"));
    }

    #[test]
    fn an_answer_that_does_not_come_is_an_error() {
        let never = || {
            std::thread::park();
            Ok::<(), String>(())
        };
        assert!(within(Duration::from_millis(5), never).unwrap_err().to_string().contains("no answer"));
        assert!(within(ANSWER, || Err::<(), _>("refused")).unwrap_err().to_string().contains("refused"));
        assert_eq!(within(ANSWER, || Ok::<_, String>(7)).unwrap(), 7);
    }

    #[test]
    fn repositories_are_told_from_paths() {
        assert_eq!(split_repository("Qwen/Qwen3-8B"), Some(("Qwen/Qwen3-8B".to_owned(), None)));
        assert_eq!(split_repository("a/b/c/d.gguf"), Some(("a/b".to_owned(), Some("c/d.gguf"))));
        for path in ["name", "./a", "../a/b", "/a/b", "~/a b/c", "a//b", ""] {
            assert_eq!(split_repository(path), None, "{path}");
        }
    }
}
