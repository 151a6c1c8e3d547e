//! Products with weights: the input is normalised and quantised once, then threads take panels.
//!
//! The quantised input lies in tiles of up to 64 columns, `[tile][block of 32][column]`, so that a panel's sub-block
//! meets all columns of a tile in one run.

use tensor::op::{BufferId, Epilogue, Norm, Part};
use tensor::panels::PANEL_ROWS;

use super::{GROUP_PANELS, StepView, TILE_COLUMNS};
use crate::memory::prefetch;
use crate::pool::Worker;
use crate::rows::{Finish, FinishArgs};

/// Columns up to which a product streams weights rather than columns.
const FEW_COLUMNS: usize = 4;
/// Cache lines of a run of panels that are asked for before it begins, as many as a product then stays ahead.
const HEAD_LINES: usize = 64;
/// Blocks of 32 that one thread quantises at a time when there is a single row.
const SEGMENT_BLOCKS: usize = 16;

impl StepView<'_> {
    /// Leaves norm(src) as quantised blocks, floats or both, as the parts need.
    pub(super) fn prepare_input(&self, w: &Worker<'_>, src: BufferId, norm: Option<Norm>, parts: &[Part]) {
        let (rows, width) = (self.buffer_rows(src), self.width(src));
        let float = parts.iter().any(|p| self.weight(p.weight).matrix().0.is_float());
        let int = parts.iter().any(|p| !self.weight(p.weight).matrix().0.is_float());
        let Some(norm) = norm else {
            if !int {
                return;
            }
            let segments = (width / 32).div_ceil(SEGMENT_BLOCKS);
            let chunk = if rows == 1 { 1 } else { segments * Self::adjoining(w, rows) };
            while let Some(units) = w.take(rows * segments, chunk) {
                for u in units {
                    let (row, from) = (u / segments, u % segments * SEGMENT_BLOCKS);
                    let count = SEGMENT_BLOCKS.min(width / 32 - from);
                    // SAFETY: src is only read in this stage; each unit writes its own blocks.
                    unsafe {
                        let x = self.row(src, row, 32 * from, 32 * count);
                        self.quantise(x, row, from, rows, width);
                    }
                }
            }
            return;
        };
        let weight = self.weight(norm.weight).vector();
        while let Some(units) = w.take(rows, Self::adjoining(w, rows)) {
            for row in units {
                // SAFETY: src is only read in this stage; scratch is the thread's; each unit writes its own row.
                unsafe {
                    let x = self.row(src, row, 0, width);
                    let out = if float {
                        self.core.floats.get_mut(row * width, width)
                    } else {
                        self.core.scratch[w.id].get_mut(0, width)
                    };
                    self.core.table.norm(x, weight, norm.eps, out);
                    if int {
                        self.quantise(out, row, 0, rows, width);
                    }
                }
            }
        }
    }

    /// Rows that one thread takes together: neighbours' blocks share cache lines.
    fn adjoining(w: &Worker<'_>, rows: usize) -> usize {
        (rows / (4 * w.threads())).clamp(1, 8)
    }

    /// Quantises x, blocks `from…` of a row, to their places.
    ///
    /// # Safety
    /// No other thread touches those blocks in this stage.
    unsafe fn quantise(&self, x: &[f32], row: usize, from: usize, rows: usize, width: usize) {
        let tile = row / TILE_COLUMNS;
        let columns = TILE_COLUMNS.min(rows - tile * TILE_COLUMNS);
        let at = tile * TILE_COLUMNS * (width / 32) + from * columns + row % TILE_COLUMNS;
        let last = at + (x.len() / 32).saturating_sub(1) * columns;
        assert!(last < self.core.blocks.len(), "block {last}");
        // SAFETY: the last block written lies within the buffer; the rest is the caller's contract.
        unsafe { self.core.table.quantise(x, self.core.blocks.ptr().add(at), columns) };
    }

    /// dst (then)= parts · input.
    pub(super) fn products(
        &self,
        w: &Worker<'_>,
        src: BufferId,
        normed: bool,
        parts: &[Part],
        then: Epilogue,
        dst: BufferId,
    ) {
        let rows = self.buffer_rows(src);
        let tiles = rows.div_ceil(TILE_COLUMNS);
        let glu = matches!(then, Epilogue::Glu(_));
        let panels_of = |p: &Part| self.weight(p.weight).matrix().1.div_ceil(PANEL_ROWS);
        // The parts of a gated unit advance together.
        let listed = if glu { &parts[..1] } else { parts };
        let total: usize = listed.iter().map(panels_of).sum();
        let chunk = if rows <= FEW_COLUMNS {
            // As many rounds for each thread, or the last would wait.
            total.div_ceil(3 * w.threads()).min(32)
        } else {
            (total / (6 * w.threads())).clamp(1, 16).next_multiple_of(2)
        };
        while let Some(units) = w.take(tiles * total, chunk) {
            let mut u = units.start;
            while u < units.end {
                let (tile, mut panel) = (u / total, u % total);
                let mut part = 0;
                while panel >= panels_of(&listed[part]) {
                    panel -= panels_of(&listed[part]);
                    part += 1;
                }
                let columns = TILE_COLUMNS.min(rows - tile * TILE_COLUMNS);
                let most = self.group(listed, part, glu, columns);
                let count = most.min(panels_of(&listed[part]) - panel).min(units.end - u);
                if u == units.start && rows <= FEW_COLUMNS {
                    let weights = self.weight(listed[part].weight).panels(panel, count);
                    weights.iter().step_by(64).take(HEAD_LINES).for_each(|line| prefetch(line));
                }
                let job = Job { w, src, normed, then, dst, tile, columns, panel, count };
                if glu {
                    self.gated(&job, parts);
                } else {
                    self.plain(&job, &parts[part]);
                }
                u += count;
            }
        }
    }

    /// Panels that one product call takes best.
    fn group(&self, parts: &[Part], part: usize, glu: bool, columns: usize) -> usize {
        match (self.weight(parts[part].weight).matrix().0.is_float(), columns) {
            // Few columns stream weights: one long run.
            (_, 1..=FEW_COLUMNS) => GROUP_PANELS,
            // Gate and up are a pair already.
            _ if glu => 1,
            _ => 2,
        }
    }

    /// Leaves `[columns][count][16]` products of some panels in `acc`.
    fn product(&self, job: &Job<'_, '_>, part: &Part, acc: &mut [f32]) {
        let weight = self.weight(part.weight);
        let (encoding, _, cols) = weight.matrix();
        let panels = weight.panels(job.panel, job.count);
        let first = job.tile * TILE_COLUMNS;
        if encoding.is_float() {
            // SAFETY: activations are only read in this stage.
            let x = unsafe {
                if job.normed {
                    self.core.floats.get(first * cols, job.columns * cols)
                } else {
                    let x = self.buffer(job.src).add(first * cols);
                    std::slice::from_raw_parts(x, job.columns * cols)
                }
            };
            self.core.table.float_product(encoding, panels, cols, x, acc);
        } else {
            let blocks = cols / 32;
            // SAFETY: activations are only read in this stage.
            let x = unsafe { self.core.blocks.get(first * blocks, job.columns * blocks) };
            self.core.table.int_product(encoding, panels, cols, x, job.columns, acc);
        }
    }

    fn plain(&self, job: &Job<'_, '_>, part: &Part) {
        let len = job.columns * job.count * PANEL_ROWS;
        // SAFETY: the scratch is this thread's.
        let acc = unsafe { self.core.scratch[job.w.id].get_mut(0, len) };
        self.ask_for_outputs(job, part);
        self.product(job, part, acc);
        self.finish(job, part, acc, job.count * PANEL_ROWS, None);
    }

    /// Some panels of the gate and the same of the up projection.
    fn gated(&self, job: &Job<'_, '_>, parts: &[Part]) {
        let len = job.columns * job.count * PANEL_ROWS;
        // SAFETY: the scratch is this thread's.
        let acc = unsafe { self.core.scratch[job.w.id].get_mut(0, 2 * len) };
        self.ask_for_outputs(job, &parts[0]);
        let (gate, up) = (self.weight(parts[0].weight), self.weight(parts[1].weight));
        let (encoding, _, cols) = gate.matrix();
        if job.count == 1 && job.columns > FEW_COLUMNS && encoding == up.matrix().0 && !encoding.is_float() {
            let blocks = cols / 32;
            // SAFETY: activations are only read in this stage.
            let x = unsafe { self.core.blocks.get(job.tile * TILE_COLUMNS * blocks, job.columns * blocks) };
            let panels = [gate.panels(job.panel, 1), up.panels(job.panel, 1)];
            self.core.table.int_product_pair(encoding, panels, cols, x, job.columns, acc);
            let second = Some((&parts[1], &acc[PANEL_ROWS..]));
            self.finish(job, &parts[0], acc, 2 * PANEL_ROWS, second);
        } else {
            let (a, b) = acc.split_at_mut(len);
            self.product(job, &parts[0], a);
            self.product(job, &parts[1], b);
            self.finish(job, &parts[0], a, job.count * PANEL_ROWS, Some((&parts[1], b)));
        }
    }

    /// Fetches the lines that the job's epilogue will write, of many columns, while the product runs: they lie rows apart,
    /// where no hardware prefetching finds them.
    fn ask_for_outputs(&self, job: &Job<'_, '_>, part: &Part) {
        if job.columns <= FEW_COLUMNS {
            return;
        }
        let stride = self.width(job.dst);
        let first = job.tile * TILE_COLUMNS * stride + part.dst_col + job.panel * PANEL_ROWS;
        for column in 0..job.columns {
            let row = self.buffer(job.dst).wrapping_add(first + column * stride);
            for panel in 0..job.count {
                prefetch(row.wrapping_add(panel * PANEL_ROWS).cast());
            }
        }
    }

    /// Applies the epilogue to the job's panels, whose products lie at `stride` from `product` on.
    fn finish(
        &self,
        job: &Job<'_, '_>,
        part: &Part,
        product: &[f32],
        stride: usize,
        second: Option<(&Part, &[f32])>,
    ) {
        let (_, rows, _) = self.weight(part.weight).matrix();
        let first_row = job.panel * PANEL_ROWS;
        let count = (job.count * PANEL_ROWS).min(rows - first_row);
        let bias = |part: &Part| {
            part.bias
                .map_or(std::ptr::null(), |b| self.weight(b).vector()[first_row..first_row + count].as_ptr())
        };
        let needed = (job.columns - 1) * stride + job.count * PANEL_ROWS;
        assert!(product.len() >= needed && second.is_none_or(|(_, s)| s.len() >= needed), "products");
        let (out_stride, col) = (self.width(job.dst), part.dst_col + first_row);
        let first = job.tile * TILE_COLUMNS;
        assert!(first + job.columns <= self.buffer_rows(job.dst) && col + count <= out_stride, "outputs");
        // SAFETY: the outputs lie within dst and belong to these panels and this tile alone; the products and biases
        // were measured above.
        unsafe {
            self.core.table.finish(FinishArgs {
                product: product.as_ptr(),
                second: second.map_or(std::ptr::null(), |(_, s)| s.as_ptr()),
                stride,
                bias: bias(part),
                second_bias: second.map_or(std::ptr::null(), |(p, _)| bias(p)),
                columns: job.columns,
                out: self.buffer(job.dst).add(first * out_stride + col),
                out_stride,
                rows: count,
                then: match job.then {
                    Epilogue::Store => Finish::Store,
                    Epilogue::Add => Finish::Add,
                    Epilogue::Glu(a) => Finish::Glu(a),
                    Epilogue::SoftCap(cap) => Finish::SoftCap(cap),
                },
            });
        }
    }
}

/// Some panels of one part times one tile of columns.
struct Job<'a, 'w> {
    w: &'a Worker<'w>,
    src: BufferId,
    normed: bool,
    then: Epilogue,
    dst: BufferId,
    tile: usize,
    columns: usize,
    panel: usize,
    count: usize,
}
