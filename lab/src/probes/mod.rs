//! What a machine can do: read bandwidth by working set, threads and pages, the bandwidth that products reach, the cost of
//! barriers and jobs, arithmetic peaks; each with its spread, and the controls that say whether to believe it.
//!
//! It takes the device's loads as values and does not know what a device is.

pub(crate) mod controls;
mod measure;
mod product;
mod report;
mod run;
mod store;

use serde::{Deserialize, Serialize};
use tensor::Encoding;
use tensor::probe::Pages;

pub use controls::{Control, controls};
pub use measure::{Budget, Figure, measure};
pub use product::{Products, Shape, Weights};
pub use run::{Progress, run};
pub use store::{Probes, load, save};

use crate::machine::Machine;

impl From<tensor::Error> for crate::Error {
    fn from(error: tensor::Error) -> Self {
        crate::Error::Engine(error.into())
    }
}

/// Where the memory that a load touches lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// In memory: the set is several times the last cache.
    Cold,
    /// In the last cache: the set is half of it.
    Cache,
    /// As near as it can be: one matrix again and again.
    Warm,
}

impl Residency {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Residency::Cold => "memory",
            Residency::Cache => "last cache",
            Residency::Warm => "warm",
        }
    }
}

/// Read bandwidth at a working set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Bytes of the whole set; each thread reads its own part of it.
    pub set_bytes: u64,
    /// Threads.
    pub threads: usize,
    /// 2 MiB pages were asked for.
    pub huge_pages: bool,
    /// Bytes per second.
    pub figure: Figure,
}

/// Bandwidth that products with one row of activations reach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// How the weights are stored.
    pub encoding: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Where the weights lie.
    pub residency: Residency,
    /// Bytes of all matrices that took turns.
    pub set_bytes: u64,
    /// Bytes of weights per second.
    pub figure: Figure,
}

/// What a peak counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// Fused multiply-adds of f32.
    Float,
    /// Products of 4-bit codes with bytes.
    Integer,
}

/// Operations per second out of registers; a multiply-add is two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// The kernel table.
    pub kernels: String,
    /// Threads.
    pub threads: usize,
    /// What was counted.
    pub arithmetic: Arithmetic,
    /// Operations per second.
    pub figure: Figure,
}

/// One run of the probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The machine.
    pub machine: Machine,
    /// Seconds since 1970 at the beginning.
    pub taken_unix_s: u64,
    /// The kernel table of readings and products.
    pub kernels: String,
    /// Threads of the readings and products that have no number of their own.
    pub threads: usize,
    /// The curve.
    pub readings: Vec<Reading>,
    /// Products.
    pub products: Vec<Product>,
    /// Barriers per second.
    pub barriers: Figure,
    /// Empty jobs per second.
    pub jobs: Figure,
    /// Arithmetic.
    pub peaks: Vec<Peak>,
    /// What was checked.
    pub controls: Vec<Control>,
    /// Seconds that it took.
    pub elapsed_s: f64,
}

impl Probe {
    /// Bytes of the last cache, as the system says or, where it says nothing, as is common.
    pub fn last_cache_bytes(&self) -> u64 {
        last_cache_bytes(&self.machine)
    }

    /// Where a set of so many bytes lies, streamed over and over: in the last cache if it takes at most three quarters of
    /// it, else in memory.
    pub fn residency(&self, set_bytes: u64) -> Residency {
        if set_bytes * 4 <= self.last_cache_bytes() * 3 { Residency::Cache } else { Residency::Cold }
    }

    /// The curve of all threads over huge pages, by set size.
    pub fn curve(&self, threads: usize, pages: Pages) -> Vec<&Reading> {
        let huge = pages == Pages::Huge;
        let mut curve: Vec<&Reading> =
            self.readings.iter().filter(|r| r.threads == threads && r.huge_pages == huge).collect();
        curve.sort_by_key(|r| r.set_bytes);
        curve
    }

    /// Bytes per second that can be read where a set of so many bytes lies: the best over sets that are at least as large
    /// (a curve that rises is loop overhead at its smaller end).
    pub fn read_bandwidth(&self, residency: Residency) -> f64 {
        let curve = self.curve(self.threads, Pages::Huge);
        let cache = self.last_cache_bytes();
        let lies_here = |set: u64| match residency {
            Residency::Cold => set >= 2 * cache,
            Residency::Cache => set * 4 <= cache * 3 && set * 8 >= cache,
            Residency::Warm => true,
        };
        let best = |of: &dyn Fn(u64) -> bool| {
            curve.iter().filter(|r| of(r.set_bytes)).map(|r| r.figure.per_second).fold(0.0, f64::max)
        };
        let found = best(&lies_here);
        if found > 0.0 { found } else { best(&|_| true) }
    }

    /// Bytes per second that products with weights of an encoding reach, the best over the shapes tried. An encoding that
    /// was not tried is taken for the slowest that was.
    pub fn product_bandwidth(&self, encoding: Encoding, residency: Residency) -> f64 {
        let here = || self.products.iter().filter(|p| p.residency == residency);
        let best_of = |name: &str| {
            here().filter(|p| p.encoding == name).map(|p| p.figure.per_second).fold(0.0, f64::max)
        };
        match best_of(encoding.name()) {
            0.0 => here().map(|p| best_of(&p.encoding)).fold(f64::INFINITY, f64::min),
            found => found,
        }
    }

    /// Operations per second of the table in use, on all threads.
    pub fn peak(&self, arithmetic: Arithmetic) -> f64 {
        let here = self.peaks.iter().filter(|p| p.threads == self.threads && p.arithmetic == arithmetic);
        let ours = here.filter(|p| p.kernels == self.kernels);
        ours.map(|p| p.figure.per_second).fold(0.0, f64::max)
    }
}

/// Bytes of the last cache; 32 MiB where the system does not say.
pub fn last_cache_bytes(machine: &Machine) -> u64 {
    match machine.last_cache_bytes {
        0 => 32 << 20,
        bytes => bytes,
    }
}
