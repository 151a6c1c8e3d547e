//! The probe's schedule: what is measured, in which order, with how much memory.

use std::time::{Instant, SystemTime};

use tensor::Encoding;
use tensor::probe::{Load, Pages, Probes};

use super::{
    Arithmetic, Budget, Peak, Probe, Product, Products, Reading, Residency, Shape, Weights, controls,
    last_cache_bytes, measure,
};
use crate::machine::Machine;
use crate::{Error, Result};

/// Told what comes next, how many of how many measurements are done.
pub type Progress<'a> = dyn FnMut(&str, usize, usize) + 'a;

/// Encodings whose products are measured.
const ENCODINGS: [Encoding; 7] = [
    Encoding::Q4_0,
    Encoding::Q4_1,
    Encoding::Q4_K,
    Encoding::Q5_0,
    Encoding::Q6_K,
    Encoding::Q8_0,
    Encoding::F16,
];

/// Shapes of decoding: a small model's square projection, a larger one's, and a wide feed-forward block's.
const SHAPES: [(usize, usize); 3] = [(512, 512), (2048, 2048), (8192, 2048)];

const SMALLEST_SET: u64 = 8 << 10;

/// Set sizes from inside the first cache to four times the last one: two in each doubling.
fn set_sizes(last_cache: u64, threads: usize, memory: u64) -> Vec<u64> {
    // Each thread's part must hold a few rounds of the reading loop, and a quarter of memory is enough for a curve.
    let largest = (4 * last_cache).min((memory / 4).max(last_cache));
    let mut sizes = Vec::new();
    let mut size = SMALLEST_SET * threads as u64;
    while size < largest {
        sizes.push(size);
        if size + size / 2 < largest {
            sizes.push(size + size / 2);
        }
        size *= 2;
    }
    sizes.push(largest);
    sizes
}

/// What is measured, in order.
enum Task {
    Read { set_bytes: u64, threads: usize, pages: Pages },
    Barriers,
    Jobs,
    Peak { kernels: String, threads: usize, arithmetic: Arithmetic },
    Product { shape: Shape, residency: Residency },
}

impl Task {
    fn name(&self) -> String {
        match self {
            Task::Read { set_bytes, threads, .. } => {
                format!("reading {} KiB on {threads} threads", set_bytes >> 10)
            }
            Task::Barriers => "barriers".into(),
            Task::Jobs => "jobs".into(),
            Task::Peak { kernels, .. } => format!("arithmetic of {kernels}"),
            Task::Product { shape, residency } => {
                format!("{} products from {}", shape.encoding, residency.name())
            }
        }
    }
}

