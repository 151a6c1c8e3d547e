//! One answer: a prompt's tokens in, text as it comes, and why it ended.
//!
//! It ties a model, a tokenizer and a sampler; it knows no terminal and no protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tensor::device::LogitRows;

use crate::sample::{Sampler, SamplerConfig};
use crate::stop::{StopStrings, StreamDecoder};
use crate::tokenizer::Tokenizer;
use crate::{Error, Feed, Fingerprint, Model, Result, Sequence};

/// Which logits a fingerprint covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FingerprintScope {
    /// None is made.
    #[default]
    None,
    /// The logits from which tokens were drawn.
    Drawn,
    /// Those of every prompt position too. The whole prompt is computed then, whatever prefix is kept.
    All,
}

/// How an answer is to be made.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// The sampling chain.
    pub sampler: SamplerConfig,
    /// Index among the answers to one request; it addresses the noise.
    pub choice: u64,
    /// Most tokens; `None` goes on to the context's end.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not shown.
    pub stop: Vec<String>,
    /// Whether tokens that end a generation are drawn and passed like any other.
    pub ignore_eos: bool,
    /// Which logits are hashed.
    pub fingerprint: FingerprintScope,
    /// Ends the answer when it becomes true; looked at between steps.
    pub interrupt: Option<Arc<AtomicBool>>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop string came.
    Stop,
    /// The model drew a token that ends a generation.
    Eog,
    /// As many tokens as were allowed.
    Length,
    /// The context is full.
    Context,
    /// The interrupt was set.
    Interrupted,
}

impl FinishReason {
    /// In one word, as `--json` has it.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Eog => "eog",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Interrupted => "interrupted",
        }
    }
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What one step adds.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The token; `None` in a last chunk that holds text kept back until then.
    pub token: Option<u32>,
    /// Text that is complete now: whole characters, and nothing that may belong to a stop string.
    pub text: String,
    /// The token's log-probability by the model's own logits, where the sampler's settings ask for it.
    pub logprob: Option<f32>,
}

/// An answer's end.
#[derive(Debug)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them a kept prefix gave.
    pub reused_tokens: usize,
    /// The tokens drawn, without one that ended the generation.
    pub tokens: Vec<u32>,
    /// Positions that the cache held at the end.
    pub positions: usize,
    /// The seed in use, given or drawn.
    pub seed: u64,
    /// The hash, where one was asked for.
    pub fingerprint: Option<Fingerprint>,
    /// Time spent on the prompt.
    pub prompt_elapsed: Duration,
    /// Time spent on what came after.
    pub generation_elapsed: Duration,
}

/// An answer in the making: an iterator over its chunks.
pub struct Generation<'m> {
    model: &'m mut Model,
    tokenizer: &'m Tokenizer,
    sampler: Sampler,
    options: GenerateOptions,
    sequence: Sequence,
    /// The prompt and what was drawn.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Logits of the last position.
    logits: Vec<f32>,
    fingerprint: Option<Fingerprint>,
    decoder: StreamDecoder,
    stops: StopStrings,
    reason: Option<FinishReason>,
    /// The last chunk has been given.
    is_flushed: bool,
    prompt_elapsed: Duration,
    generation_elapsed: Duration,
}

impl std::fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation")
            .field("tokens", &self.tokens.len())
            .field("reason", &self.reason)
            .finish()
    }
}

impl Model {
    /// Begins an answer to `prompt`. Nothing is computed before the first chunk is asked for.
    ///
    /// # Errors
    /// An empty prompt, or one longer than the context; a token outside the vocabulary; sampler settings out of range.
    pub fn generate<'m>(
        &'m mut self,
        tokenizer: &'m Tokenizer,
        prompt: &[u32],
        options: GenerateOptions,
    ) -> Result<Generation<'m>> {
        if prompt.is_empty() {
            return Err(Error::invalid("prompt", "at least one token", "none"));
        }
        if prompt.len() > self.context() {
            return Err(Error::ContextFull { tokens: prompt.len(), position: 0, context: self.context() });
        }
        let vocab = self.plan().vocab;
        let sampler = Sampler::new(options.sampler.clone(), vocab)?;
        let known = if options.fingerprint == FingerprintScope::All { &[][..] } else { prompt };
        let decoder = StreamDecoder::new();
        Ok(Generation {
            sequence: self.sequence(known),
            tokenizer,
            sampler,
            tokens: prompt.to_vec(),
            prompt_tokens: prompt.len(),
            logits: vec![0.0; vocab],
            fingerprint: (options.fingerprint != FingerprintScope::None).then(Fingerprint::new),
            decoder,
            stops: StopStrings::new(options.stop.iter().cloned()),
            reason: None,
            is_flushed: false,
            prompt_elapsed: Duration::ZERO,
            generation_elapsed: Duration::ZERO,
            options,
            model: self,
        })
    }
}

