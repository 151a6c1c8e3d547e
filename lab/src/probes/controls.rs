//! The three controls on a probe: twice the work takes twice the time, no figure is above the ceiling of the level that it
//! rests on, and a curve does not rise with the size of its set.
//!
//! Only a finished probe is read; a control that fails does not change a figure, it is shown beside it.

use serde::{Deserialize, Serialize};
use tensor::probe::Pages;

use super::{Arithmetic, Figure, Probe, Residency};

/// How far doubling may be from 2 besides the figure's own noise: the fixed cost of a sample is then within 2%.
const DOUBLING: f64 = 0.04;
/// What a ceiling may be exceeded by besides the noise of both figures.
const ROOM: f64 = 0.05;

/// Something that must hold if the figures are to be believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// What must hold, and of what.
    pub what: String,
    /// Whether it does.
    pub holds: bool,
    /// What was found and what was allowed.
    pub found: String,
}

/// All controls of a probe. Of a kind that has many members, those that fail are listed, or one line that all hold.
pub fn controls(probe: &Probe) -> Vec<Control> {
    let mut all = Vec::new();
    all.extend(summed("twice the work takes twice the time", doubling(probe)));
    all.extend(summed("no figure is above its ceiling", ceilings(probe)));
    all.extend(summed("no reading rises with the size of its set", rising(probe)));
    all
}

/// Those that fail, or one that says how many hold.
fn summed(what: &str, members: Vec<Control>) -> Vec<Control> {
    let count = members.len();
    let failed: Vec<Control> = members.into_iter().filter(|c| !c.holds).collect();
    if failed.is_empty() {
        return vec![Control { what: what.into(), holds: true, found: format!("{count} checks hold") }];
    }
    failed.into_iter().map(|c| Control { what: format!("{what}: {}", c.what), ..c }).collect()
}

/// Every figure by name.
fn figures(probe: &Probe) -> Vec<(String, &Figure)> {
    let mut all = vec![("barriers".to_owned(), &probe.barriers), ("jobs".to_owned(), &probe.jobs)];
    let name = |r: &super::Reading| {
        let pages = if r.huge_pages { "2 MiB" } else { "4 KiB" };
        format!("reading {} KiB on {} threads, {pages} pages", r.set_bytes >> 10, r.threads)
    };
    all.extend(probe.readings.iter().map(|r| (name(r), &r.figure)));
    all.extend(probe.peaks.iter().map(|p| (format!("{:?} peak of {}", p.arithmetic, p.kernels), &p.figure)));
    let name = |p: &super::Product| {
        format!("{} products {}x{} from {}", p.encoding, p.rows, p.cols, p.residency.name())
    };
    all.extend(probe.products.iter().map(|p| (name(p), &p.figure)));
    all
}

fn doubling(probe: &Probe) -> Vec<Control> {
    let check = |(what, figure): (String, &Figure)| {
        let allowed = DOUBLING + 2.0 * figure.noise;
        let holds = (figure.doubled - 2.0).abs() <= allowed;
        let found = format!("{:.3} times the time, expected 2 within {allowed:.3}", figure.doubled);
        Control { what, holds, found }
    };
    figures(probe).into_iter().map(check).collect()
}

fn ceilings(probe: &Probe) -> Vec<Control> {
    let mut all = Vec::new();
    let mut below = |what: String, figure: &Figure, ceiling: f64, unit: &str| {
        let allowed = ceiling * (1.0 + ROOM + figure.noise);
        let found = format!("{:.2} {unit}, ceiling {:.2}", figure.per_second / 1e9, ceiling / 1e9);
        all.push(Control { what, holds: figure.per_second <= allowed, found });
    };
    for p in &probe.products {
        let ceiling = probe.read_bandwidth(p.residency);
        below(format!("{} products from {}", p.encoding, p.residency.name()), &p.figure, ceiling, "GB/s");
    }
    let nearest = probe.read_bandwidth(Residency::Warm);
    for r in probe.readings.iter().filter(|r| r.threads == probe.threads) {
        below(format!("reading {} KiB", r.set_bytes >> 10), &r.figure, nearest, "GB/s");
    }
    // One thread does not outdo all of them.
    for p in probe.peaks.iter().filter(|p| p.threads == 1) {
        let same = |q: &&super::Peak| {
            q.threads == probe.threads && q.kernels == p.kernels && q.arithmetic == p.arithmetic
        };
        if let Some(all_threads) = probe.peaks.iter().find(same) {
            let name = if p.arithmetic == Arithmetic::Float { "float" } else { "integer" };
            let what = format!("{name} peak of {} on one thread", p.kernels);
            below(what, &p.figure, all_threads.figure.per_second, "G/s");
        }
    }
    all
}