/// Measures the machine with one kernel table on `threads` threads; other tables and numbers of threads where they
/// matter. Within a minute on machines with last caches of up to some hundred megabytes.
///
/// # Errors
/// No memory; a load whose result was wrong.
pub fn run(
    probes: &dyn Probes,
    kernels: &str,
    threads: usize,
    machine: Machine,
    progress: &mut Progress<'_>,
) -> Result<Probe> {
    let started = Instant::now();
    let taken_unix_s = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs());
    let last_cache = last_cache_bytes(&machine);
    let tasks = tasks(probes, threads, last_cache, machine.memory_bytes);
    let device = probes.device(kernels, threads)?;
    let weights = Weights::new((4 * last_cache) as usize)?;
    let mut probe = Probe {
        machine,
        taken_unix_s,
        kernels: kernels.to_owned(),
        threads,
        readings: Vec::new(),
        products: Vec::new(),
        barriers: Default::default(),
        jobs: Default::default(),
        peaks: Vec::new(),
        controls: Vec::new(),
        elapsed_s: 0.0,
    };
    let total = tasks.len();
    for (done, task) in tasks.into_iter().enumerate() {
        progress(&task.name(), done, total);
        let taken = |mut load: Box<dyn Load>| measure(&mut *load, Budget::default());
        match task {
            Task::Read { set_bytes, threads, pages } => {
                let figure = taken(probes.read(kernels, threads, set_bytes as usize, pages)?)?;
                let huge_pages = pages == Pages::Huge;
                probe.readings.push(Reading { set_bytes, threads, huge_pages, figure });
            }
            Task::Barriers => probe.barriers = taken(probes.barrier(threads)?)?,
            Task::Jobs => probe.jobs = taken(probes.dispatch(threads)?)?,
            Task::Peak { kernels, threads, arithmetic } => {
                let load = match arithmetic {
                    Arithmetic::Float => probes.float_peak(&kernels, threads)?,
                    Arithmetic::Integer => probes.integer_peak(&kernels, threads)?,
                };
                probe.peaks.push(Peak { kernels, threads, arithmetic, figure: taken(load)? });
            }
            Task::Product { shape, residency } => {
                let set = match residency {
                    Residency::Cold => 4 * last_cache,
                    Residency::Cache => last_cache / 2,
                    Residency::Warm => 0,
                };
                let copies = weights.copies(&shape, set as usize);
                let mut load = Products::new(&*device, &weights, shape, copies)?;
                let figure = measure(&mut load, Budget { samples: 5, ..Budget::default() })?;
                probe.products.push(Product {
                    encoding: shape.encoding.name().into(),
                    rows: shape.rows,
                    cols: shape.cols,
                    residency,
                    set_bytes: load.set_bytes,
                    figure,
                });
            }
        }
    }
    progress("done", total, total);
    probe.controls = controls(&probe);
    probe.elapsed_s = started.elapsed().as_secs_f64();
    if probe.readings.is_empty() {
        return Err(Error::invalid("threads of a probe", "at least 1", threads));
    }
    Ok(probe)
}

fn tasks(probes: &dyn Probes, threads: usize, last_cache: u64, memory: u64) -> Vec<Task> {
    let mut tasks = vec![Task::Barriers, Task::Jobs];
    let read = |set_bytes, threads, pages| Task::Read { set_bytes, threads, pages };
    let mut counts = vec![1, threads];
    counts.dedup();
    for &threads in &counts {
        let sizes = set_sizes(last_cache, threads, memory);
        tasks.extend(sizes.iter().map(|&set| read(set, threads, Pages::Huge)));
        // Small pages matter once the set is beyond what their translations cover.
        let large = sizes.iter().filter(|&&set| set >= 1 << 20).step_by(2);
        tasks.extend(large.map(|&set| read(set, threads, Pages::Small)));
        tasks.extend(sizes.last().map(|&set| read(set, threads, Pages::Small)));
    }
    // Between one thread and all of them, at the largest set.
    let between = (1..).map(|i| 1 << i).take_while(|&n| n < threads);
    tasks.extend(between.map(|n| read(4 * last_cache, n, Pages::Huge)));
    for table in probes.kernels() {
        for &threads in &counts {
            for arithmetic in [Arithmetic::Float, Arithmetic::Integer] {
                tasks.push(Task::Peak { kernels: table.clone(), threads, arithmetic });
            }
        }
    }
    for encoding in ENCODINGS {
        for (rows, cols) in SHAPES {
            for residency in [Residency::Cold, Residency::Cache, Residency::Warm] {
                let shape = Shape { encoding, rows, cols, columns: 1 };
                // A matrix beyond half the cache has no cached and no warm case; it is cold alone.
                if residency != Residency::Cold && shape.bytes() * 2 > last_cache {
                    continue;
                }
                tasks.push(Task::Product { shape, residency });
            }
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_goes_from_the_first_cache_to_four_times_the_last() {
        let sizes = set_sizes(36 << 20, 2, 16 << 30);
        assert_eq!((sizes[0], *sizes.last().unwrap()), (16 << 10, 144 << 20));
        assert!(sizes.windows(2).all(|w| w[0] < w[1] && w[1] <= w[0] * 2));
        // On a machine with little memory, never beyond a quarter of it but at least to the cache's size.
        assert_eq!(*set_sizes(36 << 20, 2, 256 << 20).last().unwrap(), 64 << 20);
    }
}
