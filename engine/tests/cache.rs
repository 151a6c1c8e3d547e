//! Sequences over a fake device that remembers which token lies where: whatever was batched, chunked, forked, reused
//! or freed, every query must find exactly its own history, and write only into blocks of its own.

mod fake;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use engine::arch::from_gguf;
use engine::spec::ModelSpec;
use engine::{Error, Feed, LoadOptions, LogitRows, Model, Sequence};
use fake::{float, kinds, metadata, table, uint};
use proptest::prelude::*;
use tensor::device::{Device, DeviceInfo, Executor, ExecutorMemory, Span, WeightStore};
use tensor::kv::{BLOCK_POSITIONS, BlockId, GROUP_POSITIONS, KvGroup, KvLayout, KvSettings, Role};
use tensor::op::{Kind, Plan};

const VOCAB: usize = 200;

/// Kinds without bytes.
struct Kinds(HashMap<String, Kind>);

impl WeightStore for Kinds {
    fn get(&self, name: &str) -> Option<(Kind, &[u8])> {
        self.0.get(name).map(|&k| (k, &[][..]))
    }
}

#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<Vec<usize>>>>);

/// A device whose cache holds tokens, and whose logits are a hash of what a query sees.
struct FakeDevice(Steps);

struct FakeExecutor {
    layout: KvLayout,
    limits: (usize, usize),
    /// Per group, block and slot: the token written there.
    pools: Vec<Vec<[Option<u32>; BLOCK_POSITIONS]>>,
    steps: Steps,
}

impl Device for FakeDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "fake".into(), kernels: "none".into(), threads: 1 }
    }

    fn load(
        &self,
        plan: Arc<Plan>,
        _: Arc<dyn WeightStore>,
        blocks: &[usize],
    ) -> tensor::Result<Box<dyn Executor>> {
        Ok(Box::new(FakeExecutor {
            layout: plan.kv.clone(),
            limits: (plan.max_step_tokens, plan.max_logit_rows),
            pools: blocks.iter().map(|&n| vec![[None; BLOCK_POSITIONS]; n]).collect(),
            steps: self.0.clone(),
        }))
    }
}

/// What a model with these windows answers after a history: a hash of what each side of each kind of layer sees.
fn answer(history: &[u32], layout: &KvLayout) -> f32 {
    let visible =
        |window: Option<usize>| &history[history.len() - window.unwrap_or(usize::MAX).min(history.len())..];
    let mut hash = 0u32;
    for group in layout.groups.iter().filter(|g| is_side(g)) {
        for &token in visible(group.window) {
            hash = hash.wrapping_mul(31).wrapping_add(token + 1) % 1_000_003;
        }
    }
    hash as f32
}

/// Every side has halves: all of them, or the recent ones.
fn is_side(group: &KvGroup) -> bool {
    matches!(group.role, Role::Whole | Role::Recent)
}

impl FakeExecutor {
    /// The group that holds another part of the same side.
    fn other(&self, g: usize, role: Role) -> Option<usize> {
        self.layout.groups.iter().position(|o| o.window == self.layout.groups[g].window && o.role == role)
    }

    fn read(&self, span: &Span<'_>, g: usize, position: usize) -> u32 {
        let (block, slot) = match self.layout.groups[g].role {
            Role::Sinks => (0, position),
            _ => (position / BLOCK_POSITIONS, position % BLOCK_POSITIONS),
        };
        let block = span.tables[g][block];
        assert_ne!(block, BlockId::NONE, "position {position} of group {g} is freed though it is needed");
        self.pools[g][block.0 as usize][slot].expect("never written")
    }

    fn write(&mut self, span: &Span<'_>, g: usize, position: usize, token: u32) {
        let (block, slot) = match self.layout.groups[g].role {
            Role::Sinks => (0, position),
            _ => (position / BLOCK_POSITIONS, position % BLOCK_POSITIONS),
        };
        self.pools[g][span.tables[g][block].0 as usize][slot] = Some(token);
    }

    /// What a query sees at an earlier position, or at its own.
    fn seen(&self, span: &Span<'_>, g: usize, query: usize, position: usize) -> u32 {
        let packed = GROUP_POSITIONS * self.layout.settings.packed_groups(query);
        match self.layout.groups[g].role {
            Role::Recent if position < packed => {
                let sinks = self.other(g, Role::Sinks).filter(|_| position < self.layout.settings.sinks);
                self.read(span, sinks.or(self.other(g, Role::Codes)).unwrap(), position)
            }
            _ => self.read(span, g, position),
        }
    }
}

