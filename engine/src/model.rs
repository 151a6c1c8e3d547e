//! A model ready to step: a plan loaded on a device, and the cache that its sequences share.
//!
//! It knows tokens as numbers only; text is `generate`'s and the tokenizer's.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tensor::device::{Device, Executor, ExecutorMemory, LogitRows, OpSink, Span, WeightStore};
use tensor::kv::KvSettings;
use tensor::op::Plan;

use crate::kv::{Cache, CacheUse, Table};
use crate::memory::{self, Need};
use crate::saved::{self, Saved};
use crate::sequence::{Sequence, locked};
use crate::spec::ModelSpec;
use crate::{Error, Result, plan};

/// What a model is loaded for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Most positions of one sequence; `None` is the model's own context, or what fits of it.
    pub context: Option<usize>,
    /// Sequences that can be full at once; a step can hold as many.
    pub sequences: usize,
    /// Whether finished sequences stay as prefixes for later ones.
    pub keep_prefixes: bool,
    /// Whether the weights already lie in this process's own memory, so that they need no more.
    pub private_weights: bool,
    /// How keys and values are stored.
    pub kv: KvSettings,
    /// Bytes that may be used; `None` asks the system.
    pub available_bytes: Option<u64>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            context: None,
            sequences: 1,
            keep_prefixes: true,
            private_weights: false,
            kv: KvSettings::default(),
            available_bytes: None,
        }
    }
}

/// New tokens for one sequence of a step.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence that grows.
    pub sequence: &'a mut Sequence,
    /// At least one token.
    pub tokens: &'a [u32],
    /// Which logits are wanted.
    pub logits: LogitRows,
}

/// Takes each row of logits: the feed's index, the position whose successor they predict, one logit per token.
pub type LogitSink<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

/// A model on a device.
pub struct Model {
    spec: ModelSpec,
    plan: Arc<Plan>,
    executor: Box<dyn Executor>,
    cache: Arc<Mutex<Cache>>,
    context: usize,
    need: Need,
    /// Rows of one executor step, kept between steps.
    rows: Vec<f32>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("spec", &self.spec)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Loads a model whose prepared weights are in `weights`.
    ///
    /// # Errors
    /// A context beyond the model's; a tensor missing or of another shape; not enough memory, with what would fit.
    pub fn load(
        device: &dyn Device,
        spec: ModelSpec,
        weights: Arc<dyn WeightStore>,
        options: &LoadOptions,
    ) -> Result<Self> {
        if options.sequences == 0 {
            return Err(Error::invalid("sequences", "at least 1", 0));
        }
        let kind_of = |name: &str| weights.get(name).map(|(kind, _)| kind);
        let plan = Arc::new(plan::build(&spec, &kind_of, options.sequences, &options.kv)?);
        let weight_bytes =
            plan.weights.iter().filter_map(|w| weights.get(&w.name)).map(|(_, b)| b.len() as u64).sum();
        let weight_bytes = if options.private_weights { 0 } else { weight_bytes };
        let (context, need) = admit(&plan, &spec, weight_bytes, options)?;
        let kept = if options.keep_prefixes { options.sequences } else { 0 };
        let blocks = memory::pool_blocks(&plan.kv, context, plan.max_step_tokens, options.sequences, kept);
        let executor = device.load(Arc::clone(&plan), weights, &blocks)?;
        let cache = Cache::new(plan.kv.clone(), &blocks, options.keep_prefixes);
        let cache = Arc::new(Mutex::new(cache));
        Ok(Model { spec, plan, executor, cache, context, need, rows: Vec::new() })
    }

    /// What distinguishes this model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// What a step does.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Most positions of one sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What the memory contract counts for this model.
    pub fn need(&self) -> Need {
        self.need
    }

    /// What the executor holds.
    pub fn memory(&self) -> ExecutorMemory {
        self.executor.memory()
    }

    /// From now on, tells `sink` what each operation of each step took; `None` ends it.
    ///
    /// # Errors
    /// The device cannot tell operations apart.
    pub fn time_operations(&mut self, sink: Option<Box<dyn OpSink>>) -> Result<()> {
        Ok(self.executor.time_operations(sink)?)
    }

    /// How full the cache is.
    pub fn cache_use(&self) -> CacheUse {
        locked(&self.cache).usage()
    }

    /// Drops every kept prefix.
    pub fn forget_prefixes(&self) {
        locked(&self.cache).forget_prefixes();
    }

