//! How fast a model should decode on a machine, how fast it does, and where the difference is: each operation's time
//! against the least that its bytes and its arithmetic can take.
//!
//! The figures of the machine come from a probe, the work from the plan; it knows no device.

mod driver;
mod headroom;
mod report;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensor::op::{Kind, Op, Plan, WeightId};
use tensor::work::{StepShape, Work};

pub use driver::{Driver, Step};
pub use headroom::{Headroom, headroom};
pub use report::{LEGEND, chart, headroom_text};

use crate::Result;
use crate::probes::{Arithmetic, Probe, Residency};
use crate::stats::median;

/// A part of a step: operations that do the same in every layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Operations of a step that belong to it.
    pub operations: usize,
    /// What it must move and compute.
    pub work: Work,
    /// The least that it can take with the bandwidth that products reach, or with the arithmetic peak.
    pub floor_ns: f64,
    /// What its operations took: the sum of their medians.
    pub measured_ns: f64,
    /// How many times as fast a whole step would be if this part took its floor (Amdahl's law).
    pub worth: f64,
}

/// A model's decoding at one context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Positions before the token.
    pub context: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// What a step must move and compute.
    pub work: Work,
    /// Where weights and cache lie, by their size.
    pub residency: Residency,
    /// Bytes per second that can be read from there.
    pub read_bandwidth: f64,
    /// Least time of a step with the bandwidth that products reach: the sum of the parts' floors.
    pub floor_ns: f64,
    /// Least time with the bandwidth that can be read.
    pub ceiling_ns: f64,
    /// Median of whole steps with operations not timed.
    pub measured_ns: f64,
    /// Half the range of those steps' middle half, relative.
    pub noise: f64,
    /// All of them.
    pub samples_ns: Vec<f64>,
    /// Median of whole steps with operations timed, over `measured_ns`, less 1: what the timing itself costs.
    pub timing_cost: f64,
    /// `measured_ns` less the operations' sum: the step's setup, its hand-over to the threads, and noise.
    pub unattributed_ns: f64,
    /// The parts, in order of execution.
    pub parts: Vec<Part>,
    /// The single operations, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<Operation>,
}

/// One operation of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Its first weight, or what it does.
    pub name: String,
    /// The part that it belongs to.
    pub part: String,
    /// What it must move and compute.
    pub work: Work,
    /// The least that it can take.
    pub floor_ns: f64,
    /// Its median.
    pub measured_ns: f64,
}

impl Point {
    /// Tokens per second of all sequences together.
    pub fn tokens_per_s(&self) -> f64 {
        self.batch as f64 / self.measured_ns * 1e9
    }

    /// True if the part of the time that no operation accounts for is within the noise.
    pub fn is_attributed(&self) -> bool {
        self.unattributed_ns.abs() <= (self.noise.max(0.01)) * self.measured_ns
    }
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Positions before the token.
    pub contexts: Vec<usize>,
    /// Time for each context.
    pub budget: Duration,
    /// Keep single operations.
    pub operations: bool,
}

/// The part that an operation belongs to, by the canonical names of the weights that it reads.
pub fn part_of(op: &Op, plan: &Plan) -> &'static str {
    let named = |id: WeightId| {
        let name = plan.weight(id).name.as_str();
        let name = name.strip_suffix(".weight").unwrap_or(name);
        match name.rsplit('.').next().unwrap_or(name) {
            "attn_q" | "attn_k" | "attn_v" | "attn_qkv" => "query, key, value",
            "attn_output" => "attention output",
            "ffn_gate" | "ffn_up" => "gate and up",
            "ffn_down" => "down",
            "token_embd" | "output" => "head",
            _ => "other products",
        }
    };
    match op {
        Op::Embed { .. } => "embedding",
        Op::Linear { parts, .. } => parts.first().map_or("other products", |p| named(p.weight)),
        Op::RopeStore { .. } => "rotate and store",
        Op::Attention { .. } => "attention",
        Op::NormAdd { .. } => "norms after blocks",
        Op::SelectLogitRows { .. } => "row selection",
    }
}

/// What an operation is called.
fn name_of(op: &Op, plan: &Plan) -> String {
    match op {
        Op::Embed { table, .. } => plan.weight(*table).name.clone(),
        Op::Linear { parts, .. } => {
            parts.iter().map(|p| plan.weight(p.weight).name.as_str()).collect::<Vec<_>>().join(" + ")
        }
        Op::RopeStore { layer, .. } => format!("rotate and store, layer {layer}"),
        Op::Attention { layer, .. } => format!("attention, layer {layer}"),
        Op::NormAdd { norm, .. } => plan.weight(norm.weight).name.clone(),
        Op::SelectLogitRows { .. } => "row selection".into(),
    }
}

