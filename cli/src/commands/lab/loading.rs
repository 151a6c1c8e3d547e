//! A model with settings, as the laboratory takes it: what was asked, and what the device says was applied.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use cpu::{CpuDevice, Isa};
use engine::open::Opened;
use engine::{LoadOptions, Model};
use lab::arms::{Loaded, PlumbArm, Workload};
use lab::clock::Clock;
use lab::results::{ModelId, Settings};
use tensor::device::Device;
use tensor::kv::KvSettings;
use tensor::reservoir::Reservoir;

use crate::commands::kv;
use crate::failure::usage;
use crate::places::Places;
use crate::{models, opening};

/// What can be set, and what it means.
pub(crate) const KEYS: &[(&str, &str)] = &[
    ("threads", "threads of a step"),
    ("kernels", "kernel table: portable, avx2, avx512, avx512-bw, avx512-vnni"),
    ("context", "positions that the model is loaded for"),
    ("weights", "shared (a mapping) or private (this process's own memory)"),
    ("kv", "how keys and values are stored: f16, q8, q6, q5, q4, q3, q2, or KEYS/VALUES"),
    ("kv-window", "positions that stay unpacked"),
    ("kv-sinks", "first positions that stay unpacked"),
    ("kv-rotate", "what is rotated before it is packed: none, keys, values, both"),
    ("kv-nudged", "yes: every half is stored one unit in the last place off, a control"),
];

/// A model whose file is open.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) opened: Opened,
    private: Option<Arc<Reservoir>>,
}

impl Source {
    /// Finds and opens the model that `name` means.
    pub(crate) fn open(name: &str) -> anyhow::Result<Source> {
        let places = Places::from_env()?;
        let path = models::resolve(name, &places)?;
        let opened = opening::open(&path, &places)?;
        Ok(Source { path, opened, private: None })
    }

    /// What distinguishes the model in the database.
    pub(crate) fn id(&self) -> ModelId {
        let source = self.opened.weights.source();
        let hashes: Vec<String> = source
            .files
            .iter()
            .map(|f| f.sha256.clone().unwrap_or_else(|| format!("unhashed-{}-{}", f.size, f.mtime_ns)))
            .collect();
        ModelId {
            hash: hashes.join("+"),
            name: name_of(&self.path),
            precision: self.precision(&KvSettings::default()),
        }
    }

    /// Encodings of weights, activations and a cache.
    pub(crate) fn precision(&self, kv: &KvSettings) -> String {
        let weights: Vec<String> = self.opened.bundle.encodings.iter().map(|(e, _)| e.to_string()).collect();
        format!("{}/int8/kv-{}", weights.join("+"), kv.class())
    }

    fn weights(&mut self, is_private: bool) -> anyhow::Result<Arc<Reservoir>> {
        if !is_private {
            return Ok(Arc::clone(&self.opened.weights));
        }
        if self.private.is_none() {
            self.private = Some(Arc::new(self.opened.weights.to_private()?));
        }
        Ok(self.private.as_ref().map_or_else(|| Arc::clone(&self.opened.weights), Arc::clone))
    }

    /// Loads the model with `settings` for `sequences` sequences of at least `positions`.
    pub(crate) fn load(
        &mut self,
        settings: &Settings,
        positions: usize,
        sequences: usize,
    ) -> anyhow::Result<Loaded> {
        self.load_with(settings, positions, sequences, false)
    }

    /// A model that keeps prefixes, as a server's does.
    pub(crate) fn load_keeping_prefixes(
        &mut self,
        settings: &Settings,
        positions: usize,
    ) -> anyhow::Result<Model> {
        Ok(self.load_with(settings, positions, 1, true)?.model)
    }

    fn load_with(
        &mut self,
        settings: &Settings,
        positions: usize,
        sequences: usize,
        keep_prefixes: bool,
    ) -> anyhow::Result<Loaded> {
        let number = |key: &str| settings.get(key).map(|text| count(key, text)).transpose();
        let threads = number("threads")?.unwrap_or_else(cpu::default_threads);
        let device = match settings.get("kernels") {
            Some(name) => CpuDevice::new(Isa::from_name(name).map_err(|e| usage(e.to_string()))?, threads)
                .map_err(|e| usage(e.to_string()))?,
            None => opening::device(Some(threads))?,
        };
        let weights = self.weights(settings.get("weights").is_some_and(|w| w == "private"))?;
        let most = self.opened.bundle.spec.context;
        let context = number("context")?.unwrap_or(positions.min(most));
        // A sample forks the sequences that stand at its depth, so that both hold blocks at once.
        let sequences = if keep_prefixes { sequences } else { 2 * sequences };
        let kv = kv::KvFlags::from_settings(&|key| settings.get(key).cloned())?.settings(context)?;
        let kv = KvSettings { nudged: settings.contains_key("kv-nudged"), ..kv };
        let options = LoadOptions {
            context: Some(context),
            sequences,
            keep_prefixes,
            private_weights: weights.is_private(),
            kv,
            ..LoadOptions::default()
        };
        let is_private = weights.is_private();
        let model = Model::load(&device, self.opened.bundle.spec.clone(), weights, &options)?;
        let info = device.info();
        let applied = [
            ("threads", info.threads.to_string()),
            ("kernels", info.kernels),
            ("context", model.context().to_string()),
            ("weights", if is_private { "private" } else { "shared" }.to_owned()),
        ];
        let mut applied: Settings = applied.map(|(key, value)| (key.to_owned(), value)).into();
        applied.extend(kv_applied(&model.plan().kv.settings));
        Ok(Loaded { model, applied, precision: self.precision(&kv), notes: Vec::new() })
    }

