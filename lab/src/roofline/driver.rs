//! Steps of a plan at any depth, without a prompt before them: the cache's blocks are filled with copies of one that a
//! real chunk of tokens left, because time depends on where keys and values lie, not on what they are.
//!
//! It drives a device's executor directly and knows no model beyond its plan.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tensor::device::{Device, Executor, LogitRows, OpSink, Span, StepTimes, WeightStore};
use tensor::kv::{BLOCK_POSITIONS, BlockId, GROUP_POSITIONS};
use tensor::op::Plan;

use crate::{Error, Result};

/// A loaded plan with a filled cache.
pub struct Driver {
    plan: Arc<Plan>,
    executor: Box<dyn Executor>,
    /// Blocks of each group that one sequence has.
    blocks: Vec<usize>,
    sequences: usize,
    most_context: usize,
    logits: Vec<f32>,
}

/// What one step took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// From the call to its return.
    pub wall_ns: u64,
    /// Before the first operation; 0 where operations were not timed.
    pub setup_ns: u64,
    /// Each operation; empty where they were not timed.
    pub ops_ns: Vec<u64>,
}

#[derive(Clone, Default)]
struct Last(Arc<Mutex<Step>>);

impl OpSink for Last {
    fn step(&mut self, times: &StepTimes<'_>) {
        let mut step = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        step.setup_ns = times.setup_ns;
        step.ops_ns.clear();
        step.ops_ns.extend_from_slice(times.ops_ns);
    }
}

impl Driver {
    /// Loads a plan for steps of `sequences` sequences of up to `most_context` earlier positions, and fills the cache.
    ///
    /// # Errors
    /// No memory; weights that do not fit the plan; the device's error.
    pub fn new(
        device: &dyn Device,
        plan: Arc<Plan>,
        weights: Arc<dyn WeightStore>,
        sequences: usize,
        most_context: usize,
    ) -> Result<Driver> {
        if sequences == 0 || sequences > plan.max_step_tokens || sequences > plan.max_logit_rows {
            let most = plan.max_step_tokens.min(plan.max_logit_rows);
            return Err(Error::invalid("sequences of a step", format!("1 to {most}"), sequences));
        }
        let blocks = plan.kv.blocks_for(most_context.max(BLOCK_POSITIONS) + 1, GROUP_POSITIONS);
        let pools: Vec<usize> = blocks.iter().map(|n| n * sequences).collect();
        let executor = device.load(Arc::clone(&plan), weights, &pools)?;
        let logits = vec![0.0; sequences * plan.vocab];
        let mut driver = Driver { plan, executor, blocks, sequences, most_context, logits };
        driver.fill(&pools)?;
        Ok(driver)
    }

    fn fill(&mut self, pools: &[usize]) -> Result<()> {
        let vocab = self.plan.vocab;
        // Until the first block is packed, where the cache packs at all and the context goes so far.
        let all =
            (self.plan.kv.settings.window + BLOCK_POSITIONS).min(self.most_context).max(BLOCK_POSITIONS);
        let tokens: Vec<u32> = (0..all).map(|i| ((i * 7919 + 13) % vocab) as u32).collect();
        for (i, tokens) in tokens.chunks(GROUP_POSITIONS).enumerate() {
            let start = i * GROUP_POSITIONS;
            let tables = self.tables(0, start + tokens.len());
            let span = Span { tokens, start, tables: &tables, logits: LogitRows::None };
            self.executor.run(&[span], &mut [])?;
        }
        for (group, &blocks) in pools.iter().enumerate() {
            for to in 1..blocks {
                self.executor.copy_block(group, BlockId(0), BlockId(to as u32))?;
            }
        }
        Ok(())
    }

    /// Block tables of a sequence of `len` positions. A window's blocks take turns, as the engine's do.
    fn tables(&self, sequence: usize, len: usize) -> Vec<Vec<BlockId>> {
        let block = |blocks: usize, i: usize| BlockId((sequence * blocks + i % blocks) as u32);
        let count = |g: usize| self.plan.kv.table_len(g, len);
        let table = |(g, &blocks): (usize, &usize)| (0..count(g)).map(|i| block(blocks, i)).collect();
        self.blocks.iter().enumerate().map(table).collect()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs one step in which each sequence gets one token after `context` positions, `repeat` times.
    ///
    /// # Errors
    /// As [`Driver::steps_at`].
    pub fn steps(&mut self, context: usize, repeat: usize, with_ops: bool) -> Result<Vec<Step>> {
        self.steps_at(&vec![context; self.sequences], repeat, with_ops)
    }

    /// Runs one step in which sequence i gets one token after `contexts[i]` positions, `repeat` times. Fewer contexts
    /// than sequences step the first ones.
    ///
    /// # Errors
    /// A context beyond what was loaded, or more of them than sequences; the device's error; operations cannot be timed.
    pub fn steps_at(&mut self, contexts: &[usize], repeat: usize, with_ops: bool) -> Result<Vec<Step>> {
        if contexts.is_empty() || contexts.len() > self.sequences {
            let most = format!("1 to {}", self.sequences);
            return Err(Error::invalid("sequences of a step", most, contexts.len()));
        }
        if let Some(&beyond) = contexts.iter().find(|&&c| c > self.most_context) {
            let most = format!("at most {}", self.most_context);
            return Err(Error::invalid("context of a step", most, beyond));
        }
        let tables: Vec<_> = contexts.iter().enumerate().map(|(s, c)| self.tables(s, c + 1)).collect();
        let tokens: Vec<u32> =
            (0..contexts.len()).map(|s| ((s * 7919 + 13) % self.plan.vocab) as u32).collect();
        let span = |s: usize| Span {
            tokens: &tokens[s..s + 1],
            start: contexts[s],
            tables: &tables[s],
            logits: LogitRows::Last,
        };
        let spans: Vec<Span<'_>> = (0..contexts.len()).map(span).collect();
        let logits = contexts.len() * self.plan.vocab;
        let last = Last::default();
        let sink = || Box::new(last.clone()) as Box<dyn OpSink>;
        self.executor.time_operations(with_ops.then(sink))?;
        let mut steps = Vec::with_capacity(repeat);
        for _ in 0..repeat {
            let start = Instant::now();
            self.executor.run(&spans, &mut self.logits[..logits])?;
            let wall_ns = start.elapsed().as_nanos() as u64;
            let mut step = std::mem::take(&mut *last.0.lock().unwrap_or_else(PoisonError::into_inner));
            step.wall_ns = wall_ns;
            steps.push(step);
        }
        Ok(steps)
    }
}