    /// A new sequence for `prompt`, holding already what a kept prefix shares with it (never the prompt's last token,
    /// whose logits are still to be had). What is beyond [`Sequence::len`] is yet to be stepped. An empty prompt
    /// gives an empty sequence.
    pub fn sequence(&self, prompt: &[u32]) -> Sequence {
        Sequence::start(&self.cache, prompt)
    }

    /// Writes what the cache holds of a sequence to a file, all of it or nothing, and says its bytes. `model` names the
    /// model's weights, such as a hash of them: only the same can read the file again. `note` is the caller's.
    ///
    /// # Errors
    /// A sequence of another model; the device cannot give its blocks; the file cannot be written.
    pub fn save(&self, sequence: &Sequence, path: &Path, model: &str, note: &str) -> Result<u64> {
        if !Arc::ptr_eq(&sequence.cache, &self.cache) {
            return Err(Error::invalid("sequence", "one of this model", "another model's"));
        }
        saved::write(path, [model, note], &self.plan.kv, &sequence.table, &*self.executor)
    }

    /// The sequence that a file holds, and the note beside it. What follows it has the bits that it would have had.
    ///
    /// # Errors
    /// No such file, or it is damaged; saved from another model, or from a cache that stores otherwise; longer than the
    /// context; a cache without room.
    pub fn load_sequence(&mut self, path: &Path, model: &str) -> Result<(Sequence, String)> {
        let saved = Saved::open(path, model, &self.plan.kv)?;
        let tokens = saved.tokens();
        if tokens.len() > self.context {
            return Err(Error::ContextFull { tokens: tokens.len(), position: 0, context: self.context });
        }
        let table = locked(&self.cache).restore(tokens.to_vec(), saved.held())?;
        // Dropped on an error, it gives its blocks back.
        let mut sequence = Sequence::holding(&self.cache, table);
        if let Err(e) = saved.fill(&sequence.table, &mut *self.executor) {
            sequence.discard();
            return Err(e);
        }
        Ok((sequence, saved.note().to_owned()))
    }