impl Executor for FakeExecutor {
    fn run(&mut self, step: &[Span<'_>], logits: &mut [f32]) -> tensor::Result<()> {
        let tokens: usize = step.iter().map(|s| s.tokens.len()).sum();
        let rows: usize = step.iter().map(Span::logit_rows).sum();
        assert!(tokens <= self.limits.0 && rows <= self.limits.1, "a step beyond the plan's limits");
        assert_eq!(logits.len(), rows * VOCAB);
        self.steps.0.lock().unwrap().push(step.iter().map(|s| s.tokens.len()).collect());
        let layout = self.layout.clone();
        let written = |s: &Span<'_>, g: usize| layout.written(g, s.start..s.start + s.tokens.len());
        for (i, a) in step.iter().enumerate() {
            // Blocks that a span writes are its own alone.
            for (j, b) in step.iter().enumerate().filter(|(j, _)| *j != i) {
                for g in 0..self.pools.len() {
                    let blocks = layout.blocks(g, written(a, g));
                    let shared = a.tables[g][blocks].iter().any(|id| b.tables[g].contains(id));
                    assert!(!shared, "spans {i} and {j} share a block that one of them writes");
                }
            }
            for g in (0..self.pools.len()).filter(|&g| layout.groups[g].role != Role::Codes) {
                for position in written(a, g) {
                    self.write(a, g, position, a.tokens[position - a.start]);
                }
            }
            for g in (0..self.pools.len()).filter(|&g| layout.groups[g].role == Role::Codes) {
                let recent = self.other(g, Role::Recent).unwrap();
                for position in written(a, g) {
                    let token = self.read(a, recent, position);
                    self.write(a, g, position, token);
                }
            }
        }
        let mut out = logits.chunks_exact_mut(VOCAB);
        for span in step {
            let first = span.tokens.len() - span.logit_rows();
            for k in first..span.tokens.len() {
                let position = span.start + k;
                let mut hash = 0u32;
                for (g, group) in self.layout.groups.iter().enumerate().filter(|(_, g)| is_side(g)) {
                    for j in (position + 1).saturating_sub(group.window.unwrap_or(usize::MAX))..=position {
                        let token = self.seen(span, g, position, j);
                        hash = hash.wrapping_mul(31).wrapping_add(token + 1) % 1_000_003;
                    }
                }
                out.next().unwrap().fill(hash as f32);
            }
        }
        Ok(())
    }

    fn copy_block(&mut self, group: usize, from: BlockId, to: BlockId) -> tensor::Result<()> {
        self.pools[group][to.0 as usize] = self.pools[group][from.0 as usize];
        Ok(())
    }

    fn memory(&self) -> ExecutorMemory {
        ExecutorMemory::default()
    }
}

fn spec(window: Option<u64>) -> ModelSpec {
    let more = [("context_length", uint(4096)), ("rope.freq_base", float(10000.0))];
    match window {
        None => from_gguf(&metadata("llama", &more), &table()),
        Some(w) => {
            let more = [more.to_vec(), vec![("block_count", uint(7)), ("attention.sliding_window", uint(w))]]
                .concat();
            from_gguf(&metadata("gemma3", &more), &table())
        }
    }
    .unwrap()
}

fn load(window: Option<u64>, context: usize, sequences: usize) -> (Model, Steps) {
    load_with(window, context, sequences, KvSettings::default())
}

fn load_with(window: Option<u64>, context: usize, sequences: usize, kv: KvSettings) -> (Model, Steps) {
    let spec = spec(window);
    let weights = Arc::new(Kinds(kinds(&spec).into_iter().collect()));
    let options = LoadOptions { context: Some(context), sequences, kv, ..LoadOptions::default() };
    let steps = Steps::default();
    (Model::load(&FakeDevice(steps.clone()), spec, weights, &options).unwrap(), steps)
}

fn feed<'a>(sequence: &'a mut Sequence, tokens: &'a [u32]) -> Feed<'a> {
    Feed { sequence, tokens, logits: LogitRows::Last }
}

/// Steps one sequence to the end of `history`, and checks the answer there.
fn grow(model: &mut Model, sequence: &mut Sequence, history: &[u32]) {
    let mut logits = vec![0.0; VOCAB];
    let new = history[sequence.len()..].to_vec();
    model.step(&mut [feed(sequence, &new)], &mut logits).unwrap();
    assert_eq!(logits[0], answer(history, &model.plan().kv));
    assert_eq!(sequence.tokens(), history);
}

fn text(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + i * i * 3 + salt) % VOCAB as u32).collect()
}

