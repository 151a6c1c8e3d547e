//! Products with weights as a load: a plan of nothing but linear operations, run through a device's own executor, so that
//! the figure is what an engine's step can reach, input preparation and synchronisation included.
//!
//! It does not know which device that is.

use std::sync::Arc;
use std::time::Instant;

use tensor::Encoding;
use tensor::device::{Device, Executor, LogitRows, Span, WeightStore};
use tensor::kv::KvLayout;
use tensor::map::HugeMap;
use tensor::op::{Buffer, BufferId, Epilogue, Kind, Op, Part, Plan, Rows, Weight, WeightId};
use tensor::panels::matrix_bytes;
use tensor::probe::Load;

use crate::{Error, Result};

/// A matrix and the rows of activations that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// How the weights are stored.
    pub encoding: Encoding,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Rows of activations: 1 when a single sequence is decoded.
    pub columns: usize,
}

impl Shape {
    fn kind(&self) -> Kind {
        Kind::Panels { encoding: self.encoding, rows: self.rows, cols: self.cols }
    }

    /// Bytes of one matrix, as the ledger counts them.
    pub fn bytes(&self) -> u64 {
        self.kind().bytes()
    }

    /// Multiplications and additions of one product.
    pub fn flops(&self) -> f64 {
        2.0 * self.rows as f64 * self.cols as f64 * self.columns as f64
    }
}

/// Memory that matrices are cut from, filled with bytes that no encoding reads as an infinity.
#[derive(Clone, Debug)]
pub struct Weights(Arc<HugeMap>);

impl Weights {
    /// So many bytes.
    ///
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> Result<Weights> {
        let mut map = HugeMap::anonymous(bytes).map_err(|e| tensor::Error::io("memory", e))?;
        let mut state = 1u64;
        for word in map.bytes_mut().unwrap_or_default().chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Bits that would make a half-precision exponent large are cleared in every byte.
            word.copy_from_slice(&(state & 0x3b3b_3b3b_3b3b_3b3b).to_le_bytes());
        }
        Ok(Weights(Arc::new(map)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.bytes().len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Matrices of a shape that fit into so many bytes, at least one.
    pub fn copies(&self, shape: &Shape, set_bytes: usize) -> usize {
        let each = matrix_bytes(shape.encoding, shape.rows, shape.cols);
        (set_bytes.min(self.len()) / each).max(1)
    }
}

struct Store {
    weights: Weights,
    kind: Kind,
    each: usize,
}

impl WeightStore for Store {
    fn get(&self, name: &str) -> Option<(Kind, &[u8])> {
        let from = name.parse::<usize>().ok()?.checked_mul(self.each)?;
        Some((self.kind, self.weights.0.bytes().get(from..from + self.each)?))
    }
}

/// Products of one shape with matrices in turn; a unit is one pass over all of them, counted in bytes of weights.
pub struct Products {
    executor: Box<dyn Executor>,
    tokens: Vec<u32>,
    bytes: f64,
    /// Products of one unit.
    pub products: usize,
    /// Bytes of all matrices that take turns, as they lie in memory.
    pub set_bytes: u64,
}

impl Products {
    /// Products with `copies` matrices in turn.
    ///
    /// # Errors
    /// More memory than there is; a shape that the device does not run.
    pub fn new(device: &dyn Device, weights: &Weights, shape: Shape, copies: usize) -> Result<Products> {
        let each = matrix_bytes(shape.encoding, shape.rows, shape.cols);
        if each * copies > weights.len() {
            let found = format!("{} bytes", weights.len());
            return Err(Error::invalid("memory for products", format!("{} bytes", each * copies), found));
        }
        // A few small matrices would make the step's own beginning and end a part of the figure.
        const LEAST_BYTES: usize = 8 << 20;
        let products = copies * (LEAST_BYTES / (each * copies) / shape.columns).clamp(1, 256);
        let kind = shape.kind();
        let buffer = |name, width| Buffer { name, width, rows: Rows::Tokens };
        let part = |i: usize| Part { weight: WeightId((i % copies) as u32), bias: None, dst_col: 0 };
        let linear = |i| Op::Linear {
            src: BufferId(0),
            norm: None,
            parts: vec![part(i)],
            then: Epilogue::Store,
            dst: BufferId(1),
        };
        let plan = Plan {
            ops: (0..products).map(linear).collect(),
            buffers: vec![buffer("x", shape.cols), buffer("y", shape.rows), buffer("logits", shape.rows)],
            weights: (0..copies).map(|i| Weight { name: i.to_string(), kind }).collect(),
            ropes: Vec::new(),
            kv: KvLayout::default(),
            logits: BufferId(2),
            vocab: shape.rows,
            max_step_tokens: shape.columns,
            max_logit_rows: 0,
        };
        let store = Store { weights: weights.clone(), kind, each };
        let executor = device.load(Arc::new(plan), Arc::new(store), &[])?;
        Ok(Products {
            executor,
            tokens: vec![0; shape.columns],
            bytes: shape.bytes() as f64 * products as f64,
            products,
            set_bytes: (each * copies) as u64,
        })
    }
}

impl Load for Products {
    fn per_unit(&self) -> f64 {
        self.bytes
    }

    fn run(&mut self, units: u64) -> tensor::Result<u64> {
        let step = [Span { tokens: &self.tokens, start: 0, tables: &[], logits: LogitRows::None }];
        let start = Instant::now();
        for _ in 0..units {
            self.executor.run(&step, &mut [])?;
        }
        Ok(start.elapsed().as_nanos() as u64)
    }
}