    /// Steps a batch and leaves the wanted rows, feed after feed, in `logits`: `[rows, vocabulary]`.
    ///
    /// # Errors
    /// As [`Model::step_with`]; also when `logits` is not of that size.
    pub fn step(&mut self, feeds: &mut [Feed<'_>], logits: &mut [f32]) -> Result<()> {
        let vocab = self.plan.vocab;
        let mut first_row = Vec::with_capacity(feeds.len());
        let mut rows = 0;
        for feed in feeds.iter() {
            // Rows of `All` count from the sequence's present end.
            let skipped = match feed.logits {
                LogitRows::All => feed.sequence.len(),
                _ => (feed.sequence.len() + feed.tokens.len()).saturating_sub(1),
            };
            first_row.push((rows, skipped));
            rows += wanted_rows(feed);
        }
        if logits.len() != rows * vocab {
            let expected = format!("{rows} rows of {vocab}");
            return Err(Error::invalid("logits of a step", expected, logits.len()));
        }
        self.step_with(feeds, &mut |feed, position, row| {
            let (first, skipped) = first_row[feed];
            let at = (first + position - skipped) * vocab;
            logits[at..at + vocab].copy_from_slice(row);
        })
    }

    /// Steps a batch, of any mix of prompts and single tokens, and hands each wanted row of logits to `sink`; rows of one feed come in
    /// order. Long feeds are cut into as many device steps as the plan's limits ask; the logits are the same bits
    /// however they are cut.
    ///
    /// # Errors
    /// Before any work: an empty feed, a token outside the vocabulary, a sequence of another model, more positions
    /// than the context. Later: a cache without room, or the device's error; sequences then hold what was stepped
    /// until then.
    pub fn step_with(&mut self, feeds: &mut [Feed<'_>], sink: &mut LogitSink<'_>) -> Result<()> {
        self.check(feeds)?;
        let mut done = vec![0; feeds.len()];
        while let Some(cuts) = self.cut(feeds, &done) {
            self.run_once(feeds, &mut done, &cuts, sink)?;
        }
        Ok(())
    }

    fn check(&self, feeds: &[Feed<'_>]) -> Result<()> {
        for feed in feeds {
            if !Arc::ptr_eq(&feed.sequence.cache, &self.cache) {
                return Err(Error::invalid("sequence", "one of this model", "another model's"));
            }
            if feed.tokens.is_empty() {
                return Err(Error::invalid("tokens of a step", "at least one per sequence", 0));
            }
            if let Some(&token) = feed.tokens.iter().find(|&&t| t as usize >= self.plan.vocab) {
                return Err(Error::invalid("token", format!("below {}", self.plan.vocab), token));
            }
            let (tokens, position) = (feed.tokens.len(), feed.sequence.len());
            if position + tokens > self.context {
                return Err(Error::ContextFull { tokens, position, context: self.context });
            }
        }
        Ok(())
    }

    /// How many tokens of each feed go into the next device step; `None` when all are done.
    fn cut(&self, feeds: &[Feed<'_>], done: &[usize]) -> Option<Vec<usize>> {
        let (mut tokens, mut rows) = (self.plan.max_step_tokens, self.plan.max_logit_rows);
        let cut = |(feed, &done): (&Feed<'_>, &usize)| {
            let mut n = (feed.tokens.len() - done).min(tokens);
            let last = done + n == feed.tokens.len() && n > 0;
            match feed.logits {
                LogitRows::None => {}
                LogitRows::Last if last && rows == 0 => n = 0,
                LogitRows::Last => rows -= usize::from(last),
                LogitRows::All => {
                    n = n.min(rows);
                    rows -= n;
                }
            }
            tokens -= n;
            n
        };
        let cuts: Vec<usize> = feeds.iter().zip(done).map(cut).collect();
        cuts.iter().any(|&n| n > 0).then_some(cuts)
    }

    fn run_once(
        &mut self,
        feeds: &mut [Feed<'_>],
        done: &mut [usize],
        cuts: &[usize],
        sink: &mut LogitSink<'_>,
    ) -> Result<()> {
        let mut tables: Vec<&mut Table> = feeds.iter_mut().map(|f| &mut f.sequence.table).collect();
        let executor = &mut self.executor;
        locked(&self.cache)
            .reserve(&mut tables, cuts, &mut |g, from, to| executor.copy_block(g, from, to))?;
        let active = || (0..cuts.len()).filter(|&i| cuts[i] > 0);
        let spans: Vec<Span<'_>> = active()
            .map(|i| {
                let feed = &feeds[i];
                let end = done[i] + cuts[i];
                let logits = match feed.logits {
                    LogitRows::Last if end < feed.tokens.len() => LogitRows::None,
                    wanted => wanted,
                };
                let tokens = &feed.tokens[done[i]..end];
                Span { tokens, start: feed.sequence.len(), tables: &feed.sequence.table.blocks, logits }
            })
            .collect();
        let rows: usize = spans.iter().map(Span::logit_rows).sum();
        self.rows.resize((rows * self.plan.vocab).max(self.rows.len()), 0.0);
        executor.run(&spans, &mut self.rows[..rows * self.plan.vocab])?;
        let counts: Vec<usize> = spans.iter().map(Span::logit_rows).collect();
        drop(spans);
        let mut left = self.rows.chunks_exact(self.plan.vocab);
        let mut cache = locked(&self.cache);
        for (i, rows) in active().zip(counts) {
            let feed = &mut feeds[i];
            let tokens = &feed.tokens[done[i]..done[i] + cuts[i]];
            cache.advance(&mut feed.sequence.table, tokens);
            done[i] += cuts[i];
            let first = feed.sequence.len() - rows;
            left.by_ref().take(rows).enumerate().for_each(|(r, row)| sink(i, first + r, row));
        }
        Ok(())
    }
}

/// Rows that a feed gives in all.
fn wanted_rows(feed: &Feed<'_>) -> usize {
    match feed.logits {
        LogitRows::None => 0,
        LogitRows::Last => 1,
        LogitRows::All => feed.tokens.len(),
    }
}

/// The context to load for, and what it needs. A context that was asked for must fit; the model's own is cut to what
/// does.
fn admit(plan: &Plan, spec: &ModelSpec, weight_bytes: u64, options: &LoadOptions) -> Result<(usize, Need)> {
    let asked = options.context.unwrap_or(spec.context);
    if asked > spec.context {
        return Err(Error::ContextBeyondModel { asked, model: spec.context });
    }
    if asked == 0 {
        return Err(Error::invalid("context", format!("1 to {}", spec.context), 0));
    }
    let kept = if options.keep_prefixes { options.sequences } else { 0 };
    let at = |context| memory::need(plan, weight_bytes, context, options.sequences, kept);
    let Some(available) = options.available_bytes.or_else(memory::available) else {
        return Ok((asked, at(asked)));
    };
    match memory::check(plan, weight_bytes, asked, options.sequences, kept, available) {
        Ok(need) => Ok((asked, need)),
        Err(Error::DoesNotFit { fits, .. }) if options.context.is_none() && fits > 0 => Ok((fits, at(fits))),
        Err(e) => Err(e),
    }
}
