//! Headroom: for each projection shape of a plan and 1 to 128 rows of activations, what the machine would allow over what
//! the device reaches, before anyone builds a kernel.
//!
//! Weights take turns through more memory than the last cache holds, so that they come from where a large model's do; with
//! many rows through less of it, where arithmetic decides and a pass over all of it would take minutes.

use serde::{Deserialize, Serialize};
use tensor::Encoding;
use tensor::device::Device;
use tensor::op::{Kind, Op, Plan};

use super::part_of;
use crate::Result;
use crate::probes::{Arithmetic, Budget, Figure, Probe, Products, Residency, Shape, Weights, measure};

/// Rows of activations that are tried.
pub(super) const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Arithmetic of one pass over all matrices that take turns.
const MOST_FLOPS: f64 = 2e9;

/// One shape at one number of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Headroom {
    /// Parts of the model that have the shape.
    pub parts: Vec<String>,
    /// How its weights are stored.
    pub encoding: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Rows of activations.
    pub columns: usize,
    /// Bytes of all matrices that took turns.
    pub set_bytes: u64,
    /// Bytes of weights per second.
    pub figure: Figure,
    /// Least nanoseconds by bytes at the bandwidth that can be read, or by arithmetic at the peak.
    pub ceiling_ns: f64,
    /// True if it is the arithmetic that limits.
    pub is_arithmetic: bool,
    /// What one product took.
    pub measured_ns: f64,
}

impl Headroom {
    /// How many times as fast the machine would allow.
    pub fn factor(&self) -> f64 {
        self.measured_ns / self.ceiling_ns
    }
}

/// Distinct projection shapes of a plan, with the parts that have them.
fn shapes(plan: &Plan) -> Vec<(Encoding, usize, usize, Vec<String>)> {
    let mut all: Vec<(Encoding, usize, usize, Vec<String>)> = Vec::new();
    for op in &plan.ops {
        let Op::Linear { parts, .. } = op else { continue };
        for part in parts {
            let Kind::Panels { encoding, rows, cols } = plan.weight(part.weight).kind else { continue };
            let name = part_of(op, plan).to_owned();
            match all.iter_mut().find(|s| (s.0, s.1, s.2) == (encoding, rows, cols)) {
                Some((.., names)) if names.contains(&name) => {}
                Some((.., names)) => names.push(name),
                None => all.push((encoding, rows, cols, vec![name])),
            }
        }
    }
    all
}

/// Measures every projection shape of a plan.
///
/// # Errors
/// No memory; the device's error.
pub fn headroom(
    device: &dyn Device,
    plan: &Plan,
    probe: &Probe,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Headroom>> {
    let shapes = shapes(plan);
    let set = 4 * probe.last_cache_bytes() as usize;
    let largest = shapes
        .iter()
        .map(|&(encoding, rows, cols, _)| tensor::panels::matrix_bytes(encoding, rows, cols))
        .max()
        .unwrap_or(0);
    let weights = Weights::new(set.max(largest))?;
    let read = probe.read_bandwidth(Residency::Cold);
    let (mut out, total) = (Vec::new(), shapes.len() * ROWS.len());
    for (encoding, rows, cols, parts) in shapes {
        for columns in ROWS {
            progress(out.len(), total);
            let shape = Shape { encoding, rows, cols, columns };
            let most = (MOST_FLOPS / shape.flops()).max(1.0) as usize;
            let copies = weights.copies(&shape, set).min(most);
            let mut load = Products::new(device, &weights, shape, copies)?;
            let figure = measure(&mut load, Budget { sample_ns: 5_000_000, samples: 3, doubling: false })?;
            let kind = if encoding.is_float() { Arithmetic::Float } else { Arithmetic::Integer };
            let bytes_ns = shape.bytes() as f64 / read * 1e9;
            let arithmetic_ns = shape.flops() / probe.peak(kind) * 1e9;
            out.push(Headroom {
                parts: parts.clone(),
                encoding: encoding.name().into(),
                rows,
                cols,
                columns,
                ceiling_ns: bytes_ns.max(arithmetic_ns),
                is_arithmetic: arithmetic_ns > bytes_ns,
                set_bytes: load.set_bytes,
                measured_ns: figure.ns(shape.bytes() as f64),
                figure,
            });
        }
    }
    Ok(out)
}
