//! The guards: each looks at what a measurement left behind and refuses a figure that would mislead, in words.
//!
//! They are plain functions of recorded values: `ab` and `bench` call them, `traps` shows them at work, and they measure nothing.

use std::collections::BTreeSet;

use crate::preflight::{Limits, Traffic, during};
use crate::results::Settings;
use crate::stats::{Interval, LEAST_PAIRS, median};

/// A figure refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{guard}: {message}")]
pub struct Caught {
    /// The guard's name.
    pub guard: &'static str,
    /// What it saw, what it had expected, and what to do.
    pub message: String,
}

/// What a guard gives.
pub type Guarded = Result<(), Caught>;

fn refuse(guard: &'static str, message: String) -> Guarded {
    Err(Caught { guard, message })
}

/// Most of a sample that may be spent on what happens once per sample.
pub const MOST_FIXED: f64 = 0.02;

/// The share of a sample of n repetitions that is fixed cost, from the times of n and of 2n: t = fixed + n·each.
pub fn fixed_share(once_ns: f64, doubled_ns: f64) -> f64 {
    if once_ns > 0.0 { (2.0 * once_ns - doubled_ns) / once_ns } else { 1.0 }
}

/// Too little work per sample: twice the work must take twice the time.
///
/// # Errors
/// More than 2% of the sample is fixed cost.
pub fn amortised(once_ns: f64, doubled_ns: f64) -> Guarded {
    let share = fixed_share(once_ns, doubled_ns);
    if share <= MOST_FIXED {
        return Ok(());
    }
    refuse(
        "amortisation",
        format!(
            "twice the work took {:.2} times as long: {:.0}% of a sample is fixed cost (limit {:.0}%); more work per sample",
            doubled_ns / once_ns.max(1.0),
            share * 100.0,
            MOST_FIXED * 100.0
        ),
    )
}

/// Compiling or loading inside the timer: things built while samples were timed.
///
/// # Errors
/// Something was built between the first sample and the last.
pub fn nothing_built(built_before: u64, built_after: u64) -> Guarded {
    match built_after.saturating_sub(built_before) {
        0 => Ok(()),
        n => refuse(
            "first call",
            format!(
                "{n} builds or loads fell inside the timed samples; build first, and time the first call apart"
            ),
        ),
    }
}

/// Weights prepared on every call.
///
/// # Errors
/// More preparations than the one that is due.
pub fn prepared_once(preparations: u64, calls: u64) -> Guarded {
    if preparations <= 1 {
        return Ok(());
    }
    refuse(
        "prepared once",
        format!("weights were prepared {preparations} times in {calls} calls; once, before timing, is due"),
    )
}

/// Waiting for queued work inside one function's timer: two kinds of work of which one does `work_ratio` times as much must not show
/// the same time.
///
/// # Errors
/// The times agree within 10% though the work differs by more than 1.5 times.
pub fn distinguishable(less_ns: f64, more_ns: f64, work_ratio: f64) -> Guarded {
    let seen = more_ns / less_ns.max(1.0);
    if work_ratio < 1.5 || (seen - 1.0).abs() > 0.1 {
        return Ok(());
    }
    refuse(
        "drained first",
        format!(
            "{work_ratio:.1} times the work shows {seen:.2} times the time: the timer holds a wait for work queued before it; drain the \
             queue first"
        ),
    )
}

/// Another process on the machine, before the run or during it; and swapping and throttling, which degrade both arms alike.
///
/// # Errors
/// A limit was passed.
pub fn undisturbed(traffic: &Traffic, limits: &Limits) -> Guarded {
    let report = during(traffic, limits);
    let failed: Vec<String> =
        report.failures().map(|c| format!("{}: {} ({})", c.name, c.found, c.limit)).collect();
    if failed.is_empty() { Ok(()) } else { refuse("contention", failed.join("; ")) }
}

/// The same input again and again: kernels are compared on inputs that rotate through more than the last cache.
///
/// # Errors
/// The rotated bytes are fewer than twice the cache.
pub fn rotated(bytes_rotated: u64, last_cache_bytes: u64) -> Guarded {
    if last_cache_bytes == 0 || bytes_rotated >= 2 * last_cache_bytes {
        return Ok(());
    }
    refuse(
        "rotating inputs",
        format!(
            "inputs rotate through {:.1} MB and the last cache holds {:.1} MB: what is timed is the cache, and a best of N picks its luckiest \
             moment; rotate through at least twice the cache and take medians",
            bytes_rotated as f64 / 1e6,
            last_cache_bytes as f64 / 1e6
        ),
    )
}

