//! Probes kept per machine: one JSON file for each fingerprint, with every run of that machine.
//!
//! It does not know which folder that is.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Probe;
use crate::machine::Machine;
use crate::{Error, Result};

/// The version of the file's form.
const VERSION: u32 = 1;
/// Runs that are kept; the oldest give way.
const MOST_RUNS: usize = 20;

/// Every kept run of a machine, the newest last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probes {
    version: u32,
    /// The runs.
    pub runs: Vec<Probe>,
}

impl Probes {
    /// The newest run with a kernel table and a number of threads.
    pub fn newest(&self, kernels: &str, threads: usize) -> Option<&Probe> {
        self.runs.iter().rev().find(|p| p.kernels == kernels && p.threads == threads)
    }
}

fn path(folder: &Path, machine: &Machine) -> PathBuf {
    folder.join(format!("{}.json", machine.fingerprint()))
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |e| tensor::Error::io(path, e).into()
}

/// The runs of a machine that `folder` holds; none if it was never probed.
///
/// # Errors
/// A file that cannot be read, is damaged or of another version. It is left as it is.
pub fn load(folder: &Path, machine: &Machine) -> Result<Probes> {
    let path = path(folder, machine);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Probes { version: VERSION, runs: Vec::new() });
        }
        Err(e) => return Err(io(&path)(e)),
    };
    let damaged = |e: serde_json::Error| {
        Error::invalid(
            path.display().to_string(),
            "probes of this version of plumb (delete it to probe anew)",
            e,
        )
    };
    let found: Probes = serde_json::from_str(&text).map_err(damaged)?;
    if found.version != VERSION {
        let expected = format!("version {VERSION} (delete it to probe anew)");
        return Err(Error::invalid(
            path.display().to_string(),
            expected,
            format!("version {}", found.version),
        ));
    }
    Ok(found)
}

/// Adds a run to its machine's file and returns the path. The file is replaced whole, so that a full disk leaves the old
/// one.
///
/// # Errors
/// As [`load`]; a folder that cannot be written.
pub fn save(folder: &Path, probe: &Probe) -> Result<PathBuf> {
    let path = path(folder, &probe.machine);
    let mut probes = load(folder, &probe.machine)?;
    probes.runs.push(probe.clone());
    let drop = probes.runs.len().saturating_sub(MOST_RUNS);
    probes.runs.drain(..drop);
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    let text = serde_json::to_string(&probes)
        .map_err(|e| Error::invalid("a probe", "numbers that JSON holds", e))?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let write = || {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&partial, &path)
    };
    if let Err(e) = write() {
        let _ = std::fs::remove_file(&partial);
        return Err(io(&path)(e));
    }
    Ok(path)
}
