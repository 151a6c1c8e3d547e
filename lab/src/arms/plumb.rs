//! A model of plumb, in this process, with some settings. It knows the engine and no backend: whoever loads the model says what was
//! applied.

use std::rc::Rc;

use serde::Serialize;

use engine::{Feed, Fingerprint, LogitRows, Model, Sequence};

use super::{Answer, Arm, Ready, Taken};
use crate::clock::Clock;
use crate::guards;
use crate::results::Settings;
use crate::{Error, Result};

/// Which part of a model's work is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Tokens after the prompt, one a step.
    Generation,
    /// The prompt.
    Prompt,
}

impl Phase {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Generation => "generation",
            Phase::Prompt => "prompt",
        }
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Which part.
    pub phase: Phase,
    /// Positions that stand before the timed ones (generation).
    pub depth: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Sequences stepped together.
    pub batch: usize,
}

impl Workload {
    /// Positions that one sequence needs for `inner` repetitions.
    pub fn positions(&self, inner: u64) -> usize {
        match self.phase {
            Phase::Generation => self.depth + inner as usize,
            Phase::Prompt => self.depth + self.prompt,
        }
    }
}

/// A model as the loader gives it.
#[derive(Debug)]
pub struct Loaded {
    /// Loaded for at least `workload.batch` sequences, keeping no prefixes.
    pub model: Model,
    /// Threads, kernel table, context and whatever else can be set, read back from the device.
    pub applied: Settings,
    /// Encodings of weights, activations and cache.
    pub precision: String,
    /// Loads and packings that this process has done so far.
    pub notes: Vec<String>,
}

/// A loaded model with its work.
pub struct PlumbArm {
    label: String,
    asked: Settings,
    loaded: Loaded,
    workload: Workload,
    clock: Rc<dyn Clock>,
    bases: Vec<Sequence>,
    logits: Vec<f32>,
    /// Hash of the last logits of the first sample of each size: every later one must give the same.
    expected: Option<(u64, u128)>,
}

impl std::fmt::Debug for PlumbArm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlumbArm")
            .field("label", &self.label)
            .field("workload", &self.workload)
            .finish_non_exhaustive()
    }
}

/// The token at a position: spread over the vocabulary, the same for every arm and every run.
fn token(position: usize, turn: u64, vocab: usize) -> u32 {
    let x = (position as u64).wrapping_mul(7919).wrapping_add(turn.wrapping_mul(104_729)).wrapping_add(13);
    (x % (vocab as u64 * 2 / 5).max(1)) as u32
}

/// Positions whose logits are compared.
const COMPARED: usize = 8;

impl PlumbArm {
    /// An arm of a loaded model.
    pub fn new(
        label: impl Into<String>,
        asked: Settings,
        loaded: Loaded,
        workload: Workload,
        clock: Rc<dyn Clock>,
    ) -> PlumbArm {
        let label = label.into();
        PlumbArm {
            label,
            asked,
            loaded,
            workload,
            clock,
            bases: Vec::new(),
            logits: Vec::new(),
            expected: None,
        }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.loaded.model
    }

    /// What the loader said.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Turns to other work with the same model.
    pub fn set_workload(&mut self, workload: Workload) {
        self.bases.clear();
        self.expected = None;
        self.workload = workload;
    }

    /// Samples from here on are compared with each other, not with those before: a prompt's differ from turn to turn.
    pub(crate) fn forget_expected(&mut self) {
        self.expected = None;
    }

    fn vocab(&self) -> usize {
        self.loaded.model.plan().vocab
    }

    /// Steps the sequences to the workload's depth, once.
    fn fill(&mut self) -> Result<()> {
        let Workload { depth, batch, .. } = self.workload;
        if !self.bases.is_empty() || depth == 0 && self.workload.phase == Phase::Prompt {
            return Ok(());
        }
        let vocab = self.vocab();
        for index in 0..batch {
            let tokens: Vec<u32> = (0..depth).map(|p| token(p, index as u64, vocab)).collect();
            let mut sequence = self.loaded.model.sequence(&[]);
            if !tokens.is_empty() {
                let feed = Feed { sequence: &mut sequence, tokens: &tokens, logits: LogitRows::None };
                self.loaded.model.step(&mut [feed], &mut [])?;
            }
            self.bases.push(sequence);
        }
        Ok(())
    }

    fn starts(&self) -> Vec<Sequence> {
        match self.bases.is_empty() {
            true => (0..self.workload.batch).map(|_| self.loaded.model.sequence(&[])).collect(),
            false => self.bases.iter().map(Sequence::fork).collect(),
        }
    }

    /// `inner` steps of one token each, timed.
    fn generate(&mut self, inner: u64) -> Result<Taken> {
        let Workload { depth, batch, .. } = self.workload;
        let vocab = self.vocab();
        let mut sequences = self.starts();
        guards::context_arrived(depth, sequences[0].len())?;
        self.logits.resize(batch * vocab, 0.0);
        let tokens: Vec<Vec<u32>> = (0..inner as usize)
            .map(|i| (0..batch).map(|b| token(depth + i, b as u64, vocab)).collect())
            .collect();
        let start = self.clock.now_ns();
        for step in &tokens {
            let feed = |(sequence, token)| Feed {
                sequence,
                tokens: std::slice::from_ref(token),
                logits: LogitRows::Last,
            };
            let mut feeds: Vec<Feed<'_>> = sequences.iter_mut().zip(step).map(feed).collect();
            self.loaded.model.step(&mut feeds, &mut self.logits)?;
        }
        let elapsed_ns = self.clock.now_ns() - start;
        self.consume(inner)?;
        let bytes = (0..inner).map(|i| self.step_bytes(depth + i as usize)).sum();
        Ok(Taken { elapsed_ns, tokens: inner * batch as u64, bytes, ..Taken::default() })
    }

