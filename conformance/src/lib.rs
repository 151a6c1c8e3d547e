//! What every device must hold, whatever it is made of: one answer.
//!
//! A case is a plan with its weights and some token histories; the devices are the caller's. It knows no kernel, no
//! architecture and no engine: it drives executors directly and keeps its own block tables.

use std::sync::Arc;

use tensor::device::{Device, Executor, LogitRows, Span, WeightStore};
use tensor::kv::{BLOCK_POSITIONS, BlockId, KvLayout};
use tensor::op::Plan;

/// A model and what to ask it.
pub struct Case {
    /// For messages.
    pub name: String,
    /// The plan, with room for the largest step asked for.
    pub plan: Arc<Plan>,
    /// Its weights.
    pub weights: Arc<dyn WeightStore>,
    /// Token histories, one per sequence of the largest batch.
    pub histories: Vec<Vec<u32>>,
}

/// A prefix that a sequence takes over from another one before it goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Everything is computed.
    None,
    /// The first positions come from another sequence's blocks, the last of them copied where it is not whole.
    Prefix(usize),
}

/// One way of cutting the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Sequences stepped together.
    pub batch: usize,
    /// Most tokens of a sequence in one step.
    pub chunk: usize,
    /// Where the beginning comes from.
    pub reuse: Reuse,
}

/// The cross product that `spec/numerics.md` asks for.
pub fn all_cuts() -> Vec<Cut> {
    let mut cuts = Vec::new();
    for batch in [1, 2, 5, 8] {
        for chunk in [1, 7, 64, 512] {
            for reuse in [Reuse::None, Reuse::Prefix(BLOCK_POSITIONS), Reuse::Prefix(BLOCK_POSITIONS + 13)] {
                cuts.push(Cut { batch, chunk, reuse });
            }
        }
    }
    cuts
}

/// A selection in which every pair of settings still meets.
pub fn pairwise_cuts() -> Vec<Cut> {
    let reuses = [Reuse::None, Reuse::Prefix(BLOCK_POSITIONS), Reuse::Prefix(BLOCK_POSITIONS + 13)];
    let mut cuts = Vec::new();
    for (i, batch) in [1, 2, 5, 8].into_iter().enumerate() {
        for (j, chunk) in [1, 7, 64, 512].into_iter().enumerate() {
            cuts.push(Cut { batch, chunk, reuse: reuses[(i + j) % 3] });
        }
    }
    cuts
}

/// Logits of every position of a history: `[positions][vocabulary]`, as bits.
type Answer = Vec<Vec<u32>>;

/// One way of running a case.
#[derive(Clone, Copy)]
pub struct Arm<'a> {
    /// The device's name, for messages.
    pub name: &'a str,
    /// What runs it.
    pub device: &'a dyn Device,
    /// How the work is cut.
    pub cut: Cut,
}

/// Asserts that every device gives, for every cut, the bits that the first device gives for each history alone and token
/// by token.
///
/// # Panics
/// Where a bit differs, naming the case, the device, the cut, the sequence and the position.
pub fn assert_one_answer(case: &Case, devices: &[(String, Box<dyn Device>)], cuts: &[Cut]) {
    let mut arms = Vec::new();
    for (name, device) in devices {
        arms.extend(cuts.iter().map(|&cut| Arm { name, device: &**device, cut }));
    }
    let alone = Cut { batch: 1, chunk: 1, reuse: Reuse::None };
    let (name, device) = &devices[0];
    assert_arms(case, Arm { name, device: &**device, cut: alone }, &arms);
}

/// Asserts that every arm gives the bits that `reference`, whose batch and reuse do not count, gives for each history
/// alone.
///
/// # Panics
/// As [`assert_one_answer`].
pub fn assert_arms(case: &Case, reference: Arm<'_>, arms: &[Arm<'_>]) {
    let alone = Cut { batch: 1, reuse: Reuse::None, ..reference.cut };
    let reference: Vec<Answer> = case
        .histories
        .iter()
        .map(|h| answers(case, reference.device, std::slice::from_ref(h), alone).remove(0))
        .collect();
    for &Arm { name, device, cut } in arms {
        let histories = &case.histories[..cut.batch.min(case.histories.len())];
        let found = answers(case, device, histories, cut);
        for (s, (found, expected)) in found.iter().zip(&reference).enumerate() {
            assert_eq!(found.len(), expected.len(), "{} on {name}, {cut:?}: sequence {s}", case.name);
            for (position, (f, e)) in found.iter().zip(expected).enumerate() {
                if f.is_empty() {
                    continue; // a reused position
                }
                let at = f.iter().zip(e).position(|(a, b)| a != b);
                assert!(
                    at.is_none(),
                    "{} on {name}, {cut:?}: sequence {s}, position {position}, logit {}: {} for {}",
                    case.name,
                    at.unwrap_or_default(),
                    f32::from_bits(f[at.unwrap_or_default()]),
                    f32::from_bits(e[at.unwrap_or_default()]),
                );
            }
        }
    }
}

/// One sequence's blocks: for each KV group a table that grows from its own share of the pool.
struct Sequence {
    tables: Vec<Vec<BlockId>>,
    next: Vec<u32>,
    len: usize,
}

