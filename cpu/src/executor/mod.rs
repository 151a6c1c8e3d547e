//! Runs plans: resolves weights once, checks each step, and drives the pool through the operations.
//!
//! It does not know what the tokens mean nor who owns the KV blocks; `linear`, `attend` and `rest` hold the operations.

mod attend;
mod linear;
mod rest;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tensor::device::{Executor, ExecutorMemory, LogitRows, OpSink, Span, StepTimes, WeightStore};
use tensor::kv::{BlockId, rotation};
use tensor::op::{BufferId, Epilogue, Kind, Op, Plan, Rows, WeightId};
use tensor::panels::{PANEL_ROWS, matrix_bytes, panel_bytes};
use tensor::{Encoding, Error, Result};

use crate::attention::state_len;
use crate::memory::{BlockPool, Shared};
use crate::panel::XBlock;
use crate::pool::{Pool, Worker};
use crate::table::Table;
use attend::Units;

/// Columns of one activation tile: 64 columns of 8,960 elements are 0.8 MB of blocks, within a second-level cache.
pub(crate) const TILE_COLUMNS: usize = 64;

/// Most panels of one product call, for up to four columns; more columns take two.
const GROUP_PANELS: usize = 8;

/// A weight found in the store. The store, kept alive beside it, owns the bytes.
#[derive(Clone, Copy)]
struct Resolved {
    kind: Kind,
    ptr: *const u8,
    len: usize,
}

// SAFETY: read-only bytes of a store that is Sync and outlives the executor's use of them.
unsafe impl Send for Resolved {}
// SAFETY: as above.
unsafe impl Sync for Resolved {}

impl Resolved {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the store gave these bytes and lives as long as the executor.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// The matrix: encoding, rows, columns.
    fn matrix(&self) -> (Encoding, usize, usize) {
        match self.kind {
            Kind::Panels { encoding, rows, cols } => (encoding, rows, cols),
            Kind::Vector { .. } | Kind::Bytes { .. } => unreachable!("checked when the plan was loaded"),
        }
    }

    /// Panels `from..from + count` of a matrix.
    fn panels(&self, from: usize, count: usize) -> &[u8] {
        let (encoding, _, cols) = self.matrix();
        let bytes = panel_bytes(encoding, cols);
        &self.bytes()[from * bytes..][..count * bytes]
    }

    fn vector(&self) -> &[f32] {
        let Kind::Vector { len } = self.kind else { unreachable!("checked when the plan was loaded") };
        // SAFETY: the bytes are `len` aligned f32, checked when the plan was loaded.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), len) }
    }
}

/// One token of the step.
#[derive(Clone, Copy)]
struct TokenRow {
    token: u32,
    span: usize,
    position: usize,
}

/// What the threads of a step see: everything but the pool that runs them.
struct Core {
    table: Table,
    plan: Arc<Plan>,
    weights: Vec<Resolved>,
    _store: Arc<dyn WeightStore>,
    buffers: Vec<Shared<f32>>,
    /// Quantised activations of the product now running.
    blocks: Shared<XBlock>,
    /// Normalised float activations of the product now running.
    floats: Shared<f32>,
    /// Per rope, `[tokens][2·pairs]`: cos, then sin.
    rope_tables: Vec<Shared<f32>>,
    /// Per thread.
    scratch: Vec<Shared<f32>>,
    pools: Vec<BlockPool>,
    /// Per layer of the cache the signs that keys and values are rotated with; empty where they are not.
    signs: Vec<Signs>,
}

/// The signs of a layer's rotation; empty where there is none.
struct Signs {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The CPU's executor.
pub(crate) struct CpuExecutor {
    core: Core,
    pool: Pool,
    /// Tile results of single-token spans.
    parts: Vec<f32>,
    rows: Vec<TokenRow>,
    logit_rows: Vec<usize>,
    units: Vec<Units>,
    timing: Option<Timing>,
}

/// Where the times of operations go, and when each of them ended, in nanoseconds from the step's beginning: first the
/// setup, then the operations.
struct Timing {
    sink: Box<dyn OpSink>,
    ends: Vec<AtomicU64>,
    ops_ns: Vec<u64>,
}

/// One step as the threads see it.
struct StepView<'a> {
    core: &'a Core,
    spans: &'a [Span<'a>],
    rows: &'a [TokenRow],
    /// Token rows whose logits were asked for.
    logit_rows: &'a [usize],
    logits: *mut f32,
    parts: *mut f32,
    /// Per KV group, what there is to attend.
    units: &'a [Units],
    /// The step's beginning and where the ends of operations are noted, if they are.
    ends: Option<(Instant, &'a [AtomicU64])>,
}

