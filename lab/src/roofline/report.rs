//! Rooflines and headroom for people: text, and a picture of speed over context.

use std::fmt::Write;

use super::{Headroom, Point, headroom::ROWS};
use crate::machine::Machine;
use crate::plot::{Axis, Chart, Scale, Series};
use crate::probes::Residency;

fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

impl Point {
    /// A paragraph and a table for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).unwrap_or_default();
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let (read, ms) = (self.work.bytes_read, |ns: f64| ns / 1e6);
        let per_s = |ns: f64| self.batch as f64 / ns * 1e9;
        writeln!(
            out,
            "context {}, {} sequence{}: a step streams {} of weights and {} of keys and values",
            self.context,
            self.batch,
            if self.batch == 1 { "" } else { "s" },
            mb(read.weights),
            mb(read.kv)
        )?;
        let place = match self.residency {
            Residency::Cold => "they come from memory",
            _ => "they fit the last cache, so memory is not the limit",
        };
        writeln!(out, "  {place}: {:.1} GB/s can be read there", self.read_bandwidth / 1e9)?;
        let row = |name: &str, ns: f64| format!("  {name:<10} {:9.3} ms {:9.1} tokens/s", ms(ns), per_s(ns));
        writeln!(out, "{}", row("ceiling", self.ceiling_ns))?;
        writeln!(out, "{}", row("floor", self.floor_ns))?;
        writeln!(
            out,
            "{}  ±{:.1}%, {:.0}% of the floor's speed, {:.0}% of the ceiling's",
            row("measured", self.measured_ns),
            self.noise * 100.0,
            self.floor_ns / self.measured_ns * 100.0,
            self.ceiling_ns / self.measured_ns * 100.0
        )?;
        writeln!(
            out,
            "  {:<20} {:>5} {:>10} {:>10} {:>10} {:>6} {:>8} {:>10}",
            "part", "ops", "MB", "floor ms", "ms", "share", "of floor", "worth"
        )?;
        for p in &self.parts {
            let streamed = p.work.streamed_bytes();
            writeln!(
                out,
                "  {:<20} {:>5} {:>10.2} {:>10.3} {:>10.3} {:>5.1}% {:>7.0}% {:>9.3}x",
                p.name,
                p.operations,
                streamed as f64 / 1e6,
                ms(p.floor_ns),
                ms(p.measured_ns),
                p.measured_ns / self.measured_ns * 100.0,
                p.floor_ns / p.measured_ns * 100.0,
                p.worth
            )?;
        }
        writeln!(
            out,
            "  unattributed {:.3} ms ({:.1}%, {} the noise); timing operations costs {:.1}%",
            ms(self.unattributed_ns),
            self.unattributed_ns / self.measured_ns * 100.0,
            if self.is_attributed() { "within" } else { "beyond" },
            self.timing_cost * 100.0
        )?;
        for o in &self.operations {
            writeln!(
                out,
                "    {:<60} {:>9.3} MB {:>9.1} µs, floor {:>9.1} µs",
                o.name,
                o.work.streamed_bytes() as f64 / 1e6,
                o.measured_ns / 1e3,
                o.floor_ns / 1e3
            )?;
        }
        Ok(())
    }
}

/// How to read the tables, for people who see them for the first time.
pub const LEGEND: &str = "ceiling: bytes over the bandwidth that can be read; floor: bytes over the bandwidth that products \
reach; worth: how many times as fast a step would be if that part took its floor";

/// Speed over context: ceiling, floor and measured.
pub fn chart(model: &str, machine: &Machine, points: &[Point]) -> Chart {
    let line = |label: &str, ns: &dyn Fn(&Point) -> f64| Series {
        label: label.into(),
        points: points.iter().map(|p| (p.context.max(1) as f64, p.batch as f64 / ns(p) * 1e9)).collect(),
        ..Series::default()
    };
    let mut measured = line("measured", &|p| p.measured_ns);
    measured.bars = points
        .iter()
        .map(|p| {
            let rate = p.tokens_per_s();
            (p.context.max(1) as f64, rate * (1.0 - p.noise), rate * (1.0 + p.noise))
        })
        .collect();
    let batch = points.first().map_or(1, |p| p.batch);
    Chart {
        title: format!("{model}: how fast it should decode, and does"),
        x: Axis { label: "context (tokens)".into(), scale: Scale::Log, includes: Vec::new() },
        y: Axis { label: "tokens/s".into(), scale: Scale::Linear, includes: vec![0.0] },
        series: vec![
            line("ceiling: all that memory gives", &|p| p.ceiling_ns),
            line("floor: all that products reach", &|p| p.floor_ns),
            measured,
        ],
        rules: Vec::new(),
        footer: vec![machine.to_string(), format!("{batch} sequences a step, f16 cache")],
    }
}

/// Headroom as a table: a row per shape, a column per number of rows.
pub fn headroom_text(all: &[Headroom]) -> String {
    let mut out = String::from(
        "ceiling over achieved, from memory (2.0: the machine would allow twice the speed); a: limited by arithmetic\n",
    );
    out.push_str(&format!("  {:<8} {:>13}", "encoding", "shape"));
    ROWS.iter().for_each(|r| out.push_str(&format!(" {r:>7}")));
    out.push_str("  parts\n");
    for row in all.chunk_by(|a, b| (&a.encoding, a.rows, a.cols) == (&b.encoding, b.rows, b.cols)) {
        let shape = format!("{}x{}", row[0].rows, row[0].cols);
        out.push_str(&format!("  {:<8} {shape:>13}", row[0].encoding));
        for cell in row {
            let mark = if cell.is_arithmetic { "a" } else { " " };
            out.push_str(&format!(" {:>6.2}{mark}", cell.factor()));
        }
        out.push_str(&format!("  {}\n", row[0].parts.join(", ")));
    }
    out
}
