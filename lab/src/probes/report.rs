//! A probe for people: tables in text, and the curves as a picture.

use std::fmt::Write;

use tensor::probe::Pages;

use super::{Arithmetic, Figure, Probe, Residency};
use crate::plot::{Axis, Chart, Scale, Series};
use crate::stats::median;

/// Bytes in the unit that reads best.
pub(crate) fn bytes(n: f64) -> String {
    match n {
        n if n >= (1u64 << 30) as f64 => format!("{:.2} GiB", n / (1u64 << 30) as f64),
        n if n >= (1 << 20) as f64 => format!("{:.1} MiB", n / f64::from(1 << 20)),
        n => format!("{:.0} KiB", n / 1024.0),
    }
}

fn rate(figure: &Figure) -> String {
    format!("{:8.2} ±{:4.1}%", figure.per_second / 1e9, figure.noise * 100.0)
}

impl Probe {
    /// Tables for a terminal. `earlier` are other runs of the same machine, table and threads; their spread is shown.
    pub fn text(&self, earlier: &[&Probe]) -> String {
        let mut out = String::new();
        self.write(&mut out, earlier).unwrap_or_default();
        out
    }

    fn write(&self, out: &mut String, earlier: &[&Probe]) -> std::fmt::Result {
        writeln!(out, "{}", self.machine)?;
        writeln!(
            out,
            "machine {}, {} kernels, {} threads, {:.0} s; ± is half the range of the samples",
            self.machine.fingerprint(),
            self.kernels,
            self.threads,
            self.elapsed_s
        )?;
        writeln!(out, "\nread bandwidth, GB/s")?;
        let curves: Vec<(usize, Pages, &str)> = match self.threads {
            1 => vec![(1, Pages::Huge, "2 MiB pages"), (1, Pages::Small, "4 KiB pages")],
            n => vec![
                (1, Pages::Huge, "1 thread, 2 MiB"),
                (1, Pages::Small, "1 thread, 4 KiB"),
                (n, Pages::Huge, "all threads, 2 MiB"),
                (n, Pages::Small, "all threads, 4 KiB"),
            ],
        };
        write!(out, "{:>12}", "working set")?;
        curves.iter().try_for_each(|(.., name)| write!(out, "  {name:>18}"))?;
        writeln!(out)?;
        let mut sizes: Vec<u64> = self.readings.iter().map(|r| r.set_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes {
            write!(out, "{:>12}", bytes(size as f64))?;
            for &(threads, pages, _) in &curves {
                let found = self.curve(threads, pages).into_iter().find(|r| r.set_bytes == size);
                write!(out, "  {:>18}", found.map_or_else(String::new, |r| rate(&r.figure)))?;
            }
            writeln!(out)?;
        }
        let between: Vec<_> = self
            .readings
            .iter()
            .filter(|r| r.threads != 1 && r.threads != self.threads)
            .map(|r| format!("{} threads {}", r.threads, rate(&r.figure).trim()))
            .collect();
        if !between.is_empty() {
            writeln!(out, "at the largest set: {}", between.join(", "))?;
        }
        writeln!(out, "\nbandwidth that products reach with one row, GB/s of weights")?;
        writeln!(
            out,
            "{:>10} {:>12}  {:>16}  {:>16}  {:>16}  {:>12}",
            "encoding", "shape", "memory", "last cache", "warm", "of memory's"
        )?;
        let mut shown = Vec::new();
        for p in &self.products {
            let key = (&p.encoding, p.rows, p.cols);
            if shown.contains(&key) {
                continue;
            }
            shown.push(key);
            let at = |residency| {
                self.products
                    .iter()
                    .find(|q| (&q.encoding, q.rows, q.cols) == key && q.residency == residency)
            };
            let cell = |residency| at(residency).map_or_else(String::new, |p| rate(&p.figure));
            let share = at(Residency::Cold)
                .map_or(0.0, |p| p.figure.per_second / self.read_bandwidth(Residency::Cold) * 100.0);
            writeln!(
                out,
                "{:>10} {:>12}  {:>16}  {:>16}  {:>16}  {share:>11.0}%",
                p.encoding,
                format!("{}x{}", p.rows, p.cols),
                cell(Residency::Cold),
                cell(Residency::Cache),
                cell(Residency::Warm)
            )?;
        }
        writeln!(out, "\narithmetic out of registers, Gop/s (a multiply-add is two)")?;
        for p in &self.peaks {
            let what = match p.arithmetic {
                Arithmetic::Float => "f32",
                Arithmetic::Integer => "4 x 8 bit",
            };
            writeln!(out, "{:>14} {what:>10} {:>3} threads  {}", p.kernels, p.threads, rate(&p.figure))?;
        }
        let ns = |f: &Figure| format!("{:.0} ns ±{:.0}%", f.ns(1.0), f.noise * 100.0);
        writeln!(out, "\na barrier {}; an empty job {}", ns(&self.barriers), ns(&self.jobs))?;
        if !earlier.is_empty() {
            writeln!(out, "\nspread over {} runs", earlier.len() + 1)?;
            type Row = (&'static str, fn(&Probe) -> f64);
            let rows: [Row; 4] = [
                ("read, memory", |p| p.read_bandwidth(Residency::Cold) / 1e9),
                ("read, last cache", |p| p.read_bandwidth(Residency::Cache) / 1e9),
                ("best products, memory", |p| p.best_product() / 1e9),
                ("barriers, M/s", |p| p.barriers.per_second / 1e6),
            ];
            for (name, of) in rows {
                let all: Vec<f64> = earlier.iter().copied().chain([self]).map(of).collect();
                let (low, high) = all.iter().fold((f64::INFINITY, 0.0f64), |(l, h), &v| (l.min(v), h.max(v)));
                writeln!(out, "{name:>24}  median {:7.2}, {low:.2} to {high:.2}", median(&all))?;
            }
        }
        writeln!(out, "\ncontrols")?;
        for c in &self.controls {
            writeln!(out, "  {} {}: {}", if c.holds { "holds" } else { "FAILS" }, c.what, c.found)?;
        }
        Ok(())
    }

    fn best_product(&self) -> f64 {
        let cold = self.products.iter().filter(|p| p.residency == Residency::Cold);
        cold.map(|p| p.figure.per_second).fold(0.0, f64::max)
    }

    /// The curves as a picture.
    pub fn chart(&self) -> Chart {
        let line = |threads: usize, pages: Pages| {
            let pages_name = if pages == Pages::Huge { "2 MiB pages" } else { "4 KiB pages" };
            let curve = self.curve(threads, pages);
            let point = |r: &&super::Reading| (r.set_bytes as f64, r.figure.per_second / 1e9);
            let bar = |r: &&super::Reading| {
                let (gb, noise) = (r.figure.per_second / 1e9, r.figure.noise);
                (r.set_bytes as f64, gb * (1.0 - noise), gb * (1.0 + noise))
            };
            Series {
                label: format!("reading, {threads} threads, {pages_name}"),
                points: curve.iter().map(point).collect(),
                bars: curve.iter().map(bar).collect(),
                is_scatter: false,
            }
        };
        let mut series = vec![line(self.threads, Pages::Huge), line(self.threads, Pages::Small)];
        if self.threads > 1 {
            series.push(line(1, Pages::Huge));
        }
        let products = self.products.iter().map(|p| (p.set_bytes as f64, p.figure.per_second / 1e9));
        series.push(Series {
            label: "products with one row".into(),
            points: products.collect(),
            bars: Vec::new(),
            is_scatter: true,
        });
        let failed = self.controls.iter().filter(|c| !c.holds).count();
        Chart {
            title: "What this machine can read".into(),
            x: Axis { label: "working set (bytes)".into(), scale: Scale::Log, includes: Vec::new() },
            y: Axis { label: "GB/s".into(), scale: Scale::Log, includes: Vec::new() },
            series,
            rules: Vec::new(),
            footer: vec![
                self.machine.to_string(),
                format!(
                    "{} kernels, last cache {}, {} of {} controls failed",
                    self.kernels,
                    bytes(self.last_cache_bytes() as f64),
                    failed,
                    self.controls.len()
                ),
            ],
        }
    }
}