fn rising(probe: &Probe) -> Vec<Control> {
    let mut all = Vec::new();
    let mut counts: Vec<usize> = probe.readings.iter().map(|r| r.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    for threads in counts {
        for pages in [Pages::Huge, Pages::Small] {
            for pair in probe.curve(threads, pages).windows(2) {
                let (small, large) = (&pair[0].figure, &pair[1].figure);
                let allowed = 1.0 + ROOM + small.noise + large.noise;
                let found = format!(
                    "{:.1} GB/s after {:.1}: the smaller is loop overhead or noise",
                    large.per_second / 1e9,
                    small.per_second / 1e9
                );
                let what = format!("{} KiB on {threads} threads", pair[1].set_bytes >> 10);
                all.push(Control { what, holds: large.per_second <= small.per_second * allowed, found });
            }
        }
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::{Product, Reading};
    use super::*;
    use crate::machine::Machine;

    pub(crate) fn figure(per_second: f64) -> Figure {
        Figure { per_second, noise: 0.01, samples: vec![per_second], units: 1, doubled: 2.0 }
    }

    pub(crate) fn probe() -> Probe {
        let reading = |set_bytes, gb: f64| Reading {
            set_bytes,
            threads: 2,
            huge_pages: true,
            figure: figure(gb * 1e9),
        };
        Probe {
            machine: Machine { last_cache_bytes: 32 << 20, ..Machine::default() },
            taken_unix_s: 0,
            kernels: "portable".into(),
            threads: 2,
            readings: vec![reading(16 << 10, 200.0), reading(16 << 20, 40.0), reading(128 << 20, 20.0)],
            products: vec![Product {
                encoding: "Q8_0".into(),
                rows: 1,
                cols: 32,
                residency: Residency::Cold,
                set_bytes: 1 << 27,
                figure: figure(18e9),
            }],
            barriers: figure(1e6),
            jobs: figure(1e5),
            peaks: Vec::new(),
            controls: Vec::new(),
            elapsed_s: 1.0,
        }
    }

    fn failures(probe: &Probe) -> Vec<String> {
        controls(probe).into_iter().filter(|c| !c.holds).map(|c| c.what).collect()
    }

    #[test]
    fn a_sound_probe_passes() {
        assert_eq!(failures(&probe()), Vec::<String>::new());
        assert_eq!(controls(&probe()).len(), 3);
    }

    #[test]
    fn work_that_does_not_scale_is_found() {
        let mut p = probe();
        p.barriers.doubled = 1.3;
        assert_eq!(failures(&p), ["twice the work takes twice the time: barriers"]);
    }

    /// Work that nobody used is dropped, and terabytes per second come out.
    #[test]
    fn a_figure_above_its_ceiling_is_found() {
        let mut p = probe();
        p.products[0].figure = figure(4.4e12);
        assert_eq!(failures(&p), ["no figure is above its ceiling: Q8_0 products from memory"]);
    }

    #[test]
    fn a_curve_that_rises_is_found() {
        let mut p = probe();
        p.readings[1].figure = figure(260e9);
        let failed = failures(&p);
        assert!(failed.iter().any(|f| f.starts_with("no reading rises")), "{failed:?}");
    }

    #[test]
    fn figures_are_looked_up_by_where_a_set_lies() {
        let p = probe();
        assert_eq!(p.read_bandwidth(Residency::Cold), 20e9);
        assert_eq!(p.read_bandwidth(Residency::Cache), 40e9);
        assert_eq!(p.residency(20 << 20), Residency::Cache);
        assert_eq!(p.residency(30 << 20), Residency::Cold);
        assert_eq!(p.product_bandwidth(tensor::Encoding::Q8_0, Residency::Cold), 18e9);
        // One that was not tried counts as the slowest that was.
        assert_eq!(p.product_bandwidth(tensor::Encoding::Q2_K, Residency::Cold), 18e9);
    }
}
