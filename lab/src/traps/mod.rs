//! The known ways of being wrong, each as a small program that really produces its false figure on this machine, and the guard that
//! catches it.
//!
//! The programs are wrong on purpose; their guards are those that `ab` and `bench` use.

mod judging;
mod machine;
mod memory;
mod serving;
mod timing;

use engine::Model;

use crate::Result;
use crate::clock::Clock;
use crate::guards::Guarded;

/// What a trap needs that is not always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A model.
    Model,
}

/// A model to be wrong with.
#[derive(Debug)]
pub struct TrapModel {
    /// Loaded with kept prefixes and room for 600 positions.
    pub model: Model,
    /// Its file's size in bytes.
    pub file_bytes: u64,
}

/// What the programs run with.
pub struct Field<'a> {
    /// Time.
    pub clock: &'a dyn Clock,
    /// Size of the last cache in bytes; 0 where unknown.
    pub last_cache_bytes: u64,
    /// Logical CPUs.
    pub cores: usize,
    /// A model, where there is one.
    pub model: Option<TrapModel>,
}

/// A trap that was sprung.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sprung {
    /// The false figure, with the guard off.
    pub shown: String,
    /// What is the case.
    pub truth: String,
    /// What the guard says of it.
    pub guarded: Guarded,
}

impl Sprung {
    fn new(shown: impl Into<String>, truth: impl Into<String>, guarded: Guarded) -> Result<Sprung> {
        Ok(Sprung { shown: shown.into(), truth: truth.into(), guarded })
    }
}

/// A row of the table.
pub struct Trap {
    /// What it is called.
    pub name: &'static str,
    /// What goes wrong.
    pub about: &'static str,
    /// What it once showed.
    pub once: &'static str,
    /// What catches it.
    pub guard: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// The program.
    pub spring: fn(&mut Field<'_>) -> Result<Sprung>,
}

macro_rules! trap {
    ($name:literal, $about:literal, $once:literal, $guard:literal, $needs:ident, $spring:path) => {
        Trap { name: $name, about: $about, once: $once, guard: $guard, needs: Needs::$needs, spring: $spring }
    };
}

/// Every row, in the order of the laboratory's contract.
pub const TRAPS: &[Trap] = &[
    trap!(
        "little-work",
        "too little work per sample",
        "52 GB/s and a 1.83× win; truth 146 GB/s, 0.99×",
        "traffic target, doubling check",
        Nothing,
        timing::little_work
    ),
    trap!(
        "first-call",
        "compiling or reloading inside the timer",
        "0.83–0.92×",
        "build before timing; first-call time apart",
        Nothing,
        timing::first_call
    ),
    trap!(
        "prepare-each-call",
        "preparing weights on every call",
        "0.05×; truth 1.45–1.73×",
        "prepared once, asserted",
        Nothing,
        timing::prepare_each_call
    ),
    trap!(
        "queued-work",
        "waiting for queued work inside one function's timer",
        "\"97.8% of prefill\", the same in both arms",
        "drain first; two arms must be distinguishable",
        Nothing,
        timing::queued_work
    ),
    trap!(
        "other-process",
        "another process on the machine",
        "0.09× and 28×; truth 1.4× and 5.65×",
        "contention detector, before and during",
        Nothing,
        machine::other_process
    ),
    trap!(
        "same-input",
        "the same input again and again, best of N",
        "0.31× to 3.4× for one kernel",
        "rotating inputs, medians",
        Nothing,
        memory::same_input
    ),
    trap!(
        "one-model",
        "one model",
        "−127 MB, then +50, +20",
        "three models; a mechanism",
        Nothing,
        judging::one_model
    ),
    trap!(
        "single-shots",
        "single shots through ±25% noise",
        "0.962×; truth 0.989×",
        "noise floor, repeats",
        Nothing,
        timing::single_shots
    ),
    trap!(
        "dropped-work",
        "work dropped because nobody used it",
        "4.4 TB/s",
        "results consumed and checked; ceilings",
        Nothing,
        memory::dropped_work
    ),
    trap!(
        "file-size-floor",
        "floor computed from the file size",
        "\"97% of the floor\"; truth 64%",
        "byte ledger",
        Model,
        serving::file_size_floor
    ),
    trap!(
        "overlapped-time",
        "host time added to time it overlaps",
        "a 25% tax that removal did not remove",
        "removal and injection arms",
        Nothing,
        timing::overlapped_time
    ),
    trap!(
        "cache-resident",
        "weights that fit the cache",
        "a gap below 1.0",
        "residency detection",
        Nothing,
        memory::cache_resident
    ),
    trap!(
        "wrong-baseline",
        "baseline not the one meant",
        "a false win",
        "applied settings, token equality",
        Nothing,
        judging::wrong_baseline
    ),
    trap!(
        "lost-context",
        "a context flag that did not arrive",
        "8k as fast as 31 tokens",
        "measured context recorded",
        Nothing,
        judging::lost_context
    ),
    trap!("mixed-units", "units mixed", "peak 0.0", "typed quantities", Nothing, judging::mixed_units),
    trap!(
        "chunks-as-tokens",
        "chunks counted as tokens in a stream",
        "5.5 for 25.2 tokens/s",
        "usage counts",
        Nothing,
        serving::chunks_as_tokens
    ),
    trap!(
        "drifting-logits",
        "tokens equal but logits drifting",
        "missed",
        "fingerprint, teacher-forced KL",
        Nothing,
        judging::drifting_logits
    ),
    trap!(
        "own-golden",
        "self-made golden values",
        "\"bit-exact\" to itself",
        "independent oracle, provenance",
        Nothing,
        judging::own_golden
    ),
    trap!(
        "never-fires",
        "a test or detector that never fires",
        "all green",
        "sensitivity run",
        Nothing,
        judging::never_fires
    ),
    trap!(
        "blocked-arms",
        "blocked arms",
        "drift read as effect",
        "interleaving",
        Nothing,
        timing::blocked_arms
    ),
    trap!(
        "both-degraded",
        "swapping, throttling, both arms degraded",
        "parity of two bad numbers",
        "preflight absolutes",
        Nothing,
        machine::both_degraded
    ),
    trap!(
        "tiny-duration",
        "a tiny duration",
        "1,000,000 tokens/s recorded",
        "amortisation guard",
        Nothing,
        timing::tiny_duration
    ),
    trap!(
        "prefix-hit",
        "synthetic prompts that hit a prefix cache",
        "+86%",
        "distinct prompts, cached tokens reported",
        Model,
        serving::prefix_hit
    ),
];

/// The trap of a name.
///
/// # Errors
/// There is none, with the names that there are.
pub fn find(name: &str) -> Result<&'static Trap> {
    TRAPS.iter().find(|trap| trap.name == name).ok_or_else(|| {
        let names: Vec<&str> = TRAPS.iter().map(|trap| trap.name).collect();
        crate::Error::invalid("trap", format!("one of {}", names.join(", ")), format!("{name:?}"))
    })
}