/// One model: a claim is about the models that it was measured on until it held on three.
///
/// # Errors
/// Fewer than three models, or models that do not agree in the effect's sign.
pub fn three_models(effects: &[(&str, f64)]) -> Guarded {
    let names: BTreeSet<&str> = effects.iter().map(|(name, _)| *name).collect();
    let signs: BTreeSet<bool> = effects.iter().map(|(_, effect)| *effect > 0.0).collect();
    let list = || effects.iter().map(|(n, e)| format!("{n} {e:+.3}")).collect::<Vec<_>>().join(", ");
    if signs.len() > 1 {
        return refuse(
            "third model",
            format!(
                "the effect changes its sign between models ({}): it is not a property of the change",
                list()
            ),
        );
    }
    if names.len() >= 3 {
        return Ok(());
    }
    refuse(
        "third model",
        format!(
            "held on {} of the 3 models that a general claim needs ({}); it is about these alone",
            names.len(),
            list()
        ),
    )
}

/// Single shots through noise: an effect inside the noise floor, or of too few pairs.
///
/// # Errors
/// As said.
pub fn beyond_noise(pairs: usize, effect: f64, floor: f64) -> Guarded {
    if pairs < LEAST_PAIRS {
        return refuse(
            "noise floor",
            format!(
                "{pairs} pairs; {LEAST_PAIRS} at least, since the same arm against itself differs as well"
            ),
        );
    }
    if effect.abs() > floor {
        return Ok(());
    }
    refuse(
        "noise floor",
        format!("an effect of {:+.1}% lies inside the noise floor of ±{:.1}%", effect * 100.0, floor * 100.0),
    )
}

/// Work dropped because nobody used it: no figure may exceed what the machine can do.
///
/// # Errors
/// The implied rate is above the ceiling by more than 5%.
pub fn below_ceiling(bytes: u64, elapsed_ns: u64, ceiling_bytes_per_s: f64) -> Guarded {
    let rate = bytes as f64 * 1e9 / elapsed_ns.max(1) as f64;
    if rate <= 1.05 * ceiling_bytes_per_s {
        return Ok(());
    }
    refuse(
        "ceiling",
        format!(
            "{:.1} GB/s is more than the {:.1} GB/s that this machine can read: the work was not done; consume and check its result",
            rate / 1e9,
            ceiling_bytes_per_s / 1e9
        ),
    )
}

/// The result of a timed kernel must be the checked one.
///
/// # Errors
/// It is not within `tolerance` of it.
pub fn result_checked(found: f64, expected: f64, tolerance: f64) -> Guarded {
    if (found - expected).abs() <= tolerance {
        return Ok(());
    }
    refuse(
        "result",
        format!(
            "the timed work gave {found}, expected {expected} within {tolerance}: it was not done as meant"
        ),
    )
}

/// A floor computed from a file's size: the ledger of the plan's operations says what a token streams.
///
/// # Errors
/// The floor's bytes differ from the ledger's by more than 2%.
pub fn by_ledger(floor_bytes: u64, ledger_bytes: u64) -> Guarded {
    let ratio = floor_bytes as f64 / ledger_bytes.max(1) as f64;
    if (ratio - 1.0).abs() <= 0.02 {
        return Ok(());
    }
    refuse(
        "byte ledger",
        format!(
            "the floor counts {floor_bytes} bytes a token and the plan's operations read {ledger_bytes}: a share of the floor would be \
             {ratio:.2} times what it is; a table is gathered and the cache is read as well"
        ),
    )
}

/// Host time added to time that it overlaps: a cost is what its removal saves.
///
/// # Errors
/// Removal saves less than half of what was claimed, or injection of as much costs nothing.
pub fn removal(claimed_share: f64, with_ns: f64, without_ns: f64) -> Guarded {
    let saved = (with_ns - without_ns) / with_ns.max(1.0);
    if saved >= claimed_share / 2.0 {
        return Ok(());
    }
    refuse(
        "removal",
        format!(
            "a cost of {:.0}% was claimed and its removal saves {:.1}%: it overlaps other work",
            claimed_share * 100.0,
            saved * 100.0
        ),
    )
}

