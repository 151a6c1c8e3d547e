//! From logits to a token: the sampling chain, explicit and in one order.
//!
//! logit bias → repetition, presence and frequency penalties → DRY → mask → greedy, or: top-n-sigma → top-k → typical →
//! top-p → min-p → XTC → temperature → draw. A curve stands in place of everything from top-k to temperature.
//!
//! A truncating step sees what the steps before it left, renormalised, at temperature 1. Each keeps at least one token.
//! The draw is a function of the logits, the history and (seed, choice, position) alone: nothing is carried from one
//! draw to the next, so a sequence's tokens depend neither on its neighbours in a batch nor on earlier requests.
//! Logarithms and exponentials are the `libm` crate's or ours: every operating system gives the same tokens.
//!
//! It does not know models, tokenizers or grammars: a grammar hands in its mask.

mod bias;
mod config;
mod curve;
mod draw;
mod dry;
mod error;
mod logprob;
mod math;
mod min_p;
mod penalties;
mod pool;
mod random;
mod settings;
mod tone;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

pub use config::SamplerConfig;
pub use curve::{Curve, CurvePoint};
pub use dry::sequence_breakers;
pub use error::{Error, Result};
pub use logprob::{log_probability, top_log_probabilities};
pub use tone::ToneCurve;

use draw::Shape;
use math::Best;
use pool::{Pool, Room, Running};
use random::Noise;

/// A token taken from a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Its log-probability in nats by the model's own logits, before any step, where the configuration asks for it.
    pub logprob: Option<f32>,
}

/// Tokens that a grammar allows: bit `t % 32` of word `t / 32` for token t. Tokens beyond the words are not allowed.
#[derive(Clone, Copy, Debug)]
pub struct TokenMask<'a>(pub &'a [u32]);

