//! One figure from one load: how many units a sample takes, repeated samples, their spread, and the doubling check.
//!
//! It does not know what the load does.

use serde::{Deserialize, Serialize};
use tensor::probe::Load;

use crate::Result;
use crate::stats::median;

/// How long a load is run.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// A sample takes at least this long.
    pub sample_ns: u64,
    /// Samples.
    pub samples: usize,
    /// Whether every other sample is followed by one of twice the work.
    pub doubling: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { sample_ns: 8_000_000, samples: 7, doubling: true }
    }
}

/// A rate with what it rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Median over the samples: bytes, operations or passes per second.
    pub per_second: f64,
    /// Half the range of the samples, relative to the median.
    pub noise: f64,
    /// What each sample gave, in their order.
    pub samples: Vec<f64>,
    /// Units of one sample.
    pub units: u64,
    /// Time of twice the units over time of the units; 2 where it was not tried.
    pub doubled: f64,
}

impl Figure {
    /// Nanoseconds of `amount`.
    pub fn ns(&self, amount: f64) -> f64 {
        amount / self.per_second * 1e9
    }
}

/// Measures a load.
///
/// # Errors
/// The load's: its result was not what the work should have given.
pub fn measure(load: &mut dyn Load, budget: Budget) -> Result<Figure> {
    let units = units(load, budget.sample_ns)?;
    let mut samples = Vec::with_capacity(budget.samples);
    let mut ratios = Vec::new();
    for i in 0..budget.samples.max(1) {
        let once = load.run(units)?.max(1);
        samples.push(load.per_unit() * units as f64 / once as f64 * 1e9);
        // Every other sample also checks that twice the work takes twice the time.
        if budget.doubling && i % 2 == 0 {
            ratios.push(load.run(2 * units)? as f64 / once as f64);
        }
    }
    let doubled = if ratios.is_empty() { 2.0 } else { median(&ratios) };
    let per_second = median(&samples);
    let (low, high) =
        samples.iter().fold((f64::INFINITY, 0.0f64), |(low, high), &s| (low.min(s), high.max(s)));
    Ok(Figure { per_second, noise: (high - low) / (2.0 * per_second), samples, units, doubled })
}

/// Units that take at least `sample_ns`.
fn units(load: &mut dyn Load, sample_ns: u64) -> Result<u64> {
    const MOST: u64 = 1 << 40;
    // The first run warms what the load uses.
    load.run(1)?;
    let mut units = 1u64;
    loop {
        let ns = load.run(units)?.max(1);
        if ns >= sample_ns || units >= MOST {
            return Ok(units);
        }
        // Aim a little beyond, but never trust a tiny time for more than a hundredfold.
        let factor = (sample_ns as f64 * 1.15 / ns as f64).clamp(1.5, 100.0);
        units = (units as f64 * factor).ceil() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load whose times are written down: a fixed cost and a cost per unit.
    struct Recorded {
        fixed_ns: u64,
        unit_ns: f64,
        runs: Vec<u64>,
    }

    impl Load for Recorded {
        fn per_unit(&self) -> f64 {
            64.0
        }

        fn run(&mut self, units: u64) -> tensor::Result<u64> {
            self.runs.push(units);
            Ok(self.fixed_ns + (self.unit_ns * units as f64) as u64)
        }
    }

    #[test]
    fn a_sample_is_long_enough_and_the_rate_is_right() {
        let mut load = Recorded { fixed_ns: 0, unit_ns: 10.0, runs: Vec::new() };
        let figure = measure(&mut load, Budget::default()).unwrap();
        assert!(figure.units as f64 * 10.0 >= 8e6);
        assert!((figure.per_second - 6.4e9).abs() < 1e4, "{}", figure.per_second);
        assert!((figure.doubled - 2.0).abs() < 1e-3 && figure.noise < 1e-6);
        assert_eq!(figure.samples.len(), 7);
    }

    #[test]
    fn a_fixed_cost_shows_in_the_doubling() {
        let mut load = Recorded { fixed_ns: 7_900_000, unit_ns: 1000.0, runs: Vec::new() };
        let figure = measure(&mut load, Budget::default()).unwrap();
        assert!(figure.doubled < 1.5, "{}", figure.doubled);
    }

    #[test]
    fn a_time_of_zero_does_not_run_for_ever() {
        let mut load = Recorded { fixed_ns: 0, unit_ns: 0.0, runs: Vec::new() };
        let figure = measure(&mut load, Budget::default()).unwrap();
        assert!(figure.per_second.is_finite());
        assert!(load.runs.len() < 60);
    }
}