/// Where the bytes of a sample were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// In a cache.
    Cache,
    /// In memory.
    Memory,
    /// The sizes say one thing and the control another.
    Unclear,
}

impl Residency {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Residency::Cache => "cache",
            Residency::Memory => "memory",
            Residency::Unclear => "unclear",
        }
    }
}

/// Where a working set lies, by its size and by a control: `rotated_slowdown` is the time with copies that rotate through more than
/// the cache over the time without.
pub fn residency(working_set_bytes: u64, last_cache_bytes: u64, rotated_slowdown: Option<f64>) -> Residency {
    let fits = last_cache_bytes > 0 && working_set_bytes <= last_cache_bytes;
    match (fits, rotated_slowdown) {
        (true, None) => Residency::Unclear,
        (true, Some(slow)) if slow > 1.1 => Residency::Cache,
        // A last cache no faster than memory: the control shows no difference, and the size alone decides nothing.
        (true, Some(_)) => Residency::Unclear,
        (false, Some(slow)) if slow > 1.1 => Residency::Unclear,
        (false, _) => Residency::Memory,
    }
}

/// Weights that fit the cache: a share of the memory floor makes no sense for them.
///
/// # Errors
/// The bytes are not known to come from memory.
pub fn from_memory(residency: Residency, working_set_bytes: u64, last_cache_bytes: u64) -> Guarded {
    if residency == Residency::Memory {
        return Ok(());
    }
    refuse(
        "residency",
        format!(
            "a working set of {:.1} MB against a last cache of {:.1} MB (residency {}): memory bandwidth is not its limit, and a gap to that \
             floor says nothing",
            working_set_bytes as f64 / 1e6,
            last_cache_bytes as f64 / 1e6,
            residency.name()
        ),
    )
}

/// An arm that was not run as asked.
///
/// # Errors
/// A setting that was asked for was applied otherwise, or is not reported.
pub fn applied(asked: &Settings, applied: &Settings) -> Guarded {
    let differ = asked.iter().filter_map(|(key, want)| match applied.get(key) {
        Some(got) if got == want => None,
        Some(got) => Some(format!("{key}: asked {want}, applied {got}")),
        None => Some(format!("{key}: asked {want}, not reported")),
    });
    let differ: Vec<String> = differ.collect();
    if differ.is_empty() { Ok(()) } else { refuse("applied settings", differ.join("; ")) }
}

/// A context that did not arrive.
///
/// # Errors
/// The positions that the cache held differ from those asked for.
pub fn context_arrived(asked: usize, measured: usize) -> Guarded {
    if asked == measured {
        return Ok(());
    }
    refuse(
        "measured context",
        format!("a depth of {asked} was asked for and the cache held {measured} positions"),
    )
}

/// A tiny duration.
///
/// # Errors
/// The sample is shorter than 1000 ticks of its clock, or than 100 µs.
pub fn long_enough(elapsed_ns: u64, resolution_ns: u64) -> Guarded {
    let least = (1000 * resolution_ns).max(100_000);
    if elapsed_ns >= least {
        return Ok(());
    }
    refuse(
        "duration",
        format!(
            "a sample of {elapsed_ns} ns, where {least} ns are the least that this clock can time to 0.1%"
        ),
    )
}

/// Units mixed: a peak that is not a positive, finite number, or one that the measured rates exceed.
///
/// # Errors
/// As said.
pub fn plausible_peak(peak_bytes_per_s: f64, measured_bytes_per_s: f64) -> Guarded {
    if peak_bytes_per_s.is_finite()
        && peak_bytes_per_s > 0.0
        && measured_bytes_per_s <= 1.05 * peak_bytes_per_s
    {
        return Ok(());
    }
    refuse(
        "units",
        format!(
            "a peak of {peak_bytes_per_s} bytes/s against {measured_bytes_per_s:.0} bytes/s measured: a unit was lost; rates here are all in bytes per second"
        ),
    )
}

/// Chunks counted as tokens in a stream.
///
/// # Errors
/// The server reported no usage, or usage and chunks differ and the chunks were counted.
pub fn tokens_by_usage(counted: u64, usage: Option<u64>) -> Guarded {
    match usage {
        Some(usage) if usage == counted => Ok(()),
        Some(usage) => refuse(
            "usage",
            format!(
                "{counted} were counted and the server's usage says {usage} tokens: chunks are not tokens"
            ),
        ),
        None => refuse(
            "usage",
            "the server reports no usage, and chunks are not tokens; ask for `stream_options.include_usage`"
                .into(),
        ),
    }
}