impl TokenMask<'_> {
    fn apply(&self, logits: &mut [f32]) {
        for (index, block) in logits.chunks_mut(32).enumerate() {
            let word = self.0.get(index).copied().unwrap_or(0);
            if word != u32::MAX {
                for (bit, logit) in block.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// A sampler: a checked configuration, a seed, and room that is reused between draws.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    seed: u64,
    vocab_size: usize,
    /// The configuration's breakers, sorted.
    breakers: Vec<u32>,
    adjusted: Vec<f32>,
    counts: Vec<u32>,
    room: Room,
}

impl Sampler {
    /// A sampler for logits of `vocab_size` tokens.
    ///
    /// It is an error if a setting is out of range or a bias names a token outside the vocabulary. Without a seed
    /// one is drawn from the system; [`Sampler::seed`] tells which.
    pub fn new(config: SamplerConfig, vocab_size: usize) -> Result<Self> {
        config.validate()?;
        if vocab_size == 0 || vocab_size > 1 << 31 {
            return Err(Error::setting("vocabulary size", "1 to 2³¹", vocab_size));
        }
        if let Some((token, _)) =
            config.logit_bias.last_key_value().filter(|(t, _)| **t as usize >= vocab_size)
        {
            return Err(Error::setting("logit_bias", format!("tokens below {vocab_size}"), token));
        }
        let seed = match config.seed {
            Some(seed) => seed,
            None => getrandom::u64()?,
        };
        let mut breakers = config.dry_sequence_breakers.clone();
        breakers.sort_unstable();
        let (adjusted, counts, room) = (Vec::new(), Vec::new(), Room::default());
        Ok(Sampler { config, seed, vocab_size, breakers, adjusted, counts, room })
    }

    /// The configuration, as it was given.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// The seed in use, given or drawn from the system.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Takes the next token.
    ///
    /// `logits` is the model's output, one per token. `history` is the prompt and what was generated, for penalties and
    /// DRY. `choice_index` counts the answers of one request (0 if there is one), and `position` is the index of the
    /// token to be taken within its sequence: with the seed they address the noise.
    ///
    /// Errors: the number of logits is not the vocabulary's size; a logit is NaN or +∞; none is above −∞.
    pub fn sample(
        &mut self,
        logits: &[f32],
        history: &[u32],
        choice_index: u64,
        position: u64,
    ) -> Result<Choice> {
        self.sample_masked(logits, history, choice_index, position, None)
    }

    /// Like [`Sampler::sample`], from the tokens of a mask only. It is an error if the mask leaves none.
    pub fn sample_masked(
        &mut self,
        logits: &[f32],
        history: &[u32],
        choice_index: u64,
        position: u64,
        mask: Option<TokenMask<'_>>,
    ) -> Result<Choice> {
        let noise = Noise::new(self.seed, choice_index, position);
        let token = match self.run(logits, history, &noise, position, mask)? {
            Outcome::Greedy(token) => token,
            Outcome::Distribution { running, best, shape } => draw::draw(&running, best, shape, &noise),
        };
        let logprob = self.config.logprobs.then(|| log_probability(logits, token));
        Ok(Choice { token, logprob })
    }

    /// The distribution that [`Sampler::sample_masked`] draws from with the same arguments: tokens with their probabilities,
    /// the most probable first. (Choice and position matter to XTC alone, whose coin they address.)
    pub fn distribution(
        &mut self,
        logits: &[f32],
        history: &[u32],
        choice_index: u64,
        position: u64,
        mask: Option<TokenMask<'_>>,
    ) -> Result<Vec<(u32, f64)>> {
        let noise = Noise::new(self.seed, choice_index, position);
        let (running, best, shape) = match self.run(logits, history, &noise, position, mask)? {
            Outcome::Greedy(token) => return Ok(vec![(token, 1.0)]),
            Outcome::Distribution { running, best, shape } => (running, best, shape),
        };
        let top = shape.log_weight(best);
        let weigh = |token: u32, logit: f32| (token, libm::exp(shape.log_weight(logit) - top));
        let mut all: Vec<(u32, f64)> = match running {
            Running::Listed(list) => list.iter().map(|c| weigh(c.token, c.logit)).collect(),
            Running::All { logits, .. } => {
                let alive = logits.iter().enumerate().filter(|(_, l)| **l > f32::NEG_INFINITY);
                alive.map(|(token, &logit)| weigh(token as u32, logit)).collect()
            }
        };
        all.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // The small ones first, so that none of them is lost.
        let total: f64 = all.iter().rev().map(|(_, p)| p).fold(0.0, |a, b| a + b);
        for (_, p) in &mut all {
            *p /= total;
        }
        Ok(all)
    }

    /// The steps that are on, in order, in words.
    pub fn describe(&self) -> String {
        let c = &self.config;
        let mut steps = Vec::new();
        let window = |n: Option<u32>| n.map_or("all".to_string(), |n| format!("the last {n}"));
        if !c.logit_bias.is_empty() {
            steps.push(format!("bias of {} tokens", c.logit_bias.len()));
        }
        if penalties::is_on(c) {
            steps.push(format!(
                "penalties (repetition {}, presence {}, frequency {}, over {} tokens)",
                c.repetition_penalty,
                c.presence_penalty,
                c.frequency_penalty,
                window(c.penalty_last_n)
            ));
        }
        if dry::is_on(c) {
            steps.push(format!(
                "DRY (multiplier {}, base {}, allowed length {}, {} breakers, over {} tokens)",
                c.dry_multiplier,
                c.dry_base,
                c.dry_allowed_length,
                c.dry_sequence_breakers.len(),
                window(c.dry_last_n)
            ));
        }
        if c.is_greedy() {
            steps.push("greedy".into());
            return steps.join(" → ");
        }
        if c.top_n_sigma > 0.0 {
            steps.push(format!("top-n-sigma {}", c.top_n_sigma));
        }
        let truncations = self.describe_truncations();
        let mut replaced = truncations.clone();
        if let Some(curve) = &c.curve {
            if c.temperature != 1.0 {
                replaced.push(format!("temperature {}", c.temperature));
            }
            steps.push(format!("curve of {} points", curve.points().len()));
        } else if let Some(tone) = &c.hlg {
            steps.push(format!("hlg {tone} at temperature {}", c.temperature));
        } else {
            replaced.clear();
            steps.extend(truncations);
            steps.push(format!("temperature {}", c.temperature));
        }
        if !replaced.is_empty() {
            let last = steps.len() - 1;
            steps[last] += &format!(" (in place of {})", replaced.join(", "));
        }
        steps.push(format!("draw with seed {}", self.seed));
        steps.join(" → ")
    }

    fn describe_truncations(&self) -> Vec<String> {
        let c = &self.config;
        let mut steps = Vec::new();
        if c.top_k > 0 {
            steps.push(format!("top-k {}", c.top_k));
        }
        if c.typical_p < 1.0 {
            steps.push(format!("typical {}", c.typical_p));
        }
        if c.top_p < 1.0 {
            steps.push(format!("top-p {}", c.top_p));
        }
        if c.min_p > 0.0 {
            steps.push(format!("min-p {}", c.min_p));
        }
        if c.xtc_probability > 0.0 {
            steps.push(format!("XTC (probability {}, threshold {})", c.xtc_probability, c.xtc_threshold));
        }
        steps
    }

    /// The chain up to the draw.
    fn run<'a>(
        &'a mut self,
        logits: &'a [f32],
        history: &[u32],
        noise: &Noise,
        position: u64,
        mask: Option<TokenMask<'_>>,
    ) -> Result<Outcome<'a>> {
        let Sampler { config, vocab_size, breakers, adjusted, counts, room, .. } = self;
        let config: &SamplerConfig = config;
        if logits.len() != *vocab_size {
            return Err(Error::LogitCount { position, expected: *vocab_size, found: logits.len() });
        }
        let greedy = config.is_greedy();
        let changed =
            !config.logit_bias.is_empty() || penalties::is_on(config) || dry::is_on(config) || mask.is_some();
        let logits = if changed {
            // A broken model is reported as such, whatever bias, penalties and mask would have made of it.
            best_of(logits, None, position)?;
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            bias::apply(adjusted, &config.logit_bias);
            if penalties::is_on(config) {
                penalties::apply(adjusted, history, config, counts);
            }
            if dry::is_on(config) {
                dry::apply(adjusted, history, config, breakers);
            }
            if let Some(mask) = mask {
                mask.apply(adjusted);
            }
            adjusted.as_slice()
        } else {
            logits
        };
        let best = best_of(logits, (!greedy).then_some(&mut room.block_max), position);
        let best = match best {
            Err(Error::NoToken { .. }) if changed => {
                return Err(Error::NoToken { position, why: "bias or mask leave none" });
            }
            other => other?,
        };
        if greedy {
            return Ok(Outcome::Greedy(best.token));
        }
        Ok(narrow(config, Pool::new(logits, best.logit, room), noise))
    }
}

