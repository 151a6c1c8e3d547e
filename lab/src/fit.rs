//! What fits: the memory contract at a context, the largest context, the speed to expect, and how the expected peak
//! compares with one that was measured.
//!
//! The contract itself is the engine's, since serving admits by it; here speed and the record are added. It knows no
//! device: what an executor holds is told.

use engine::memory::{self, Expected, Need};
use serde::Serialize;
use tensor::op::Plan;
use tensor::work::StepShape;

use crate::probes::Probe;
use crate::roofline;
use crate::{Error, Result};

/// The machine that a model is to fit.
#[derive(Clone, Copy, Debug)]
pub enum Target<'p> {
    /// This one, probed.
    Here {
        /// What it can do.
        probe: Option<&'p Probe>,
        /// Bytes that can be had.
        available_bytes: u64,
    },
    /// Another, as someone describes it.
    Described {
        /// Its memory, all for this.
        memory_bytes: u64,
        /// Bytes per second that it reads.
        read_bandwidth: Option<f64>,
    },
}

impl Target<'_> {
    /// Bytes that can be had.
    pub fn available_bytes(&self) -> u64 {
        match *self {
            Target::Here { available_bytes, .. } => available_bytes,
            Target::Described { memory_bytes, .. } => memory_bytes,
        }
    }

    /// Tokens per second at a step: by what can be read, and by what products reach where that is known.
    fn speed(&self, plan: &Plan, step: &StepShape) -> (Option<f64>, Option<f64>) {
        let rate = |ns: f64| step.sequences as f64 / ns * 1e9;
        match *self {
            Target::Here { probe: Some(probe), .. } => {
                let (ceiling, floor) = roofline::expected_ns(plan, step, probe);
                (Some(rate(ceiling)), Some(rate(floor)))
            }
            Target::Here { probe: None, .. } => (None, None),
            Target::Described { read_bandwidth, .. } => {
                let bytes = plan.step_work(step).streamed_bytes() as f64;
                (read_bandwidth.map(|bandwidth| rate(bytes / bandwidth * 1e9)), None)
            }
        }
    }
}

/// What is asked to fit.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The plan, built for the batch.
    pub plan: &'a Plan,
    /// The prepared weights, as mapped.
    pub weight_bytes: u64,
    /// The model's own context.
    pub model_context: usize,
    /// Sequences that are full at once.
    pub batch: usize,
    /// What this process holds without the model.
    pub base_bytes: u64,
    /// Step buffers and kernel scratch, as the executor says.
    pub scratch_bytes: u64,
}

/// One context.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Positions of each sequence.
    pub context: usize,
    /// Sequences.
    pub batch: usize,
    /// What is reserved for it at most; `serve` and `run` admit by this.
    pub need: Need,
    /// What the process is expected to hold.
    pub expected: Expected,
    /// True if the need is within what can be had.
    pub fits: bool,
    /// Tokens per second of all sequences at that depth, by the bandwidth that can be read.
    pub ceiling_tokens_per_s: Option<f64>,
    /// The same by the bandwidth that products reach.
    pub floor_tokens_per_s: Option<f64>,
    /// The process's peak when it was run, in bytes.
    pub measured_peak_bytes: Option<u64>,
}

impl Row {
    /// How far the measured peak is above the expected one, relative.
    pub fn error(&self) -> Option<f64> {
        Some(self.measured_peak_bytes? as f64 / self.expected.total() as f64 - 1.0)
    }
}

/// What fits of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Bytes that can be had.
    pub available_bytes: u64,
    /// The cache's format.
    pub kv: String,
    /// The largest context that fits with this batch; 0 where none does.
    pub largest_context: usize,
    /// The model's own.
    pub model_context: usize,
    /// Bytes of one position of one sequence, windows aside.
    pub kv_bytes_per_position: u64,
    /// Each context.
    pub rows: Vec<Row>,
}