/// The least nanoseconds that an operation can take where its bytes lie: those of its weights at the bandwidth that
/// products with their encodings reach, those of keys and values at the bandwidth that can be read, or its arithmetic at
/// the peak, whichever is longer. Step buffers lie in a near cache and count for nothing.
pub fn floor_ns(op: &Op, plan: &Plan, step: &StepShape, probe: &Probe, residency: Residency) -> f64 {
    let work = op.work(plan, step);
    let read = probe.read_bandwidth(residency);
    let mut bytes_ns = (work.bytes_read.kv + work.bytes_written.kv) as f64 / read * 1e9;
    let mut arithmetic = Arithmetic::Float;
    if let (Op::Linear { parts, .. }, true) = (op, work.flops > 0) {
        let mut matrices = 0;
        for part in parts {
            let kind = plan.weight(part.weight).kind;
            if let Kind::Panels { encoding, .. } = kind {
                let reached = probe.product_bandwidth(encoding, residency);
                bytes_ns += kind.bytes() as f64 / reached * 1e9;
                matrices += kind.bytes();
                if !encoding.is_float() {
                    arithmetic = Arithmetic::Integer;
                }
            }
        }
        bytes_ns += work.bytes_read.weights.saturating_sub(matrices) as f64 / read * 1e9;
    } else {
        bytes_ns += work.bytes_read.weights as f64 / read * 1e9;
    }
    let arithmetic_ns = match probe.peak(arithmetic) {
        peak if peak > 0.0 => work.flops as f64 / peak * 1e9,
        _ => 0.0,
    };
    bytes_ns.max(arithmetic_ns)
}

/// Least nanoseconds of a step with the bandwidth that can be read.
pub fn ceiling_ns(work: &Work, probe: &Probe, residency: Residency) -> f64 {
    work.streamed_bytes() as f64 / probe.read_bandwidth(residency) * 1e9
}

