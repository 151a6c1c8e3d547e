//! Curve v2, the log-probability transfer curve: p_out ∝ exp(f(ln p)), f a monotone cubic through given points.
//!
//! Tangents follow Fritsch and Carlson ("Monotone piecewise cubic interpolation", SIAM J. Numer. Anal. 17, 1980) in
//! the weighted harmonic form. Between points the cubic is evaluated in the segment's own coordinate: the expanded
//! global polynomial loses up to 0.2 nat. It knows nothing of draws.

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};

/// No probability is taken below this many percent.
const LEAST_PCT: f64 = 1e-9;
/// A falling secant is an error from here on; less is rounding.
const FALLING: f64 = -1e-12;

/// A point of a curve as its file has it: a probability of the model and what becomes of it, both in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurvePoint {
    /// Probability that the model gives, in percent.
    pub x_pct: f64,
    /// Probability to give instead, in percent, before everything is normalised again.
    pub y_pct: f64,
}

#[derive(Serialize, Deserialize)]
struct File {
    space: String,
    points: Vec<CurvePoint>,
    #[serde(default = "yes")]
    monotonic: bool,
}

fn yes() -> bool {
    true
}

/// A curve ready to be evaluated. In JSON it is its file, `{"space":"logprob","points":[…],"monotonic":true}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "File", into = "File")]
pub struct Curve {
    points: Vec<CurvePoint>,
    /// Knots by ascending x: ln of the two probabilities and the slope there.
    knots: Vec<Knot>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Knot {
    x: f64,
    y: f64,
    slope: f64,
}

impl Curve {
    /// Reads a curve file's text.
    ///
    /// The space must be "logprob" and `monotonic`, where it is given, true. Errors as [`Curve::new`].
    pub fn from_json(text: &str) -> Result<Self> {
        let expected = r#"{"space":"logprob","points":[{"x_pct":…,"y_pct":…},…],"monotonic":true}"#;
        let file: File = serde_json::from_str(text).map_err(|e| Error::setting("curve", expected, e))?;
        Curve::try_from(file)
    }

    /// A curve through `points`, in any order.
    ///
    /// It is an error if there are fewer than two, if a number is not finite, if two have the same x (after a
    /// percentage below 1e-9 became 1e-9), or if the curve falls anywhere.
    pub fn new(points: Vec<CurvePoint>) -> Result<Self> {
        if points.len() < 2 {
            return Err(Error::setting("curve points", "two or more", points.len()));
        }
        let mut knots = Vec::with_capacity(points.len());
        for (index, point) in points.iter().enumerate() {
            for (name, value) in [("x_pct", point.x_pct), ("y_pct", point.y_pct)] {
                if !value.is_finite() {
                    let what = format!("curve points[{index}].{name}");
                    return Err(Error::setting(what, "a finite number", value));
                }
            }
            knots.push(Knot { x: log_pct(point.x_pct), y: log_pct(point.y_pct), slope: 0.0 });
        }
        knots.sort_by(|a, b| a.x.total_cmp(&b.x));
        let mut steps = Vec::with_capacity(knots.len() - 1);
        for pair in knots.windows(2) {
            let width = pair[1].x - pair[0].x;
            if width == 0.0 {
                let found = format!("x_pct = {} twice", shown_pct(pair[0].x));
                return Err(Error::setting("curve points", "a different x for each", found));
            }
            let secant = (pair[1].y - pair[0].y) / width;
            if secant < FALLING {
                let found = format!(
                    "a fall from {}% to {}% as x rises from {}% to {}%",
                    shown_pct(pair[0].y),
                    shown_pct(pair[1].y),
                    shown_pct(pair[0].x),
                    shown_pct(pair[1].x)
                );
                return Err(Error::setting("curve points", "a curve that nowhere falls", found));
            }
            if !secant.is_finite() {
                let found = format!("two of x_pct = {}", shown_pct(pair[0].x));
                return Err(Error::setting("curve points", "points farther apart in x", found));
            }
            steps.push((width, secant));
        }
        let last = knots.len() - 1;
        knots[0].slope = steps[0].1;
        knots[last].slope = steps[last - 1].1;
        for i in 1..last {
            let ((h_before, before), (h_after, after)) = (steps[i - 1], steps[i]);
            knots[i].slope = if before * after <= 0.0 {
                0.0
            } else {
                let (w1, w2) = (2.0 * h_after + h_before, h_after + 2.0 * h_before);
                (w1 + w2) / (w1 / before + w2 / after)
            };
        }
        Ok(Curve { points, knots })
    }

    /// The points, as they were given.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// True if every point has y = x: then the curve is y = x everywhere.
    pub fn is_identity(&self) -> bool {
        self.knots.iter().all(|k| k.x == k.y)
    }

    /// f(u): the log-weight of a token of log-probability `u`, in nats.
    ///
    /// Below the first point it goes on with that point's slope but at least 1, above the last with the last slope.
    pub fn log_weight(&self, u: f64) -> f64 {
        let after = self.knots.partition_point(|k| k.x < u);
        if after == 0 {
            let first = &self.knots[0];
            return first.y + first.slope.max(1.0) * (u - first.x);
        }
        let a = &self.knots[after - 1];
        let Some(b) = self.knots.get(after) else { return a.y + a.slope * (u - a.x) };
        let width = b.x - a.x;
        let t = (u - a.x) / width;
        let s = 1.0 - t;
        // Cubic Hermite: the ends' values and slopes, each with its own basis polynomial.
        a.y * (1.0 + 2.0 * t) * s * s
            + b.y * (3.0 - 2.0 * t) * t * t
            + width * t * s * (a.slope * s - b.slope * t)
    }
}

fn log_pct(pct: f64) -> f64 {
    libm::log(pct.max(LEAST_PCT) / 100.0)
}

fn shown_pct(log: f64) -> f64 {
    let pct = libm::exp(log) * 100.0;
    // Eight digits: what a person wrote, without the rounding of ln and exp.
    format!("{pct:.7e}").parse().unwrap_or(pct)
}

impl TryFrom<File> for Curve {
    type Error = Error;

    fn try_from(file: File) -> Result<Self> {
        if file.space != "logprob" {
            return Err(Error::setting("curve space", "\"logprob\"", format!("{:?}", file.space)));
        }
        if !file.monotonic {
            return Err(Error::setting("curve monotonic", "true", "false"));
        }
        Curve::new(file.points)
    }
}

impl From<Curve> for File {
    fn from(curve: Curve) -> Self {
        File { space: "logprob".into(), points: curve.points, monotonic: true }
    }
}