    /// `inner` prompts, each of its own tokens, timed.
    fn prompts(&mut self, inner: u64, turn: u64) -> Result<Taken> {
        let Workload { depth, prompt, batch, .. } = self.workload;
        let vocab = self.vocab();
        self.logits.resize(batch * vocab, 0.0);
        let mut elapsed_ns = 0;
        let mut cached = 0;
        for i in 0..inner {
            let tokens: Vec<Vec<u32>> = (0..batch)
                .map(|b| {
                    let own = turn.wrapping_mul(1_000_003).wrapping_add(i * 31 + b as u64);
                    (0..prompt).map(|p| token(depth + p, own, vocab)).collect()
                })
                .collect();
            let mut sequences = self.starts();
            cached += sequences.iter().map(|s| s.len().saturating_sub(depth)).sum::<usize>();
            let start = self.clock.now_ns();
            let feed = |(sequence, tokens)| Feed { sequence, tokens, logits: LogitRows::Last };
            let mut feeds: Vec<Feed<'_>> =
                sequences.iter_mut().zip(tokens.iter().map(Vec::as_slice)).map(feed).collect();
            self.loaded.model.step(&mut feeds, &mut self.logits)?;
            elapsed_ns += self.clock.now_ns() - start;
        }
        guards::prompt_computed(prompt, cached)?;
        let work = self.loaded.model.plan().work(prompt, depth, 1);
        let bytes = inner * (work.bytes_read.weights + work.bytes_read.kv * batch as u64);
        Ok(Taken { elapsed_ns, tokens: inner * (prompt * batch) as u64, bytes, ..Taken::default() })
    }

    /// Bytes that a step of one token per sequence must read.
    fn step_bytes(&self, depth: usize) -> u64 {
        let work = self.loaded.model.plan().work(1, depth, 1);
        work.bytes_read.weights + work.bytes_read.kv * self.workload.batch as u64
    }

    /// Uses the result of a sample: the same tokens must give the same bits every time.
    fn consume(&mut self, inner: u64) -> Result<()> {
        let mut hash = Fingerprint::new();
        hash.update(&self.logits);
        match self.expected {
            Some((size, value)) if size == inner && value != hash.value() => Err(Error::arm(
                &self.label,
                format!("the same {inner} tokens gave other logits than before: its times cannot be trusted"),
            )),
            _ => {
                self.expected = Some((inner, hash.value()));
                Ok(())
            }
        }
    }

    /// Greedy tokens and the logits they were chosen from.
    fn answer(&mut self) -> Result<Answer> {
        let vocab = self.vocab();
        let room = self.loaded.model.context().min(COMPARED * 3);
        let (given, drawn) = (room / 2, (room - room / 2).min(COMPARED));
        let mut tokens: Vec<u32> = (0..given.max(1)).map(|p| token(p, 0, vocab)).collect();
        let mut sequence = self.loaded.model.sequence(&[]);
        let mut row = vec![0.0; vocab];
        let (mut hash, mut answer) = (Fingerprint::new(), Answer::default());
        for _ in 0..drawn {
            let new = &tokens[sequence.len()..];
            let feed = Feed { sequence: &mut sequence, tokens: new, logits: LogitRows::Last };
            self.loaded.model.step(&mut [feed], &mut row)?;
            hash.update(&row);
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i as u32);
            answer.tokens.push(best);
            answer.logits.push(row.clone());
            tokens.push(best);
        }
        answer.logits_hash = Some(hash.to_string());
        Ok(answer)
    }
}

impl Arm for PlumbArm {
    fn label(&self) -> &str {
        &self.label
    }

    fn asked(&self) -> Settings {
        self.asked.clone()
    }

    fn prepare(&mut self) -> Result<Ready> {
        let answer = self.answer()?;
        self.fill()?;
        Ok(Ready {
            applied: self.loaded.applied.clone(),
            precision: self.loaded.precision.clone(),
            answer,
            notes: self.loaded.notes.clone(),
        })
    }

    fn take(&mut self, inner: u64, turn: u64) -> Result<Taken> {
        if inner > self.most_repetitions() {
            let found = format!("{} behind a depth of {}", self.loaded.model.context(), self.workload.depth);
            return Err(Error::invalid("context", format!("room for {inner} tokens a sample"), found));
        }
        self.fill()?;
        match self.workload.phase {
            Phase::Generation => self.generate(inner),
            Phase::Prompt => self.prompts(inner, turn),
        }
    }

    fn bytes_per_repetition(&self) -> Option<u64> {
        Some(match self.workload.phase {
            Phase::Generation => self.step_bytes(self.workload.depth),
            Phase::Prompt => {
                let work = self.loaded.model.plan().work(self.workload.prompt, self.workload.depth, 1);
                // A prompt does far more arithmetic per byte; by its bytes alone a sample would take minutes.
                (work.bytes_read.weights + work.bytes_read.kv).max(work.flops / 16)
            }
        })
    }

    /// As many as the loaded context has room for.
    fn most_repetitions(&self) -> u64 {
        match self.workload.phase {
            Phase::Generation => self.loaded.model.context().saturating_sub(self.workload.depth) as u64,
            Phase::Prompt => u64::MAX,
        }
    }
}
