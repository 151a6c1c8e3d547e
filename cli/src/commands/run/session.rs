//! A model with its tokenizer and settings, ready to answer, and what one answer took.
//!
//! It does not know whether a person or a program reads the answer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::open::Opened;
use engine::prepare::ModelBundle;
use engine::sample::{Sampler, SamplerConfig};
use engine::tokenizer::Tokenizer;
use engine::{FinishReason, Finished, GenerateOptions, LoadOptions, Model};
use tensor::device::{Device, DeviceInfo};
use tensor::reservoir::Reservoir;

use super::{Args, Weights, report};
use crate::interrupt::Interrupt;
use crate::opening;
use crate::places::Places;
use crate::progress::note;

/// Positions that a model is loaded for where nobody says.
const CONTEXT: usize = 4096;

/// A model whose file is open, not yet loaded: the prompt's length decides for how much.
pub(super) struct Opening {
    pub(super) weights: Arc<Reservoir>,
    pub(super) bundle: ModelBundle,
    pub(super) tokenizer: Tokenizer,
    /// What building it added to the process.
    tokenizer_bytes: u64,
    /// The model's own settings.
    pub(super) sampler: SamplerConfig,
    elapsed: Duration,
}

impl Opening {
    /// Opens the file and builds the tokenizer.
    pub(super) fn start(path: &Path, places: &Places, args: &Args) -> anyhow::Result<Opening> {
        let start = Instant::now();
        let opened = opening::open(path, places)?;
        let before = report::resident();
        let tokenizer = opened.tokenizer()?;
        let tokenizer_bytes = report::resident().saturating_sub(before);
        let Opened { mut weights, bundle, .. } = opened;
        if args.weights == Weights::Private && !weights.is_private() {
            weights = Arc::new(weights.to_private()?);
        }
        let (sampler, not_offered) = SamplerConfig::from_generation_settings(&bundle.generation)?;
        if !not_offered.is_empty() {
            note(format!(
                "the model's generation settings ask for what plumb does not offer: {}",
                not_offered.join(", ")
            ));
        }
        Ok(Opening { weights, bundle, tokenizer, tokenizer_bytes, sampler, elapsed: start.elapsed() })
    }

    /// Loads the model for a prompt of `prompt` tokens and its answer.
    pub(super) fn load(self, args: &Args, prompt: usize, interrupt: Interrupt) -> anyhow::Result<Session> {
        let start = Instant::now();
        let device = opening::device(args.threads)?;
        let model_context = self.bundle.spec.context;
        let wanted = CONTEXT.max(prompt.saturating_add(args.max_tokens)).min(model_context);
        let context = args.ctx.unwrap_or(wanted);
        let options = LoadOptions {
            context: Some(context),
            private_weights: self.weights.is_private(),
            kv: args.kv.settings(context)?,
            ..LoadOptions::default()
        };
        let weights = Arc::clone(&self.weights);
        let model = Model::load(&device, self.bundle.spec.clone(), weights, &options)?;
        let sampler = args.sampling.apply(self.sampler, &self.tokenizer)?;
        let options = GenerateOptions {
            sampler,
            max_tokens: Some(args.max_tokens),
            stop: args.stop.clone(),
            ignore_eos: args.ignore_eos,
            fingerprint: args.fingerprint(),
            ..GenerateOptions::default()
        };
        Ok(Session {
            model,
            tokenizer: self.tokenizer,
            tokenizer_bytes: self.tokenizer_bytes,
            weights: self.weights,
            bundle: self.bundle,
            device: device.info(),
            options,
            interrupt,
            load: self.elapsed + start.elapsed(),
        })
    }
}

/// A loaded model that answers.
pub(super) struct Session {
    pub(super) model: Model,
    pub(super) tokenizer: Tokenizer,
    /// What building it added to the process.
    pub(super) tokenizer_bytes: u64,
    pub(super) weights: Arc<Reservoir>,
    pub(super) bundle: ModelBundle,
    pub(super) device: DeviceInfo,
    pub(super) options: GenerateOptions,
    interrupt: Interrupt,
    /// From the file's opening until the first prompt could begin.
    pub(super) load: Duration,
}

/// An answer and what it took.
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) finished: Finished,
    /// From the prompt's beginning to the first token.
    pub(super) first_token: Duration,
    /// The context that it had.
    context: usize,
}

impl Session {
    /// Answers `prompt`, handing each piece of text to `show` as it comes.
    pub(super) fn answer(
        &mut self,
        prompt: &[u32],
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Answer> {
        let Session { model, tokenizer, options, interrupt, .. } = self;
        let context = model.context();
        interrupt.during(|pressed| {
            let options = GenerateOptions { interrupt: Some(pressed), ..options.clone() };
            let start = Instant::now();
            let mut generation = model.generate(tokenizer, prompt, options)?;
            let mut text = String::new();
            let mut first_token = None;
            for chunk in generation.by_ref() {
                let chunk = chunk?;
                first_token.get_or_insert_with(|| start.elapsed());
                if !chunk.text.is_empty() {
                    show(&chunk.text)?;
                    text.push_str(&chunk.text);
                }
            }
            let first_token = first_token.unwrap_or_else(|| start.elapsed());
            Ok(Answer { text, finished: generation.finish(), first_token, context })
        })
    }

    /// The sampling chain in words.
    pub(super) fn chain(&self, seed: u64) -> String {
        let config = SamplerConfig { seed: Some(seed), ..self.options.sampler.clone() };
        Sampler::new(config, self.model.plan().vocab).map_or_else(|e| e.to_string(), |s| s.describe())
    }
}

impl Answer {
    pub(super) fn is_interrupted(&self) -> bool {
        self.finished.reason == FinishReason::Interrupted
    }

    /// Why the answer is not whole, for people.
    pub(super) fn why_cut(&self) -> Option<String> {
        match self.finished.reason {
            FinishReason::Length => {
                Some(format!("ended after {} tokens (--max-tokens)", self.finished.tokens.len()))
            }
            FinishReason::Context => Some(format!("the context of {} tokens is full (--ctx)", self.context)),
            FinishReason::Interrupted => Some("interrupted".into()),
            FinishReason::Stop | FinishReason::Eog => None,
        }
    }

    /// Prompt tokens per second, of those that were computed.
    pub(super) fn prompt_rate(&self) -> f64 {
        let computed = self.finished.prompt_tokens.saturating_sub(self.finished.reused_tokens);
        rate(computed, self.finished.prompt_elapsed)
    }

    /// Steps after the prompt's, per second: the first token came from the prompt's own logits.
    pub(super) fn generation_rate(&self) -> f64 {
        let ended_by_a_token = usize::from(self.finished.reason == FinishReason::Eog);
        let steps = (self.finished.tokens.len() + ended_by_a_token).saturating_sub(1);
        rate(steps, self.finished.generation_elapsed)
    }
}

fn rate(count: usize, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}
