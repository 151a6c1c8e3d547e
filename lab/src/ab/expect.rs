//! What was expected before a run: an interval of the ratio, written down first and shown beside the result.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// An expected interval of b's rate over a's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// How far around a single number a result may fall and still be as expected.
const AROUND: f64 = 0.02;

impl Expectation {
    /// `1.05` or `+5%` (two hundredths around it), or an interval such as `1.02..1.10` or `+2%..+10%`.
    ///
    /// # Errors
    /// Another form, or an interval whose ends are the wrong way round.
    pub fn parse(text: &str) -> Result<Expectation> {
        let wrong =
            || Error::invalid("--expect", "a ratio such as 1.05, +5% or 1.02..1.10", format!("{text:?}"));
        let one = |part: &str| -> Option<f64> {
            let part = part.trim().trim_end_matches('×');
            let ratio = match part.strip_suffix('%') {
                Some(percent) => 1.0 + percent.trim().parse::<f64>().ok()? / 100.0,
                None => part.strip_suffix('x').unwrap_or(part).parse::<f64>().ok()?,
            };
            (ratio.is_finite() && ratio > 0.0).then_some(ratio)
        };
        let (low, high) = match text.split_once("..") {
            Some((low, high)) => (one(low).ok_or_else(wrong)?, one(high).ok_or_else(wrong)?),
            None => {
                let ratio = one(text).ok_or_else(wrong)?;
                (ratio - AROUND, ratio + AROUND)
            }
        };
        if low > high { Err(wrong()) } else { Ok(Expectation { low, high }) }
    }

    /// Whether a ratio is as expected.
    pub fn holds(&self, ratio: f64) -> bool {
        (self.low..=self.high).contains(&ratio)
    }
}

impl std::fmt::Display for Expectation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} to {:.3}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_are_ratios_or_per_cents() {
        let of = |text| Expectation::parse(text).unwrap();
        let near =
            |e: Expectation, low: f64, high: f64| (e.low - low).abs() < 1e-9 && (e.high - high).abs() < 1e-9;
        assert!(near(of("1.05"), 1.03, 1.07));
        assert!(near(of("+5%"), 1.03, 1.07));
        assert!(near(of("-10%..0%"), 0.9, 1.0));
        assert!(near(of("1.5x..2.0x"), 1.5, 2.0));
        assert!(of("1.02..1.10").holds(1.02) && !of("1.02..1.10").holds(1.11));
        for wrong in ["", "fast", "2..1", "0", "-100%", "nan"] {
            assert!(Expectation::parse(wrong).is_err(), "{wrong}");
        }
    }
}