/// The same tokens and the same logits.
///
/// # Errors
/// Tokens differ; or they agree and the fingerprints of the logits do not.
pub fn same_answer(a: &[u32], b: &[u32], a_logits: Option<&str>, b_logits: Option<&str>) -> Guarded {
    if a.len() != b.len() || a != b {
        let first = a.iter().zip(b).take_while(|(a, b)| a == b).count();
        return refuse(
            "same answer",
            format!("the arms' tokens differ from place {first} on ({} and {} tokens)", a.len(), b.len()),
        );
    }
    match (a_logits, b_logits) {
        (Some(a), Some(b)) if a != b => refuse(
            "same answer",
            format!(
                "the tokens are equal and the logits are not ({a} and {b}): compare by teacher-forced KL and label the precision class"
            ),
        ),
        _ => Ok(()),
    }
}

/// Self-made golden values.
///
/// # Errors
/// The expected value was made by the code under test, or nobody says by what.
pub fn independent_oracle(made_by: Option<&str>, under_test: &str) -> Guarded {
    match made_by {
        None => refuse("oracle", "nothing says what made the expected values".into()),
        Some(by) if by == under_test => refuse(
            "oracle",
            format!("the expected values were made by {by}, the code under test: it agrees with itself"),
        ),
        Some(_) => Ok(()),
    }
}

/// A test or detector that never fires: a known slowdown must be found.
///
/// # Errors
/// The interval of b's rate over a's does not lie wholly below 1, or misses what was injected by more than its width.
pub fn sensitive(injected: f64, found: Interval) -> Guarded {
    let expected = 1.0 / (1.0 + injected);
    let room = (found.high - found.low).max(injected / 2.0);
    if found.high < 1.0 && (found.low - room..=found.high + room).contains(&expected) {
        return Ok(());
    }
    refuse(
        "sensitivity",
        format!(
            "a slowdown of {:.0}% was injected and the interval is {:.3} to {:.3} (expected {expected:.3}): this set-up would miss a real one",
            injected * 100.0,
            found.low,
            found.high
        ),
    )
}

/// Blocked arms: the order in which they ran, as arm indices.
///
/// # Errors
/// An arm ran more than twice in a row, or always in the same place of its pair.
pub fn interleaved(order: &[usize]) -> Guarded {
    let longest = order.chunk_by(|a, b| a == b).map(<[usize]>::len).max().unwrap_or(0);
    if longest > 2 {
        return refuse(
            "interleaving",
            format!(
                "one arm ran {longest} times in a row: drift of the machine reads as an effect; run A B B A"
            ),
        );
    }
    let mut pairs = order.chunks_exact(2);
    if order.len() >= 4 && pairs.all(|pair| pair[0] == order[0]) {
        return refuse("interleaving", "one arm always ran first in its pair; flip the order".into());
    }
    Ok(())
}

/// Both arms degraded: the absolute speed against what this machine has shown for the same arm before, or its floor.
///
/// # Errors
/// The rate is below half of the reference.
pub fn absolute(rate: f64, reference: f64) -> Guarded {
    if reference.is_nan() || reference <= 0.0 || rate >= reference / 2.0 {
        return Ok(());
    }
    refuse(
        "absolute speed",
        format!(
            "{rate:.1} a second, where this machine has reached {reference:.1}: parity of two degraded arms says nothing"
        ),
    )
}

/// Synthetic prompts that hit a prefix cache.
///
/// # Errors
/// Positions came from the cache although the prompt was to be computed.
pub fn prompt_computed(prompt_tokens: usize, cached_tokens: usize) -> Guarded {
    if cached_tokens == 0 {
        return Ok(());
    }
    refuse(
        "prefix cache",
        format!(
            "{cached_tokens} of {prompt_tokens} prompt tokens came from a kept prefix; every prompt must be distinct"
        ),
    )
}

/// The first call of a series against the rest: how many times as long it took.
pub fn first_call_ratio(first_ns: f64, rest_ns: &[f64]) -> f64 {
    first_ns / median(rest_ns)
}

#[cfg(test)]
#[path = "guards_tests.rs"]
mod tests;