/// What the chain leaves to do.
enum Outcome<'a> {
    Greedy(u32),
    Distribution { running: Running<'a>, best: f32, shape: Shape<'a> },
}

/// The steps between the mask and the draw.
fn narrow<'a>(config: &'a SamplerConfig, mut pool: Pool<'a>, noise: &Noise) -> Outcome<'a> {
    if config.top_n_sigma > 0.0 {
        top_n_sigma::apply(&mut pool, config.top_n_sigma);
    }
    let plain = |temperature: f64, best: f32| Shape::Temperature { best, temperature };
    let shape = if let Some(curve) = &config.curve {
        if curve.is_identity() {
            plain(1.0, pool.best())
        } else {
            let log_total = f64::from(pool.best()) + libm::log(pool.sum_exp());
            Shape::Transfer { curve, log_total }
        }
    } else if let Some(curve) = &config.hlg {
        if curve.is_straight() {
            plain(config.temperature, pool.best())
        } else {
            Shape::Tone { best: pool.best(), curve, m: 1.0 / config.temperature }
        }
    } else {
        truncate(config, &mut pool, noise);
        plain(config.temperature, pool.best())
    };
    let best = pool.best();
    Outcome::Distribution { running: pool.into_running(), best, shape }
}

fn truncate(config: &SamplerConfig, pool: &mut Pool<'_>, noise: &Noise) {
    if config.top_k > 0 {
        top_k::apply(pool, config.top_k);
    }
    if config.typical_p < 1.0 {
        typical::apply(pool, config.typical_p);
    }
    if config.top_p < 1.0 {
        top_p::apply(pool, config.top_p);
    }
    if config.min_p > 0.0 {
        min_p::apply(pool, config.min_p);
    }
    if config.xtc_probability > 0.0 && noise.coin() < config.xtc_probability {
        xtc::apply(pool, config.xtc_threshold);
    }
}

fn best_of(logits: &[f32], block_max: Option<&mut Vec<f32>>, position: u64) -> Result<Best> {
    let best = math::scan(logits, block_max).map_err(|token| Error::BrokenLogits {
        position,
        token,
        found: logits[token as usize],
    })?;
    if best.logit == f32::NEG_INFINITY {
        return Err(Error::NoToken { position, why: "the model's logits are all −∞" });
    }
    Ok(best)
}

/// The last `n` of a history, or all of it.
fn window(history: &[u32], n: Option<u32>) -> &[u32] {
    let n = n.map_or(history.len(), |n| (n as usize).min(history.len()));
    &history[history.len() - n..]
}

/// A logit after an adjustment, kept finite: only a bias of −∞ and a mask remove tokens.
fn alive(logit: f64) -> f32 {
    logit.clamp(f64::from(-f32::MAX), f64::from(f32::MAX)) as f32
}