/// The time of `work` in nanoseconds, at least 1.
fn timed<T>(clock: &dyn Clock, work: impl FnOnce() -> T) -> f64 {
    let start = clock.now_ns();
    std::hint::black_box(work());
    (clock.now_ns() - start).max(1) as f64
}

/// The median time of `n` runs.
fn median_of(clock: &dyn Clock, n: usize, mut work: impl FnMut()) -> f64 {
    let times: Vec<f64> = (0..n).map(|_| timed(clock, &mut work)).collect();
    crate::stats::median(&times)
}

/// Reads every word.
fn sum(words: &[u64]) -> u64 {
    // Eight sums, so that the additions do not wait for each other.
    let mut sums = [0u64; 8];
    for eight in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}

/// Words that are all different, written so that their pages are there.
fn words(bytes: usize) -> Vec<u64> {
    (0..bytes as u64 / 8).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

fn gb_per_s(bytes: usize, ns: f64) -> f64 {
    bytes as f64 / ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::System;

    #[test]
    fn every_row_of_the_contract_is_here_once() {
        let mut names: Vec<&str> = TRAPS.iter().map(|t| t.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 23);
        assert!(find("units").is_err_and(|e| e.to_string().contains("mixed-units")));
    }

    /// Traps whose falsehood does not hang on time: they must be caught on every machine.
    #[test]
    fn falsehoods_that_are_not_of_time_are_caught() {
        let clock = System::default();
        for name in [
            "wrong-baseline",
            "lost-context",
            "mixed-units",
            "drifting-logits",
            "own-golden",
            "chunks-as-tokens",
            "tiny-duration",
        ] {
            let mut field = Field { clock: &clock, last_cache_bytes: 32 << 20, cores: 2, model: None };
            let sprung = (find(name).unwrap().spring)(&mut field).unwrap();
            assert!(sprung.guarded.is_err(), "{name}: {sprung:?}");
        }
    }
}
