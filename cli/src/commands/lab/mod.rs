//! The laboratory's commands, and what they share: the database, the machine, the preflight, loading a model with settings.
//!
//! What is measured and how it is judged is `lab`'s; here it gets its devices, its flags and its text.

pub(crate) mod ab;
pub(crate) mod bench;
pub(super) mod loading;
pub(crate) mod results;
pub(crate) mod traps;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lab::clock::{Clock, System};
use lab::machine::{self, Machine};
use lab::preflight::{self, Limits, Report, Standing};
use lab::results::{Build, Database, ModelId, RunMeta};
use serde_json::Value;

use crate::places::Places;
use crate::progress::note;

/// Where results go.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Store {
    /// The results database [default: results.sqlite in the user's data folder]
    #[arg(long, value_name = "FILE", global = true)]
    db: Option<PathBuf>,
}

impl Store {
    /// Opens it.
    pub(crate) fn open(&self) -> anyhow::Result<Database> {
        let path = match &self.db {
            Some(path) => path.clone(),
            None => Places::from_env()?.results,
        };
        Ok(Database::open(&path)?)
    }
}

/// Whether to measure on a machine that is not fit.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Fitness {
    /// Measure though the preflight fails; every row is marked
    #[arg(long)]
    force: bool,
    /// The load per CPU up to which the machine counts as idle
    #[arg(long, value_name = "N", default_value_t = Limits::default().load_per_cpu)]
    max_load: f64,
}

/// What a run needs to know of where it runs.
pub(crate) struct Bench {
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) machine: Machine,
    pub(crate) limits: Limits,
    pub(crate) report: Report,
}

impl Bench {
    /// Looks at the machine for a second and refuses one that is not fit.
    pub(crate) fn start(fitness: Fitness, needed_bytes: u64) -> anyhow::Result<Bench> {
        let clock: Rc<dyn Clock> = Rc::new(System::default());
        let machine = Machine::here();
        let limits = Limits { load_per_cpu: fitness.max_load, ..Limits::default() };
        let processes = preflight::processes();
        let (before, start) = (preflight::counters(&machine::system), clock.now_ns());
        std::thread::sleep(std::time::Duration::from_secs(1));
        let seconds = (clock.now_ns() - start) as f64 / 1e9;
        let traffic = preflight::traffic(&before, &preflight::counters(&machine::system), seconds);
        let standing = Standing {
            busiest: preflight::busiest(&processes, &preflight::processes(), seconds),
            ..preflight::standing(&machine::system, machine.cores)
        };
        let report = preflight::check(&standing, &traffic, needed_bytes, &limits);
        if !report.is_fit() {
            if !fitness.force {
                bail!(
                    "this machine is not fit to measure on (--force measures all the same, and marks every row):\n{report}"
                );
            }
            note("measuring on a machine that is not fit; every row is marked");
        }
        for check in report.failures() {
            note(format!("{}: {} (limit {})", check.name, check.found, check.limit));
        }
        Ok(Bench { clock, machine, limits, report })
    }

    /// What is known of a run before it begins.
    pub(crate) fn meta(&self, kind: &str, kernels: &str, model: Option<ModelId>, workload: Value) -> RunMeta {
        RunMeta {
            kind: kind.into(),
            machine: self.machine.fingerprint(),
            machine_description: serde_json::to_value(&self.machine).unwrap_or_default(),
            build: build(kernels),
            model,
            workload,
            prediction: Value::Null,
            preflight: serde_json::to_value(&self.report).unwrap_or_default(),
            marks: self.report.marks(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        }
    }
}

/// This program.
pub(crate) fn build(kernels: &str) -> Build {
    Build {
        version: env!("CARGO_PKG_VERSION").into(),
        revision: env!("PLUMB_REVISION").into(),
        features: env!("PLUMB_PROFILE").into(),
        kernels: kernels.into(),
    }
}

/// The machine's counters now.
pub(crate) fn counters() -> preflight::Counters {
    preflight::counters(&machine::system)
}

/// Ctrl-C as a flag, from here to the end of the process; pressed again it ends the process.
pub(crate) fn interrupt_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let pressed = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if pressed.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("Ctrl-C cannot be handled")?;
    Ok(flag)
}

/// A bar over a budget in seconds.
pub(crate) fn budget_bar(budget_s: f64) -> ProgressBar {
    let bar =
        ProgressBar::with_draw_target(Some((budget_s * 10.0) as u64), ProgressDrawTarget::stderr_with_hz(4));
    if let Ok(style) = ProgressStyle::with_template("{msg:12} {wide_bar} {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// A share of one: `5%` or `0.05`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => text.parse(),
    };
    match value {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err(format!("expected a share such as 5% or 0.05, found {text:?}")),
    }
}

/// Seconds above zero.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.strip_suffix('s').unwrap_or(text).trim().parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => Ok(seconds),
        _ => Err(format!("expected seconds, found {text:?}")),
    }
}

/// Bytes: `1GB`, `256MiB`, `1000000`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("expected bytes such as 1GB or 256MiB, found {text:?}");
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor;
    if bytes >= 1.0 { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_seconds_and_bytes_are_read_with_their_units() {
        assert_eq!(share("5%"), Ok(0.05));
        assert_eq!(share("0.03"), Ok(0.03));
        assert!(share("120%").is_err() && share("x").is_err());
        assert_eq!(seconds("20"), Ok(20.0));
        assert!(seconds("0").is_err() && seconds("inf").is_err());
        assert_eq!(bytes("1GB"), Ok(1_000_000_000));
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        assert!(bytes("100GB/s").is_err());
    }
}