#[test]
fn a_long_prompt_is_cut_and_answers_the_same() {
    let (mut model, steps) = load(None, 2000, 1);
    let prompt = text(1500, 1);
    let mut s = model.sequence(&prompt);
    let mut rows = Vec::new();
    let mut all = [Feed { sequence: &mut s, tokens: &prompt, logits: LogitRows::All }];
    model.step_with(&mut all, &mut |_, position, row| rows.push((position, row[0]))).unwrap();
    let layout = model.plan().kv.clone();
    let expected: Vec<(usize, f32)> = (0..1500).map(|i| (i, answer(&prompt[..=i], &layout))).collect();
    assert_eq!(rows, expected);
    assert!(steps.0.lock().unwrap().len() >= 3);
}

#[test]
fn a_finished_prompt_is_reused_at_any_position_with_full_attention() {
    let (mut model, _) = load(None, 1000, 2);
    let prompt = text(300, 1);
    let mut s = model.sequence(&prompt);
    grow(&mut model, &mut s, &prompt);
    drop(s);
    for shared in [1, 63, 64, 65, 200, 299] {
        let mut other = prompt[..shared].to_vec();
        other.extend(text(40, 99));
        let mut s = model.sequence(&other);
        assert!(s.len() >= shared, "{} of {shared} tokens reused", s.len());
        grow(&mut model, &mut s, &other);
    }
    let s = model.sequence(&prompt);
    assert_eq!(s.len(), 299, "the last token's logits are still to be had");
}

#[test]
fn with_sliding_layers_a_kept_prompt_is_reused_at_its_end() {
    let (mut model, _) = load(Some(100), 2000, 2);
    let prompt = text(700, 1);
    let mut s = model.sequence(&prompt);
    grow(&mut model, &mut s, &prompt);
    s.keep();
    let mut longer = prompt.clone();
    longer.extend(text(300, 5));
    grow(&mut model, &mut s, &longer);

    let again = model.sequence(&prompt);
    assert_eq!(again.len(), 699);
    let mut other = prompt.clone();
    other.extend(text(30, 17));
    let mut t = model.sequence(&other);
    assert_eq!(t.len(), 700);
    grow(&mut model, &mut t, &other);
    // Well before the kept end the window is gone: nothing can be reused.
    let mut early = prompt[..300].to_vec();
    early.push(0);
    assert_eq!(model.sequence(&early).len(), 0);
    assert_eq!(model.cache_use().reused_tokens, 699 + 700);
}

#[test]
fn a_packed_cache_is_reused_at_its_kept_ends_and_what_lies_close_before_them() {
    let kv =
        KvSettings { window: 100, sinks: 4, ..KvSettings::new("q4".parse().unwrap(), "q8".parse().unwrap()) };
    let (mut model, _) = load_with(None, 2000, 2, kv);
    let prompt = text(700, 1);
    let mut s = model.sequence(&prompt);
    grow(&mut model, &mut s, &prompt);
    s.keep();
    let mut longer = prompt.clone();
    longer.extend(text(300, 5));
    grow(&mut model, &mut s, &longer);
    assert_eq!(model.sequence(&prompt).len(), 699);
    for (shared, reused) in [(700, 700), (699, 699), (300, 0)] {
        let mut other = prompt[..shared].to_vec();
        other.extend(text(30, 17));
        let mut t = model.sequence(&other);
        assert!(t.len() >= reused && (reused > 0 || t.is_empty()), "{} of {shared}", t.len());
        grow(&mut model, &mut t, &other);
    }
}

#[test]
fn a_packed_sequence_holds_what_the_formula_says() {
    for (name, sinks, window) in [("f16", 0, 128), ("q4", 4, 128), ("q2/q8", 20, 0), ("f16/q3", 4, 300)] {
        let kv = KvSettings { window, sinks, ..name.parse().unwrap() };
        for sliding in [None, Some(200)] {
            let (mut model, _) = load_with(sliding, 4096, 1, kv);
            let history = text(4000, 3);
            let mut s = model.sequence(&[]);
            for end in [1, 31, 32, 200, 700, 2000, 2033, 4000] {
                grow(&mut model, &mut s, &history[..end]);
                let (used, formula) = (model.cache_use().used_bytes, model.plan().kv.bytes_held(end));
                assert_eq!(used, formula, "{name} at {end} with a window of {sliding:?}");
            }
        }
    }
}