impl Generation<'_> {
    /// Why the answer ended; `None` while it goes on.
    pub fn reason(&self) -> Option<FinishReason> {
        self.reason
    }

    /// Tokens drawn so far.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    /// The text that a stop string ended with, if one did.
    pub fn stop_string(&self) -> Option<&str> {
        self.stops.found()
    }

    /// Ends it, wherever it is; the sequence stays as a prefix for later ones.
    pub fn finish(self) -> Finished {
        Finished {
            reason: self.reason.unwrap_or(FinishReason::Interrupted),
            prompt_tokens: self.prompt_tokens,
            reused_tokens: self.sequence.reused(),
            tokens: self.tokens[self.prompt_tokens..].to_vec(),
            positions: self.sequence.len(),
            seed: self.sampler.seed(),
            fingerprint: self.fingerprint,
            prompt_elapsed: self.prompt_elapsed,
            generation_elapsed: self.generation_elapsed,
        }
    }

    fn is_interrupted(&self) -> bool {
        self.options.interrupt.as_ref().is_some_and(|i| i.load(Ordering::Relaxed))
    }

    /// Steps the prompt up to its end, unless it is interrupted between two device steps.
    fn step_prompt(&mut self) -> Result<()> {
        let start = Instant::now();
        let chunk = self.model.plan().max_step_tokens;
        while self.sequence.len() < self.prompt_tokens {
            if self.is_interrupted() {
                self.reason = Some(FinishReason::Interrupted);
                break;
            }
            let from = self.sequence.len();
            let to = (from + chunk).min(self.prompt_tokens);
            let all = self.options.fingerprint == FingerprintScope::All;
            let rows = match to == self.prompt_tokens {
                _ if all => LogitRows::All,
                true => LogitRows::Last,
                false => LogitRows::None,
            };
            self.step(from, to, rows)?;
        }
        if self.reason.is_none() {
            self.sequence.keep();
        }
        self.prompt_elapsed += start.elapsed();
        Ok(())
    }

    /// Steps `tokens[from..to]`, keeps the last row of logits and hashes what is to be hashed.
    fn step(&mut self, from: usize, to: usize, rows: LogitRows) -> Result<()> {
        let Generation { model, sequence, tokens, logits, fingerprint, .. } = self;
        let mut feeds = [Feed { sequence, tokens: &tokens[from..to], logits: rows }];
        model.step_with(&mut feeds, &mut |_, position, row| {
            if let Some(hash) = fingerprint {
                hash.update(row);
            }
            if position + 1 == to {
                logits.copy_from_slice(row);
            }
        })
    }

    /// The next token's chunk, or none where the answer ends before another.
    fn advance(&mut self) -> Result<Option<Chunk>> {
        if self.sequence.len() < self.prompt_tokens {
            self.step_prompt()?;
        } else if self.sequence.len() < self.tokens.len() {
            if self.is_interrupted() {
                self.reason = Some(FinishReason::Interrupted);
            } else if self.sequence.len() == self.model.context() {
                self.reason = Some(FinishReason::Context);
            } else {
                self.step(self.sequence.len(), self.tokens.len(), LogitRows::Last)?;
            }
        }
        if self.reason.is_some() {
            return Ok(None);
        }
        if self.options.max_tokens == Some(self.generated().len()) {
            self.reason = Some(FinishReason::Length);
            return Ok(None);
        }
        let position = self.tokens.len() as u64;
        let drawn = self.sampler.sample(&self.logits, &self.tokens, self.options.choice, position)?;
        if !self.options.ignore_eos && self.tokenizer.is_end_of_generation(drawn.token) {
            self.reason = Some(FinishReason::Eog);
            return Ok(None);
        }
        self.tokens.push(drawn.token);
        let mut text = String::new();
        if !self.tokenizer.is_control(drawn.token) {
            let whole = self.decoder.push(&self.tokenizer.piece(drawn.token));
            text = self.stops.push(&whole);
        }
        if self.stops.found().is_some() {
            self.reason = Some(FinishReason::Stop);
        } else if self.options.max_tokens == Some(self.generated().len()) {
            self.reason = Some(FinishReason::Length);
        }
        Ok(Some(Chunk { token: Some(drawn.token), text, logprob: drawn.logprob }))
    }

    /// Text that was kept back, once nothing more can come.
    fn flush(&mut self) -> Option<Chunk> {
        self.is_flushed = true;
        if self.stops.found().is_some() {
            return None;
        }
        let rest = self.decoder.finish();
        let mut text = self.stops.push(&rest);
        if self.stops.found().is_none() {
            text.push_str(&self.stops.finish());
        }
        (!text.is_empty()).then_some(Chunk { token: None, text, logprob: None })
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Chunk>;

    /// The next chunk. After an error there is none.
    fn next(&mut self) -> Option<Self::Item> {
        if self.reason.is_none() {
            let start = Instant::now();
            let before = self.prompt_elapsed;
            let chunk = self.advance();
            self.generation_elapsed += start.elapsed().saturating_sub(self.prompt_elapsed - before);
            match chunk {
                Ok(Some(chunk)) => return Some(Ok(chunk)),
                Ok(None) => {}
                Err(e) => {
                    self.reason = Some(FinishReason::Interrupted);
                    self.is_flushed = true;
                    return Some(Err(e));
                }
            }
        }
        if self.is_flushed { None } else { self.flush().map(Ok) }
    }
}