/// Measures a plan's steps at each context against a probe of the machine.
///
/// # Errors
/// The device's; a context beyond what the driver was made for.
pub fn measure(
    driver: &mut Driver,
    batch: usize,
    probe: &Probe,
    options: &Options,
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Point>> {
    options
        .contexts
        .iter()
        .enumerate()
        .map(|(done, &context)| {
            progress(done);
            point(driver, batch, probe, context, options)
        })
        .collect()
}

fn point(
    driver: &mut Driver,
    batch: usize,
    probe: &Probe,
    context: usize,
    options: &Options,
) -> Result<Point> {
    const LEAST: usize = 7;
    const MOST: usize = 400;
    driver.steps(context, 2, false)?;
    let (mut plain, mut timed): (Vec<f64>, Vec<Step>) = (Vec::new(), Vec::new());
    let started = Instant::now();
    while plain.len() < LEAST || (plain.len() < MOST && started.elapsed() < options.budget) {
        // In turns, so that what the machine does meanwhile meets both.
        plain.extend(driver.steps(context, 1, false)?.iter().map(|s| s.wall_ns as f64));
        timed.extend(driver.steps(context, 1, true)?);
    }
    let plan = driver.plan();
    let ops_ns: Vec<f64> = (0..plan.ops.len())
        .map(|i| median(&timed.iter().map(|s| s.ops_ns[i] as f64).collect::<Vec<_>>()))
        .collect();
    let timed_ns = median(&timed.iter().map(|s| s.wall_ns as f64).collect::<Vec<_>>());
    Ok(assemble(
        plan,
        probe,
        &StepShape::decode(batch, context),
        &plain,
        &ops_ns,
        timed_ns,
        options.operations,
    ))
}

/// Puts measured times against the plan's work.
fn assemble(
    plan: &Plan,
    probe: &Probe,
    step: &StepShape,
    plain: &[f64],
    ops_ns: &[f64],
    timed_ns: f64,
    with_operations: bool,
) -> Point {
    let work = plan.step_work(step);
    let residency = probe.residency(work.streamed_bytes());
    let measured_ns = median(plain);
    let mut parts: Vec<Part> = Vec::new();
    let mut operations = Vec::new();
    for (op, &op_ns) in plan.ops.iter().zip(ops_ns) {
        let (name, op_work) = (part_of(op, plan), op.work(plan, step));
        let floor = floor_ns(op, plan, step, probe, residency);
        let at = parts.iter().position(|p| p.name == name).unwrap_or_else(|| {
            parts.push(Part {
                name: name.into(),
                operations: 0,
                work: Work::default(),
                floor_ns: 0.0,
                measured_ns: 0.0,
                worth: 1.0,
            });
            parts.len() - 1
        });
        let part = &mut parts[at];
        part.operations += 1;
        part.work = part.work.plus(op_work);
        part.floor_ns += floor;
        part.measured_ns += op_ns;
        if with_operations {
            operations.push(Operation {
                name: name_of(op, plan),
                part: name.into(),
                work: op_work,
                floor_ns: floor,
                measured_ns: op_ns,
            });
        }
    }
    for part in &mut parts {
        let saved = (part.measured_ns - part.floor_ns).clamp(0.0, measured_ns * 0.999);
        part.worth = measured_ns / (measured_ns - saved);
    }
    let quarter = |q: f64| crate::stats::quantile(plain, q);
    Point {
        context: step.context,
        batch: step.sequences,
        work,
        residency,
        read_bandwidth: probe.read_bandwidth(residency),
        floor_ns: parts.iter().map(|p| p.floor_ns).sum(),
        ceiling_ns: ceiling_ns(&work, probe, residency),
        measured_ns,
        noise: (quarter(0.75) - quarter(0.25)) / (2.0 * measured_ns),
        samples_ns: plain.to_vec(),
        timing_cost: timed_ns / measured_ns - 1.0,
        unattributed_ns: measured_ns - ops_ns.iter().sum::<f64>(),
        parts,
        operations,
    }
}

/// What a step should take on a machine, without running it: ceiling and floor in nanoseconds.
pub fn expected_ns(plan: &Plan, step: &StepShape, probe: &Probe) -> (f64, f64) {
    let work = plan.step_work(step);
    let residency = probe.residency(work.streamed_bytes());
    let floor = plan.ops.iter().map(|op| floor_ns(op, plan, step, probe, residency)).sum();
    (ceiling_ns(&work, probe, residency), floor)
}

#[cfg(test)]
mod tests {
    use tensor::Encoding;
    use tensor::kv::KvLayout;
    use tensor::op::{Buffer, BufferId, Epilogue, Part as OpPart, Rows, Weight};

    use super::*;
    use crate::probes::controls::tests::probe;

    /// Two products, `down` twice the size of `gate and up`.
    fn plan() -> Plan {
        let weight = |name: &str, rows| Weight {
            name: name.into(),
            kind: Kind::Panels { encoding: Encoding::Q8_0, rows, cols: 1 << 16 },
        };
        let buffer = |name| Buffer { name, width: 1 << 16, rows: Rows::Tokens };
        let linear = |i| Op::Linear {
            src: BufferId(0),
            norm: None,
            parts: vec![OpPart { weight: WeightId(i), bias: None, dst_col: 0 }],
            then: Epilogue::Store,
            dst: BufferId(1),
        };
        Plan {
            ops: vec![linear(0), linear(1)],
            buffers: vec![buffer("x"), buffer("y")],
            weights: vec![weight("blk.0.ffn_up.weight", 1024), weight("blk.0.ffn_down.weight", 2048)],
            ropes: Vec::new(),
            kv: KvLayout::default(),
            logits: BufferId(1),
            vocab: 1 << 16,
            max_step_tokens: 8,
            max_logit_rows: 8,
        }
    }

    #[test]
    fn parts_and_what_is_left_add_up_to_the_step() {
        let (plan, probe) = (plan(), probe());
        let step = StepShape::decode(1, 0);
        // 34 bytes for 32 elements: 1024 rows of 2¹⁶ are 71.3 MB, and both matrices 213.9 MB, beyond the cache of 32 MiB.
        let bytes = |rows: f64| rows * 65536.0 / 32.0 * 34.0;
        let plain = [30e6, 29e6, 31e6];
        let point = assemble(&plan, &probe, &step, &plain, &[8e6, 18e6], 30.3e6, true);
        assert_eq!(point.residency, Residency::Cold);
        // The probe reads 20 GB/s from memory, and its products reach 18.
        assert!((point.ceiling_ns - bytes(3072.0) / 20.0).abs() < 1.0);
        assert!((point.floor_ns - bytes(3072.0) / 18.0).abs() < 1.0);
        assert_eq!(point.measured_ns, 30e6);
        assert_eq!(point.unattributed_ns, 4e6);
        assert!(!point.is_attributed());
        assert!((point.timing_cost - 0.01).abs() < 1e-9);
        let names: Vec<_> = point.parts.iter().map(|p| (p.name.as_str(), p.operations)).collect();
        assert_eq!(names, [("gate and up", 1), ("down", 1)]);
        // Amdahl: without what `down` takes beyond its floor, the step would be so much faster.
        let saved = 18e6 - bytes(2048.0) / 18.0;
        assert!((point.parts[1].worth - 30e6 / (30e6 - saved)).abs() < 1e-6);
        assert_eq!(point.operations.len(), 2);
        assert!((point.tokens_per_s() - 1e9 / 30e6).abs() < 1e-9);
    }

    #[test]
    fn an_operation_faster_than_its_floor_is_worth_nothing() {
        let point = assemble(&plan(), &probe(), &StepShape::decode(1, 0), &[10e6], &[1e6, 1e6], 10e6, false);
        assert!(point.parts.iter().all(|p| p.worth == 1.0));
        assert!(point.operations.is_empty());
    }
}