#[test]
fn blocks_behind_a_window_are_freed() {
    let (mut model, _) = load(Some(100), 4096, 1);
    let groups = model.plan().kv.groups.clone();
    let history = text(4000, 3);
    let mut s = model.sequence(&[]);
    for end in (500..=4000).step_by(500) {
        grow(&mut model, &mut s, &history[..end]);
        let bytes = |held: fn(usize) -> usize| {
            groups.iter().map(|g: &KvGroup| g.window.map_or(0, held) * g.block_bytes).sum::<usize>()
        };
        let full: usize =
            groups.iter().filter(|g| g.window.is_none()).map(|g| end.div_ceil(64) * g.block_bytes).sum();
        let used = model.cache_use().used_bytes as usize;
        assert!(used <= full + bytes(|w| w.div_ceil(64) + 2), "{used} at {end}");
    }
}

#[test]
fn a_context_holds_exactly_its_tokens() {
    let (mut model, _) = load(None, 130, 1);
    let history = text(130, 4);
    let mut s = model.sequence(&history);
    grow(&mut model, &mut s, &history);
    let e = model.step(&mut [feed(&mut s, &[1])], &mut vec![0.0; VOCAB]).unwrap_err();
    assert!(matches!(e, Error::ContextFull { tokens: 1, position: 130, context: 130 }), "{e}");
}

#[test]
fn forks_share_until_they_write() {
    let (mut model, _) = load(Some(80), 1000, 3);
    let prompt = text(250, 2);
    let mut a = model.sequence(&prompt);
    grow(&mut model, &mut a, &prompt);
    let before = model.cache_use().used_bytes;
    let mut b = a.fork();
    assert_eq!(model.cache_use().used_bytes, before);
    let (one, two) = ([1u32], [2u32]);
    let mut logits = vec![0.0; 2 * VOCAB];
    model.step(&mut [feed(&mut a, &one), feed(&mut b, &two)], &mut logits).unwrap();
    let layout = model.plan().kv.clone();
    assert_eq!(logits[0], answer(&[&prompt[..], &one].concat(), &layout));
    assert_eq!(logits[VOCAB], answer(&[&prompt[..], &two].concat(), &layout));
}

#[test]
fn a_full_cache_is_an_error_that_leaves_sequences_alone() {
    let (mut model, _) = load(None, 128, 1);
    let (p, q) = (text(128, 1), text(128, 2));
    let (mut a, mut b) = (model.sequence(&p), model.sequence(&q));
    grow(&mut model, &mut a, &p);
    let e = model.step(&mut [feed(&mut b, &q)], &mut vec![0.0; VOCAB]).unwrap_err();
    assert!(matches!(e, Error::CacheFull { .. }), "{e}");
    assert_eq!((a.len(), b.len()), (128, 0));
    drop(a); // becomes a prefix, which gives way
    grow(&mut model, &mut b, &q);
}

#[test]
fn bad_steps_are_refused_before_any_work() {
    let (mut model, steps) = load(None, 128, 1);
    let (other, _) = load(None, 128, 1);
    let mut s = model.sequence(&[]);
    let mut logits = vec![0.0; VOCAB];
    for tokens in [&[][..], &[200], &[u32::MAX]] {
        assert!(matches!(model.step(&mut [feed(&mut s, tokens)], &mut logits), Err(Error::Invalid { .. })));
    }
    let mut strange = other.sequence(&[]);
    assert!(model.step(&mut [feed(&mut strange, &[1])], &mut logits).is_err());
    assert!(model.step(&mut [feed(&mut s, &[1])], &mut logits[1..]).is_err());
    assert!(steps.0.lock().unwrap().is_empty());
}

#[test]
fn a_context_that_cannot_be_had_is_refused_with_the_numbers() {
    let spec = spec(None);
    let weights = Arc::new(Kinds(kinds(&spec).into_iter().collect()));
    let device = FakeDevice(Steps::default());
    let load = |context, available_bytes| {
        let options =
            LoadOptions { context, available_bytes, keep_prefixes: false, ..LoadOptions::default() };
        Model::load(&device, spec.clone(), weights.clone(), &options)
    };
    let e = load(Some(4097), None).unwrap_err();
    assert!(matches!(e, Error::ContextBeyondModel { asked: 4097, model: 4096 }), "{e}");
    assert!(load(Some(0), None).is_err());
    // 3 layers of 2 KV heads of 16 + 16 channels: 24,576 bytes for 64 positions.
    let room = engine::memory::OVERHEAD_BYTES + 10 * 24576;
    let e = load(Some(4096), Some(room)).unwrap_err();
    assert!(matches!(e, Error::DoesNotFit { fits: 640, kv_bytes: 1_572_864, .. }), "{e}");
    assert_eq!(load(Some(640), Some(room)).unwrap().context(), 640);
    assert_eq!(load(None, Some(room)).unwrap().context(), 640, "the model's own context is cut to what fits");
}

