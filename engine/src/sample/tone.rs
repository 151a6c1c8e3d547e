//! Curve v1, the tone curve "HLG": straight in the middle, logarithmic in the shoulder above and the toe below.
//!
//! It gives the log-weight of a logit's distance from the best one; it knows nothing of draws.

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};

/// The tone curve. Distances are in nats; z is a token's logit above the pivot, which lies `pivot_offset` below the best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToneCurve {
    /// Half the width of the straight middle; ∞ (in JSON the text "inf") is plain temperature.
    #[serde(with = "maybe_infinite")]
    pub width: f64,
    /// β of the shoulder, z above `width`; 0 or less leaves it straight.
    pub shoulder: f64,
    /// β of the toe, z below −`width`; 0 or less leaves it straight.
    pub toe: f64,
    /// Nats from the pivot up to the best token.
    pub pivot_offset: f64,
}

impl Default for ToneCurve {
    fn default() -> Self {
        ToneCurve { width: 4.0, shoulder: 4.0, toe: 6.0, pivot_offset: 6.0 }
    }
}

impl ToneCurve {
    /// Reads `width=4,shoulder=4,toe=6,pivot=6`: any of them, in any order; one left out has its default, so that an
    /// empty text is the default curve. `width=inf` is plain temperature.
    pub fn parse(text: &str) -> Result<Self> {
        let mut curve = ToneCurve::default();
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let expected = "width, shoulder, toe or pivot, each once, as name=number";
            let Some((name, number)) = part.split_once('=') else {
                return Err(Error::setting("hlg", expected, format!("{part:?}")));
            };
            let (name, number) = (name.trim(), number.trim());
            let field = match name {
                "width" => &mut curve.width,
                "shoulder" => &mut curve.shoulder,
                "toe" => &mut curve.toe,
                "pivot" | "pivot_offset" => &mut curve.pivot_offset,
                _ => return Err(Error::setting("hlg", expected, format!("{name:?}"))),
            };
            *field = number
                .parse()
                .map_err(|_| Error::setting(format!("hlg {name}"), "a number", format!("{number:?}")))?;
            let name = if name == "pivot_offset" { "pivot" } else { name };
            if seen.contains(&name) {
                return Err(Error::setting("hlg", expected, format!("{name} twice")));
            }
            seen.push(name);
        }
        curve.validate()?;
        Ok(curve)
    }

    /// Refuses NaN, a negative width, and an infinite anything but width.
    pub fn validate(&self) -> Result<()> {
        if self.width.is_nan() || self.width < 0.0 {
            return Err(Error::setting("hlg width", "0 or more", self.width));
        }
        for (name, value) in [("shoulder", self.shoulder), ("toe", self.toe), ("pivot", self.pivot_offset)] {
            if !value.is_finite() {
                return Err(Error::setting(format!("hlg {name}"), "a finite number", value));
            }
        }
        Ok(())
    }

    /// True if the curve is a straight line, that is plain temperature.
    pub fn is_straight(&self) -> bool {
        self.width == f64::INFINITY || (self.shoulder <= 0.0 && self.toe <= 0.0)
    }

    /// Log-weight of a token whose logit lies `below_best` (≤ 0) from the best one's, with middle slope `m` = 1/T.
    pub fn log_weight(&self, below_best: f64, m: f64) -> f64 {
        let z = below_best + self.pivot_offset;
        let w = self.width;
        if z > w && self.shoulder > 0.0 {
            m * w + m * self.shoulder * libm::log1p((z - w) / self.shoulder)
        } else if z < -w && self.toe > 0.0 {
            -m * w - m * self.toe * libm::log1p((-z - w) / self.toe)
        } else {
            m * z
        }
    }
}

impl std::fmt::Display for ToneCurve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "width={},shoulder={},toe={},pivot={}",
            self.width, self.shoulder, self.toe, self.pivot_offset
        )
    }
}

/// JSON has no infinity: it is written as the text "inf".
mod maybe_infinite {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if *value == f64::INFINITY {
            serializer.serialize_str("inf")
        } else {
            serializer.serialize_f64(*value)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Number {
            Finite(f64),
            Text(String),
        }
        match Number::deserialize(deserializer)? {
            Number::Finite(value) => Ok(value),
            Number::Text(text) if text == "inf" => Ok(f64::INFINITY),
            Number::Text(text) => {
                Err(D::Error::custom(format!("expected a number or \"inf\", found {text:?}")))
            }
        }
    }
}