    /// Copies of the model in memory of their own, together at least `bytes`, for the control of residency; at most 32.
    pub(crate) fn copies(
        &mut self,
        settings: &Settings,
        workload: Workload,
        positions: usize,
        bytes: u64,
        clock: &Rc<dyn Clock>,
    ) -> anyhow::Result<Vec<PlumbArm>> {
        let count = bytes.div_ceil(self.opened.weights.len_bytes().max(1)).clamp(2, 32);
        let kept = self.private.take();
        let mut arms = Vec::new();
        for _ in 0..count {
            self.private = None;
            let mut settings = settings.clone();
            settings.insert("weights".into(), "private".into());
            arms.push(self.arm("copy", &settings, workload, positions, Rc::clone(clock))?);
        }
        self.private = kept;
        Ok(arms)
    }

    /// An arm with `settings`.
    pub(crate) fn arm(
        &mut self,
        label: &str,
        settings: &Settings,
        workload: Workload,
        positions: usize,
        clock: Rc<dyn Clock>,
    ) -> anyhow::Result<PlumbArm> {
        let loaded = self.load(settings, positions, workload.batch)?;
        Ok(PlumbArm::new(label, settings.clone(), loaded, workload, clock))
    }
}

/// What a loaded model's cache says of itself.
fn kv_applied(kv: &KvSettings) -> Settings {
    let rotated = match (kv.rotate_keys, kv.rotate_values) {
        (false, false) => "none",
        (true, false) => "keys",
        (false, true) => "values",
        (true, true) => "both",
    };
    let all = [
        ("kv", kv.to_string()),
        ("kv-window", kv.window.to_string()),
        ("kv-sinks", kv.sinks.to_string()),
        ("kv-rotate", rotated.to_owned()),
        ("kv-nudged", if kv.nudged { "yes" } else { "no" }.to_owned()),
    ];
    all.map(|(key, value)| (key.to_owned(), value)).into()
}

/// A model's name for people.
fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn count(key: &str, text: &str) -> anyhow::Result<usize> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(usage(format!("{key}: expected a whole number above 0, found {text:?}"))),
    }
}

/// `key=value,key=value`. Names of kernel tables are written out, so that they can be compared with what was applied.
pub(crate) fn settings(text: &str) -> anyhow::Result<Settings> {
    let mut settings = Settings::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            return Err(usage(format!("{part:?}: expected KEY=VALUE; keys: {}", keys())));
        };
        let (key, value) = (key.trim(), value.trim());
        let value = match key {
            "threads" | "context" => count(key, value)?.to_string(),
            "kernels" => Isa::from_name(value).map_err(|e| usage(e.to_string()))?.name().to_owned(),
            "weights" if value == "shared" || value == "private" => value.to_owned(),
            "kv" => value.parse::<KvSettings>().map_err(|e| usage(e.to_string()))?.to_string(),
            "kv-window" | "kv-sinks" | "kv-rotate" => value.to_owned(),
            "kv-nudged" if value == "yes" => value.to_owned(),
            "kv-nudged" => return Err(usage(format!("kv-nudged: expected yes, found {value:?}"))),
            "weights" => return Err(usage(format!("weights: expected shared or private, found {value:?}"))),
            _ => return Err(usage(format!("{key}: no such setting; there are {}", keys()))),
        };
        if settings.insert(key.to_owned(), value).is_some() {
            return Err(usage(format!("{key}: set twice")));
        }
    }
    Ok(settings)
}

/// The settings, for help and errors.
pub(crate) fn keys() -> String {
    KEYS.iter().map(|(key, means)| format!("{key} ({means})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_key() {
        let read = settings("threads=2, kernels=portable").unwrap();
        assert_eq!((read["threads"].as_str(), read["kernels"].as_str()), ("2", "portable"));
        assert!(settings("").unwrap().is_empty());
        for (wrong, says) in [
            ("threads", "KEY=VALUE"),
            ("threads=0", "above 0"),
            ("thread=2", "no such setting"),
            ("kernels=mmx", "portable"),
            ("weights=mine", "private"),
            ("threads=1,threads=2", "twice"),
        ] {
            let error = settings(wrong).unwrap_err().to_string();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
