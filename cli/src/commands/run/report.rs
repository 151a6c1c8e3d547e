//! What an answer took, for programs (`--json`) and for people (`--stats`).

use serde::Serialize;

use super::session::{Answer, Session};
use crate::progress::note;

/// The object of `--json`.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    text: &'a str,
    /// The answer's tokens, without one that ended it.
    token_ids: &'a [u32],
    prompt_tokens: usize,
    generated_tokens: usize,
    /// From the file's opening until the prompt could begin, in seconds.
    load_s: f64,
    /// From there to the first token.
    first_token_s: f64,
    prompt_tokens_per_s: f64,
    generated_tokens_per_s: f64,
    /// Weights that a step of one token reads.
    weight_bytes_per_token: u64,
    /// The prepared weights' file, as mapped.
    weight_file_bytes: u64,
    /// What building the tokenizer added to the process.
    tokenizer_bytes: u64,
    /// Of the whole process, at the end.
    resident_bytes: u64,
    /// Those of them that huge pages hold.
    huge_page_bytes: u64,
    /// Formats, window, sinks and rotation of the KV cache.
    kv: String,
    /// What the answer's positions take by the formula.
    kv_formula_bytes: u64,
    /// Blocks of the pool in use, those of kept prefixes among them.
    kv_used_bytes: u64,
    /// The pool, as reserved; what was never used of it is not resident.
    kv_pool_bytes: u64,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    finish_reason: &'static str,
}

impl<'a> Report<'a> {
    /// Of an answer that has just ended.
    pub(super) fn of(session: &Session, answer: &'a Answer) -> Report<'a> {
        let (resident_bytes, huge_page_bytes) = residency();
        let finished = &answer.finished;
        Report {
            text: &answer.text,
            token_ids: &finished.tokens,
            prompt_tokens: finished.prompt_tokens,
            generated_tokens: finished.tokens.len(),
            load_s: session.load.as_secs_f64(),
            first_token_s: answer.first_token.as_secs_f64(),
            prompt_tokens_per_s: answer.prompt_rate(),
            generated_tokens_per_s: answer.generation_rate(),
            weight_bytes_per_token: weight_bytes_per_token(session),
            weight_file_bytes: session.weights.len_bytes(),
            tokenizer_bytes: session.tokenizer_bytes,
            resident_bytes,
            huge_page_bytes,
            kv: session.model.plan().kv.settings.class(),
            kv_formula_bytes: session.model.plan().kv.bytes_held(finished.positions),
            kv_used_bytes: session.model.cache_use().used_bytes,
            kv_pool_bytes: session.model.memory().kv_pool_bytes,
            seed: finished.seed,
            fingerprint: finished.fingerprint.as_ref().map(ToString::to_string),
            finish_reason: finished.reason.name(),
        }
    }
}

fn weight_bytes_per_token(session: &Session) -> u64 {
    session.model.plan().work(1, 0, 1).bytes_read.weights
}

/// Bytes of this process in memory, and those of them in huge pages; zero where the system does not say.
fn residency() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    (field("Rss"), field("AnonHugePages") + field("ShmemPmdMapped") + field("FilePmdMapped"))
}

/// Bytes of this process in memory, cheaply; zero where the system does not say.
pub(super) fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Says what the answer took, on standard error.
pub(super) fn print(session: &Session, answer: &Answer) {
    let finished = &answer.finished;
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let spec = &session.bundle.spec;
    let encodings: Vec<_> =
        session.bundle.encodings.iter().map(|(e, bytes)| format!("{e} {}", mb(*bytes))).collect();
    let pages = session.weights.residency();
    let place = if session.weights.is_private() { "in private memory" } else { "in a shared mapping" };
    let memory = session.model.memory();
    let (resident, huge) = residency();
    let reused = match finished.reused_tokens {
        0 => String::new(),
        n => format!(" ({n} of them kept from before)"),
    };
    let row = |name: &str, text: String| note(format!("{name:>12}  {text}"));
    row(
        "model",
        format!(
            "{}: {}, {} layers; {}",
            session.bundle.name,
            spec.architecture,
            spec.layers(),
            encodings.join(", ")
        ),
    );
    row(
        "device",
        format!(
            "{}, {} threads, {} kernels",
            session.device.name, session.device.threads, session.device.kernels
        ),
    );
    row("load", format!("{:.3} s", session.load.as_secs_f64()));
    row("prompt", format!("{} tokens{reused}, {:.1} tokens/s", finished.prompt_tokens, answer.prompt_rate()));
    row("first token", format!("{:.3} s after the prompt's beginning", answer.first_token.as_secs_f64()));
    row(
        "answer",
        format!(
            "{} tokens, {:.1} tokens/s; ended by: {}",
            finished.tokens.len(),
            answer.generation_rate(),
            finished.reason
        ),
    );
    row(
        "weights",
        format!(
            "{} {place}, {} of them in huge pages; {} read per token",
            mb(session.weights.len_bytes()),
            mb(pages.huge_page_bytes),
            mb(weight_bytes_per_token(session))
        ),
    );
    row(
        "memory",
        format!(
            "{} resident, {} of it in huge pages; tokenizer {}, scratch {}",
            mb(resident),
            mb(huge),
            mb(session.tokenizer_bytes),
            mb(memory.scratch_bytes)
        ),
    );
    let layout = &session.model.plan().kv;
    row(
        "cache",
        format!(
            "{}; {} by the formula for {} tokens, {} in use; a pool of {} for {} tokens",
            layout.settings.class(),
            mb(layout.bytes_held(finished.positions)),
            finished.positions,
            mb(session.model.cache_use().used_bytes),
            mb(memory.kv_pool_bytes),
            session.model.context()
        ),
    );
    row("sampler", session.chain(finished.seed));
}