impl Sequence {
    fn new(groups: usize, first_block: u32) -> Sequence {
        Sequence { tables: vec![Vec::new(); groups], next: vec![first_block; groups], len: 0 }
    }

    fn grow_to(&mut self, len: usize, layout: &KvLayout) {
        for (g, (table, next)) in self.tables.iter_mut().zip(&mut self.next).enumerate() {
            while table.len() < layout.table_len(g, len) {
                table.push(BlockId(*next));
                *next += 1;
            }
        }
    }
}

fn answers(case: &Case, device: &dyn Device, histories: &[Vec<u32>], cut: Cut) -> Vec<Answer> {
    let plan = &case.plan;
    let groups = plan.kv.groups.len();
    let longest = histories.iter().map(Vec::len).max().unwrap_or(0);
    let share = longest.div_ceil(BLOCK_POSITIONS) + 1;
    // A donor for each sequence, so that a taken-over prefix is really another sequence's.
    let blocks = vec![share * histories.len() * 2; groups];
    let mut executor =
        device.load(plan.clone(), case.weights.clone(), &blocks).expect("the device loads the plan");
    let mut sequences: Vec<Sequence> =
        (0..histories.len()).map(|i| Sequence::new(groups, (i * share) as u32)).collect();
    let mut out: Vec<Answer> = histories.iter().map(|_| Vec::new()).collect();
    if let Reuse::Prefix(positions) = cut.reuse {
        for (i, history) in histories.iter().enumerate().filter(|(_, h)| h.len() > positions) {
            let mut donor = Sequence::new(groups, ((histories.len() + i) * share) as u32);
            // The donor goes on past the prefix with something else.
            let tokens: Vec<u32> = history[..positions]
                .iter()
                .copied()
                .chain([history[0], history[1 % history.len()]])
                .collect();
            for chunk in tokens.chunks(plan.max_step_tokens.min(33)) {
                step(plan, &mut *executor, &mut [(&mut donor, chunk)], LogitRows::None);
            }
            take_over(&mut *executor, &plan.kv, &donor, &mut sequences[i], positions);
            out[i] = vec![Vec::new(); positions];
        }
    }
    loop {
        let mut feeds: Vec<(&mut Sequence, &[u32])> = Vec::new();
        let mut fed = Vec::new();
        let mut room = plan.max_step_tokens.min(plan.max_logit_rows);
        for (i, (sequence, history)) in sequences.iter_mut().zip(histories).enumerate() {
            // Sequences of one batch advance at different paces, so that chunks and single tokens mix.
            let chunk = if i % 2 == 0 { cut.chunk } else { cut.chunk.div_ceil(2) };
            let n = chunk.min(history.len() - sequence.len).min(room);
            if n > 0 {
                let from = sequence.len;
                feeds.push((sequence, &history[from..from + n]));
                fed.push(i);
                room -= n;
            }
        }
        if feeds.is_empty() {
            return out;
        }
        let counts: Vec<usize> = feeds.iter().map(|(_, t)| t.len()).collect();
        let logits = step(plan, &mut *executor, &mut feeds, LogitRows::All);
        let mut rows = logits.chunks_exact(plan.vocab);
        for (i, n) in fed.into_iter().zip(counts) {
            out[i].extend(rows.by_ref().take(n).map(|r| r.iter().map(|x| x.to_bits()).collect()));
        }
    }
}

/// Gives `to` the first positions of `from`: blocks that it will not write shared, the others copied.
fn take_over(
    executor: &mut dyn Executor,
    layout: &KvLayout,
    from: &Sequence,
    to: &mut Sequence,
    positions: usize,
) {
    for g in 0..to.tables.len() {
        let first_written = layout.blocks(g, layout.written(g, positions..usize::MAX / 2)).start;
        let shared =
            if layout.written(g, positions..usize::MAX / 2).is_empty() { usize::MAX } else { first_written };
        for (i, &block) in from.tables[g][..layout.table_len(g, positions)].iter().enumerate() {
            if i < shared {
                to.tables[g].push(block);
            } else {
                let own = BlockId(to.next[g]);
                to.next[g] += 1;
                executor.copy_block(g, block, own).expect("both blocks are in the pool");
                to.tables[g].push(own);
            }
        }
    }
    to.len = positions;
}

fn step(
    plan: &Plan,
    executor: &mut dyn Executor,
    feeds: &mut [(&mut Sequence, &[u32])],
    rows: LogitRows,
) -> Vec<f32> {
    for (sequence, tokens) in feeds.iter_mut() {
        sequence.grow_to(sequence.len + tokens.len(), &plan.kv);
    }
    let spans: Vec<Span<'_>> = feeds
        .iter()
        .map(|(s, tokens)| Span { tokens, start: s.len, tables: &s.tables, logits: rows })
        .collect();
    let n: usize = spans.iter().map(Span::logit_rows).sum();
    let mut logits = vec![0.0; n * plan.vocab];
    executor.run(&spans, &mut logits).expect("the step runs");
    for (sequence, tokens) in feeds {
        sequence.len += tokens.len();
    }
    logits
}