#[derive(Clone, Debug)]
enum Act {
    Start { shared: usize, prompt: usize },
    Step { tokens: Vec<usize> },
    Fork(usize),
    Truncate { which: usize, back: usize },
    Keep(usize),
    Drop(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0usize..300, 1usize..200).prop_map(|(shared, prompt)| Act::Start { shared, prompt }),
        6 => prop::collection::vec(0usize..150, 1..4).prop_map(|tokens| Act::Step { tokens }),
        1 => (0usize..4).prop_map(Act::Fork),
        1 => (0usize..4, 0usize..120).prop_map(|(which, back)| Act::Truncate { which, back }),
        1 => (0usize..4).prop_map(Act::Keep),
        2 => (0usize..4).prop_map(Act::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_query_finds_its_own_history(
        window in prop_oneof![Just(None), Just(Some(1u64)), Just(Some(50)), Just(Some(64)), Just(Some(130))],
        (name, kv_window, sinks) in
            (prop_oneof![Just("f16"), Just("q4"), Just("f16/q8"), Just("q2/f16")], 0usize..140, 0usize..33),
        acts in prop::collection::vec(act(), 1..40),
    ) {
        let kv = KvSettings { window: kv_window, sinks, ..name.parse().unwrap() };
        let (mut model, _) = load_with(window, 640, 3, kv);
        let layout = model.plan().kv.clone();
        let mut live: Vec<(Sequence, Vec<u32>)> = Vec::new();
        let mut salt = 0;
        for act in acts {
            salt += 1;
            match act {
                Act::Start { shared, prompt } if live.len() < 4 => {
                    let history = [&text(shared, 0)[..], &text(prompt, salt)].concat();
                    live.push((model.sequence(&history), history));
                    let (s, h) = live.last().unwrap();
                    prop_assert!(s.len() < h.len() && h.starts_with(s.tokens()));
                }
                Act::Step { tokens } => {
                    let mut new: Vec<Vec<u32>> = Vec::new();
                    for ((s, h), &n) in live.iter_mut().zip(&tokens) {
                        let n = n.min(640 - h.len().min(640));
                        h.extend(text(n, salt));
                        h.truncate(640);
                        new.push(h[s.len()..].to_vec());
                    }
                    let mut feeds = Vec::new();
                    for ((s, _), tokens) in live.iter_mut().zip(&new).filter(|(_, t)| !t.is_empty()) {
                        feeds.push(feed(s, tokens));
                    }
                    let ends: Vec<Vec<u32>> = feeds.iter().map(|f| [f.sequence.tokens(), f.tokens].concat()).collect();
                    let mut got = vec![0.0; feeds.len() * VOCAB];
                    match model.step(&mut feeds, &mut got) {
                        Ok(()) => {
                            for (end, row) in ends.iter().zip(got.chunks(VOCAB)) {
                                prop_assert_eq!(row[0], answer(end, &layout));
                            }
                        }
                        // Four sequences over a pool for three may fill it.
                        Err(Error::CacheFull { .. }) => {
                            drop(feeds);
                            live.remove(0);
                        }
                        Err(e) => return Err(TestCaseError::fail(e.to_string())),
                    }
                }
                Act::Fork(i) if live.len() < 4 && i < live.len() => {
                    let (s, h) = &live[i];
                    let fork = (s.fork(), h.clone());
                    live.push(fork);
                }
                Act::Truncate { which, back } if which < live.len() => {
                    let (s, h) = &mut live[which];
                    let to = s.len().saturating_sub(back);
                    if s.truncate(to).is_ok() {
                        h.truncate(to);
                        h.push(0);
                    } else {
                        prop_assert!(window.is_some() || !kv.is_f16(), "full attention over halves can return anywhere");
                    }
                }
                Act::Keep(i) if i < live.len() => live[i].0.keep(),
                Act::Drop(i) if i < live.len() => drop(live.remove(i)),
                _ => {}
            }
        }
        drop(live);
        model.forget_prefixes();
        prop_assert_eq!(model.cache_use().used_bytes, 0, "no block is lost");
    }
}