// SAFETY: the raw pointers are to memory that outlives the step, written disjointly between barriers.
unsafe impl Sync for StepView<'_> {}

impl StepView<'_> {
    fn weight(&self, id: WeightId) -> &Resolved {
        &self.core.weights[id.0 as usize]
    }

    /// Rows that a buffer has in this step.
    fn buffer_rows(&self, id: BufferId) -> usize {
        match self.core.plan.buffer(id).rows {
            Rows::Tokens => self.rows.len(),
            Rows::Logits => self.logit_rows.len(),
        }
    }

    fn width(&self, id: BufferId) -> usize {
        self.core.plan.buffer(id).width
    }

    /// A buffer's first element; the logits' buffer is the caller's.
    fn buffer(&self, id: BufferId) -> *mut f32 {
        if id == self.core.plan.logits { self.logits } else { self.core.buffers[id.0 as usize].ptr() }
    }

    /// `len` elements of a buffer's row from `col`.
    ///
    /// # Safety
    /// No other thread writes them before the next barrier.
    unsafe fn row(&self, id: BufferId, row: usize, col: usize, len: usize) -> &[f32] {
        assert!(row < self.buffer_rows(id) && col + len <= self.width(id), "row {row}, {col}+{len}");
        // SAFETY: within the buffer; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.buffer(id).add(row * self.width(id) + col), len) }
    }

    /// The same for writing.
    ///
    /// # Safety
    /// No other thread touches them before the next barrier.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's contract
    unsafe fn row_mut(&self, id: BufferId, row: usize, col: usize, len: usize) -> &mut [f32] {
        assert!(row < self.buffer_rows(id) && col + len <= self.width(id), "row {row}, {col}+{len}");
        // SAFETY: within the buffer; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.buffer(id).add(row * self.width(id) + col), len) }
    }

    /// Runs the whole step on one of the pool's threads.
    fn run(&self, w: &Worker<'_>) {
        self.rope_tables(w);
        w.barrier();
        self.note_end(w, 0);
        for (i, op) in self.core.plan.ops.iter().enumerate() {
            match op {
                Op::Embed { table, scale, dst } => self.embed(w, *table, *scale, *dst),
                Op::Linear { src, norm, parts, then, dst } => {
                    if self.buffer_rows(*src) == 0 {
                        self.note_end(w, i + 1);
                        continue;
                    }
                    self.prepare_input(w, *src, *norm, parts);
                    w.barrier();
                    self.products(w, *src, norm.is_some(), parts, *then, *dst);
                }
                Op::RopeStore { qkv, layer, heads, q_norm, k_norm, rope } => {
                    self.rope_store(w, *qkv, *layer, *heads, *q_norm, *k_norm, *rope)
                }
                Op::Attention { qkv, dst, layer, heads, scale, softcap, window } => {
                    let a = attend::Attention {
                        qkv: *qkv,
                        dst: *dst,
                        layer: &self.core.plan.kv.layers[*layer],
                        signs: &self.core.signs[*layer],
                        heads: *heads,
                        scale: *scale,
                        softcap: softcap.unwrap_or(0.0),
                        window: *window,
                    };
                    if self.pack_groups(w, &a) {
                        w.barrier();
                    }
                    self.attend_units(w, &a);
                    if self.has_folds(&a) {
                        w.barrier();
                        self.fold_tiles(w, &a);
                    }
                }
                Op::NormAdd { src, norm, dst } => self.norm_add(w, *src, *norm, *dst),
                Op::SelectLogitRows { src, dst } => self.select(w, *src, *dst),
            }
            w.barrier();
            self.note_end(w, i + 1);
        }
    }

    /// Notes when a stage ended, where times are taken.
    fn note_end(&self, w: &Worker<'_>, stage: usize) {
        if let Some((start, ends)) = self.ends
            && w.id == 0
        {
            ends[stage].store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

impl CpuExecutor {
    pub(crate) fn new(
        table: Table,
        threads: usize,
        plan: Arc<Plan>,
        store: Arc<dyn WeightStore>,
        kv_blocks: &[usize],
    ) -> Result<CpuExecutor> {
        let weights = resolve(&plan, &*store)?;
        check(&plan)?;
        let pools = plan
            .kv
            .groups
            .iter()
            .zip(kv_blocks)
            .map(|(g, &n)| BlockPool::new(n, g.block_bytes))
            .collect::<Result<Vec<_>>>()?;
        if pools.len() != plan.kv.groups.len() {
            return Err(Error::malformed(
                "KV pool sizes",
                plan.kv.groups.len().to_string(),
                kv_blocks.len().to_string(),
            ));
        }
        let rows = |r| match r {
            Rows::Tokens => plan.max_step_tokens,
            Rows::Logits => plan.max_logit_rows,
        };
        let mut buffers = Vec::new();
        for (i, b) in plan.buffers.iter().enumerate() {
            let external = BufferId(i as u32) == plan.logits;
            buffers.push(Shared::new(b.name, if external { 0 } else { b.width * rows(b.rows) })?);
        }
        let (mut blocks, mut floats, mut norms) = (0, 0, 0);
        for op in &plan.ops {
            let Op::Linear { src, norm, parts, .. } = op else { continue };
            let (n, width) = (rows(plan.buffer(*src).rows), plan.buffer(*src).width);
            let is_float = |p: &tensor::op::Part| weights[p.weight.0 as usize].matrix().0.is_float();
            if parts.iter().any(|p| !is_float(p)) {
                blocks = blocks.max(n * (width / 32));
                norms = norms.max(width);
            }
            if norm.is_some() && parts.iter().any(is_float) {
                floats = floats.max(n * width);
            }
        }
        let rope_tables = plan
            .ropes
            .iter()
            .map(|r| Shared::new("rotary tables", plan.max_step_tokens * 2 * r.inv_freq.len()))
            .collect::<Result<_>>()?;
        let thread_scratch =
            attend::scratch_len(&plan).max(2 * TILE_COLUMNS * GROUP_PANELS * PANEL_ROWS).max(norms);
        let scratch =
            (0..threads).map(|_| Shared::new("thread scratch", thread_scratch)).collect::<Result<_>>()?;
        let pool = Pool::new(threads).map_err(|e| Error::io("a thread of the pool", e))?;
        let signs = signs(&plan);
        let core = Core {
            table,
            weights,
            _store: store,
            buffers,
            blocks: Shared::new("quantised activations", blocks)?,
            floats: Shared::new("float activations", floats)?,
            rope_tables,
            scratch,
            pools,
            signs,
            plan,
        };
        Ok(CpuExecutor {
            core,
            pool,
            parts: Vec::new(),
            rows: Vec::new(),
            logit_rows: Vec::new(),
            units: Vec::new(),
            timing: None,
        })
    }

    /// A group's pool, where it has all these blocks.
    fn pool_of(&self, group: usize, blocks: &[BlockId]) -> Result<&BlockPool> {
        let pools = self.core.pools.len();
        let Some(pool) = self.core.pools.get(group) else {
            return Err(Error::malformed("KV group", format!("below {pools}"), group.to_string()));
        };
        match blocks.iter().find(|b| b.0 as usize >= pool.blocks) {
            Some(b) => Err(Error::malformed("KV block", format!("below {}", pool.blocks), b.0.to_string())),
            None => Ok(pool),
        }
    }

    /// Refuses a step beyond the plan's limits, before anything is written.
    fn check_step(&self, step: &[Span<'_>], logits: usize) -> Result<()> {
        let plan = &*self.core.plan;
        let found =
            |what: &str, expected: String, found: String| Err(Error::malformed(what, expected, found));
        let tokens: usize = step.iter().map(|s| s.tokens.len()).sum();
        let rows: usize = step.iter().map(|s| s.logit_rows()).sum();
        if tokens > plan.max_step_tokens {
            return found(
                "tokens of a step",
                format!("at most {}", plan.max_step_tokens),
                tokens.to_string(),
            );
        }
        if rows > plan.max_logit_rows {
            return found(
                "logit rows of a step",
                format!("at most {}", plan.max_logit_rows),
                rows.to_string(),
            );
        }
        if logits != rows * plan.vocab {
            return found("logits", (rows * plan.vocab).to_string(), logits.to_string());
        }
        for (i, s) in step.iter().enumerate() {
            if s.tokens.is_empty() {
                return found(&format!("span {i}"), "at least one token".into(), "none".into());
            }
            if let Some(&t) = s.tokens.iter().find(|&&t| t as usize >= plan.vocab) {
                return found(&format!("span {i}: token"), format!("below {}", plan.vocab), t.to_string());
            }
            let end = s.start + s.tokens.len();
            if s.tables.len() != plan.kv.groups.len() {
                let (want, have) = (plan.kv.groups.len(), s.tables.len());
                return found(&format!("span {i}: block tables"), want.to_string(), have.to_string());
            }
            for (g, table) in s.tables.iter().enumerate() {
                let kv = &plan.kv;
                let (read, written) =
                    (kv.blocks(g, kv.needed(g, s.start)), kv.blocks(g, kv.written(g, s.start..end)));
                let most = read.end.max(written.end);
                if table.len() < most {
                    let what = format!("span {i}: block table of group {g}");
                    return found(&what, format!("{most} blocks"), table.len().to_string());
                }
                for &BlockId(b) in table[read].iter().chain(&table[written]) {
                    if b as usize >= self.core.pools[g].blocks {
                        let what = format!("span {i}: block of group {g}");
                        return found(&what, format!("below {}", self.core.pools[g].blocks), b.to_string());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Timing {
    fn new(sink: Box<dyn OpSink>, ops: usize) -> Timing {
        Timing { sink, ends: (0..=ops).map(|_| AtomicU64::new(0)).collect(), ops_ns: vec![0; ops] }
    }

    fn tell(&mut self, total_ns: u64) {
        let setup_ns = self.ends[0].load(Ordering::Relaxed);
        let mut last = setup_ns;
        for (ns, end) in self.ops_ns.iter_mut().zip(&self.ends[1..]) {
            let end = end.load(Ordering::Relaxed);
            *ns = end.saturating_sub(last);
            last = end;
        }
        self.sink.step(&StepTimes { setup_ns, ops_ns: &self.ops_ns, total_ns });
    }
}

impl Executor for CpuExecutor {
    fn run(&mut self, step: &[Span<'_>], logits: &mut [f32]) -> Result<()> {
        self.check_step(step, logits.len())?;
        if step.is_empty() {
            return Ok(());
        }
        self.rows.clear();
        self.logit_rows.clear();
        for (span, s) in step.iter().enumerate() {
            let first = match s.logits {
                LogitRows::None => s.tokens.len(),
                LogitRows::Last => s.tokens.len() - 1,
                LogitRows::All => 0,
            };
            for (i, &token) in s.tokens.iter().enumerate() {
                if i >= first {
                    self.logit_rows.push(self.rows.len());
                }
                self.rows.push(TokenRow { token, span, position: s.start + i });
            }
        }
        let plan = &self.core.plan;
        self.units = attend::units(plan, step, self.core.scratch.len());
        let parts = attend::parts_len(plan, &self.units);
        if self.parts.len() < parts {
            self.parts.resize(parts, 0.0);
        }
        let view = StepView {
            core: &self.core,
            spans: step,
            rows: &self.rows,
            logit_rows: &self.logit_rows,
            logits: logits.as_mut_ptr(),
            parts: self.parts.as_mut_ptr(),
            units: &self.units,
            ends: self.timing.as_ref().map(|t| (Instant::now(), &t.ends[..])),
        };
        let started = view.ends.map(|(start, _)| start);
        self.pool.run(&|w| view.run(w));
        if let (Some(timing), Some(started)) = (&mut self.timing, started) {
            timing.tell(started.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    fn copy_block(&mut self, group: usize, from: BlockId, to: BlockId) -> Result<()> {
        let pool = self.pool_of(group, &[from, to])?;
        // SAFETY: both blocks lie within the pool, which no step uses now; overlapping means equal.
        unsafe { std::ptr::copy(pool.block(from.0), pool.block(to.0), pool.block_bytes) };
        Ok(())
    }

    fn read_block(&self, group: usize, block: BlockId, out: &mut [u8]) -> Result<()> {
        let pool = self.pool_of(group, &[block])?;
        assert_eq!(out.len(), pool.block_bytes, "one block");
        // SAFETY: the block lies within the pool, which no step uses now.
        unsafe { std::ptr::copy_nonoverlapping(pool.block(block.0), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn write_block(&mut self, group: usize, block: BlockId, bytes: &[u8]) -> Result<()> {
        let pool = self.pool_of(group, &[block])?;
        assert_eq!(bytes.len(), pool.block_bytes, "one block");
        // SAFETY: the block lies within the pool, which no step uses now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pool.block(block.0), bytes.len()) };
        Ok(())
    }

    fn time_operations(&mut self, sink: Option<Box<dyn OpSink>>) -> Result<()> {
        self.timing = sink.map(|sink| Timing::new(sink, self.core.plan.ops.len()));
        Ok(())
    }

    fn memory(&self) -> ExecutorMemory {
        let c = &self.core;
        let f32s = c.buffers.iter().chain(&c.rope_tables).chain(&c.scratch).chain([&c.floats]);
        let scratch: usize = f32s.map(|s| s.bytes()).sum();
        ExecutorMemory {
            kv_pool_bytes: c.pools.iter().map(|p| p.bytes() as u64).sum(),
            scratch_bytes: (scratch + c.blocks.bytes() + self.parts.len() * 4) as u64,
        }
    }
}

/// Finds every weight of a plan and checks its kind, size and alignment.
fn resolve(plan: &Plan, store: &dyn WeightStore) -> Result<Vec<Resolved>> {
    let mut out = Vec::with_capacity(plan.weights.len());
    for w in &plan.weights {
        let (kind, bytes) =
            store.get(&w.name).ok_or_else(|| Error::Missing { what: format!("tensor {}", w.name) })?;
        if kind != w.kind {
            return Err(Error::malformed(&w.name, format!("{:?}", w.kind), format!("{kind:?}")));
        }
        let (needed, align) = match kind {
            Kind::Panels { encoding, rows, cols } => (matrix_bytes(encoding, rows, cols), 1),
            Kind::Vector { len } => (4 * len, 4),
            Kind::Bytes { len } => (len, 1),
        };
        if bytes.len() != needed {
            return Err(Error::malformed(&w.name, format!("{needed} bytes"), bytes.len().to_string()));
        }
        if !(bytes.as_ptr() as usize).is_multiple_of(align) {
            return Err(Error::malformed(&w.name, format!("alignment to {align} bytes"), "none"));
        }
        out.push(Resolved { kind, ptr: bytes.as_ptr(), len: bytes.len() });
    }
    Ok(out)
}

/// Checks that a plan's operations fit its buffers and this device, so that the step need not.
fn check(plan: &Plan) -> Result<()> {
    for (i, op) in plan.ops.iter().enumerate() {
        let bad = |expected: String, found: String| {
            Err(Error::malformed(format!("operation {i}"), expected, found))
        };
        match op {
            Op::Embed { table, dst, .. } => {
                let want =
                    Kind::Panels { encoding: Encoding::F32, rows: plan.vocab, cols: plan.buffer(*dst).width };
                match (plan.weight(*table).kind, want) {
                    (Kind::Panels { rows, cols, .. }, Kind::Panels { rows: r, cols: c, .. })
                        if rows == r && cols == c => {}
                    (found, _) => return bad(format!("a table like {want:?}"), format!("{found:?}")),
                }
            }
            Op::Linear { src, norm, parts, then, dst } => {
                let (src, dst) = (plan.buffer(*src), plan.buffer(*dst));
                if src.rows != dst.rows {
                    return bad("buffers of the same rows".into(), format!("{} and {}", src.name, dst.name));
                }
                if matches!(then, Epilogue::Glu(_)) && parts.len() != 2 {
                    return bad("two parts of a gated unit".into(), parts.len().to_string());
                }
                let mut shape = None;
                for p in parts {
                    let Kind::Panels { rows, cols, .. } = plan.weight(p.weight).kind else {
                        return bad("a matrix".into(), plan.weight(p.weight).name.clone());
                    };
                    if cols != src.width || p.dst_col + rows > dst.width {
                        return bad(
                            format!("{} into {}", src.width, dst.width),
                            format!("{cols} into {rows}"),
                        );
                    }
                    if matches!(then, Epilogue::Glu(_)) && *shape.get_or_insert(rows) != rows {
                        return bad("equal halves of a gated unit".into(), format!("{rows} rows"));
                    }
                    if let Some(b) = p.bias
                        && plan.weight(b).kind != (Kind::Vector { len: rows })
                    {
                        return bad(format!("a bias of {rows}"), format!("{:?}", plan.weight(b).kind));
                    }
                }
                check_norm(plan, i, norm.as_ref(), src.width)?;
            }
            Op::RopeStore { qkv, layer, heads, q_norm, k_norm, rope } => {
                let l = &plan.kv.layers[*layer];
                let width = heads * l.keys.dim + l.kv_heads * (l.keys.dim + l.values.dim);
                let rope = 2 * plan.ropes[rope.0 as usize].inv_freq.len();
                if plan.buffer(*qkv).width != width
                    || rope > l.keys.dim
                    || l.keys.dim.max(l.values.dim) > rest::MAX_HEAD
                {
                    return bad(format!("a width of {width}"), plan.buffer(*qkv).width.to_string());
                }
                check_norm(plan, i, q_norm.as_ref(), l.keys.dim)?;
                check_norm(plan, i, k_norm.as_ref(), l.keys.dim)?;
            }
            Op::Attention { qkv, dst, layer, heads, window, .. } => {
                let l = &plan.kv.layers[*layer];
                if !l.keys.dim.is_multiple_of(16) || !l.values.dim.is_multiple_of(16) {
                    return Err(Error::unsupported(
                        format!("a head size of {}", l.keys.dim),
                        "the CPU's attention works in multiples of 16 channels",
                    ));
                }
                if l.kv_heads == 0 || !heads.is_multiple_of(l.kv_heads) {
                    return bad(format!("heads in groups of {}", l.kv_heads), heads.to_string());
                }
                let width = heads * l.keys.dim + l.kv_heads * (l.keys.dim + l.values.dim);
                if plan.buffer(*qkv).width != width || plan.buffer(*dst).width != heads * l.values.dim {
                    return bad(format!("widths {width} and {}", heads * l.values.dim), "others".into());
                }
                if *window != l.window {
                    return bad(format!("the window {window:?} of its cache"), format!("{:?}", l.window));
                }
            }
            Op::NormAdd { src, norm, dst } => {
                if plan.buffer(*src).width != plan.buffer(*dst).width {
                    return bad("equal widths".into(), plan.buffer(*src).name.into());
                }
                check_norm(plan, i, Some(norm), plan.buffer(*src).width)?;
            }
            Op::SelectLogitRows { src, dst } => {
                if plan.buffer(*src).width != plan.buffer(*dst).width {
                    return bad("equal widths".into(), plan.buffer(*src).name.into());
                }
            }
        }
    }
    Ok(())
}

fn check_norm(plan: &Plan, op: usize, norm: Option<&tensor::op::Norm>, len: usize) -> Result<()> {
    match norm.map(|n| plan.weight(n.weight)) {
        Some(w) if w.kind != (Kind::Vector { len }) => Err(Error::malformed(
            format!("operation {op}: {}", w.name),
            format!("a vector of {len}"),
            format!("{:?}", w.kind),
        )),
        _ => Ok(()),
    }
}

/// The signs of every layer's rotation.
fn signs(plan: &Plan) -> Vec<Signs> {
    let settings = &plan.kv.settings;
    let of = |layer: usize, side: &tensor::kv::Side, wanted: bool| match side.codes {
        Some(_) if wanted => rotation::signs(layer, side.dim),
        _ => Vec::new(),
    };
    let layers = plan.kv.layers.iter().enumerate();
    layers
        .map(|(i, l)| Signs {
            keys: of(i, &l.keys, settings.rotate_keys),
            values: of(i, &l.values, settings.rotate_values),
        })
        .collect()
}

/// f32 elements of a row's attention state in the widest layer.
fn widest_state(plan: &Plan) -> usize {
    plan.kv.layers.iter().map(|l| state_len(l.values.dim)).max().unwrap_or(0)
}