/// Whether contexts fit, and how fast they would be.
pub fn fit(asked: &Asked<'_>, contexts: &[usize], target: &Target<'_>) -> Fit {
    let available_bytes = target.available_bytes();
    let Asked { plan, weight_bytes, model_context, batch, .. } = *asked;
    let row = |&context: &usize| {
        let need = memory::need(plan, weight_bytes, context, batch, 0);
        let step = StepShape::decode(batch, context.saturating_sub(1));
        let (ceiling_tokens_per_s, floor_tokens_per_s) = target.speed(plan, &step);
        Row {
            context,
            batch,
            need,
            expected: memory::expected_peak(
                plan,
                weight_bytes,
                context,
                batch,
                asked.base_bytes,
                asked.scratch_bytes,
            ),
            fits: need.total() <= available_bytes,
            ceiling_tokens_per_s,
            floor_tokens_per_s,
            measured_peak_bytes: None,
        }
    };
    Fit {
        available_bytes,
        kv: plan.kv.settings.to_string(),
        largest_context: memory::largest_context(
            plan,
            weight_bytes,
            model_context,
            batch,
            0,
            available_bytes,
        ),
        model_context,
        kv_bytes_per_position: plan.kv.position_bytes(),
        rows: contexts.iter().map(row).collect(),
    }
}

impl Fit {
    /// A table for a terminal.
    pub fn text(&self) -> String {
        let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
        let rate = |r: Option<f64>| r.map_or_else(|| "-".into(), |r| format!("{r:.1}"));
        let mut out = format!(
            "{} MB can be had; {} cache, {:.1} KiB a position; the largest context that fits: {} of the model's {}\n",
            mb(self.available_bytes),
            self.kv,
            self.kv_bytes_per_position as f64 / 1024.0,
            self.largest_context,
            self.model_context
        );
        out.push_str(&format!(
            "{:>8} {:>5} {:>10} {:>10} {:>10} {:>10} {:>5} {:>11} {:>10} {:>7} {:>10} {:>10}\n",
            "context",
            "batch",
            "weights MB",
            "cache MB",
            "other MB",
            "need MB",
            "fits",
            "expected MB",
            "peak MB",
            "error",
            "floor t/s",
            "ceil. t/s"
        ));
        for r in &self.rows {
            let error = r.error().map_or_else(|| "-".into(), |e| format!("{:+.1}%", e * 100.0));
            out.push_str(&format!(
                "{:>8} {:>5} {:>10} {:>10} {:>10} {:>10} {:>5} {:>11} {:>10} {error:>7} {:>10} {:>10}\n",
                r.context,
                r.batch,
                mb(r.need.weight_bytes),
                mb(r.need.kv_bytes),
                mb(r.need.overhead_bytes),
                mb(r.need.total()),
                if r.fits { "yes" } else { "NO" },
                mb(r.expected.total()),
                r.measured_peak_bytes.map_or_else(|| "-".into(), mb),
                rate(r.floor_tokens_per_s),
                rate(r.ceiling_tokens_per_s),
            ));
        }
        out
    }
}

/// Bytes from a size such as `16GB`, `512 MiB` or `1.5e9`; GB is 10⁹, GiB 2³⁰.
///
/// # Errors
/// Another form, or not a positive number.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let bad = || {
        Error::invalid("size", "a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB", format!("{text:?}"))
    };
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "tib" => 1024f64.powi(4),
        _ => return Err(bad()),
    };
    let number: f64 = number.trim().parse().map_err(|_| bad())?;
    let bytes = number * factor;
    if !(1.0..1e18).contains(&bytes) {
        return Err(bad());
    }
    Ok(bytes as u64)
}

/// Bytes per second from a rate such as `100GB/s`.
///
/// # Errors
/// As [`parse_bytes`].
pub fn parse_bandwidth(text: &str) -> Result<f64> {
    let amount = text.trim().strip_suffix("/s").ok_or_else(|| {
        Error::invalid("bandwidth", "a size per second such as 100GB/s", format!("{text:?}"))
    })?;
    Ok(parse_bytes(amount)? as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_systems_of_units() {
        assert_eq!(parse_bytes("16GB").unwrap(), 16_000_000_000);
        assert_eq!(parse_bytes(" 1.5 GiB").unwrap(), 3 << 29);
        assert_eq!(parse_bytes("512").unwrap(), 512);
        assert_eq!(parse_bytes("2e9").unwrap(), 2_000_000_000);
        assert_eq!(parse_bandwidth("100GB/s").unwrap(), 1e11);
        for bad in ["", "GB", "-1GB", "nanGB", "1 parsec", "1e300GB", "0"] {
            assert!(parse_bytes(bad).is_err(), "{bad:?}");
        }
        assert!(parse_bandwidth("100GB").is_err());
    }
}
