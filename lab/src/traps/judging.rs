//! Falsehoods of what was compared with what, and of who says what is right.

use std::collections::HashMap;

use super::{Field, Sprung, gb_per_s, median_of, sum, timed, words};
use crate::Result;
use crate::guards;
use crate::results::Settings;
use crate::stats::{Random, summarise};
use engine::Fingerprint;

pub(super) fn one_model(field: &mut Field<'_>) -> Result<Sprung> {
    // A hash table against a scan, for vocabularies of three sizes.
    let mut random = Random::new(7);
    let mut effects = Vec::new();
    for (name, size) in [("model of 4", 4usize), ("model of 64", 64), ("model of 4096", 4096)] {
        let list: Vec<u64> = (0..size).map(|_| random.word()).collect();
        let table: HashMap<u64, usize> = list.iter().enumerate().map(|(i, &w)| (w, i)).collect();
        let asked: Vec<u64> = (0..2000).map(|_| list[random.below(size)]).collect();
        let scan = median_of(field.clock, 5, || {
            for word in &asked {
                std::hint::black_box(list.iter().position(|w| w == word));
            }
        });
        let hash = median_of(field.clock, 5, || {
            for word in &asked {
                std::hint::black_box(table.get(word));
            }
        });
        effects.push((name, scan / hash - 1.0));
    }
    let shown: Vec<String> = effects.iter().map(|(name, e)| format!("{:.2}× on a {name}", e + 1.0)).collect();
    Sprung::new(
        format!("a table is {} as fast as a scan", shown[0]),
        shown[1..].join(", "),
        guards::three_models(&effects[..1]).and_then(|()| guards::three_models(&effects)),
    )
}

pub(super) fn wrong_baseline(field: &mut Field<'_>) -> Result<Sprung> {
    // An engine that takes a setting it does not know for its slowest path, without a word.
    let run = |decode: &str, data: &[u64]| -> (u64, &'static str) {
        match decode {
            "words" => (sum(data), "words"),
            _ => (data.iter().flat_map(|w| w.to_le_bytes()).map(u64::from).sum(), "bytes"),
        }
    };
    let data = words(4 << 20);
    let time = |decode: &str| {
        median_of(field.clock, 5, || {
            std::hint::black_box(run(decode, std::hint::black_box(&data)));
        })
    };
    let (baseline, new) = (time("word"), time("words"));
    let setting = |value: &str| Settings::from([("decode".to_owned(), value.to_owned())]);
    let applied = run("word", &data[..8]).1;
    Sprung::new(
        format!("a win of {:.2}× over the baseline decode=word", baseline / new),
        format!(
            "{:.2}×: the baseline was meant to be decode=words and ran as decode={applied}",
            time("words") / new
        ),
        guards::applied(&setting("words"), &setting(applied)),
    )
}

pub(super) fn lost_context(field: &mut Field<'_>) -> Result<Sprung> {
    // A cache whose size comes from a default, because the flag was read under another name.
    struct Cache(Vec<u64>);
    let open =
        |flags: &HashMap<&str, usize>| Cache(words(flags.get("context").copied().unwrap_or(31) * 1024));
    let attend = |cache: &Cache| {
        median_of(field.clock, 9, || {
            std::hint::black_box(sum(std::hint::black_box(&cache.0)));
        })
    };
    let asked = 8192;
    let lost = open(&HashMap::from([("ctx", asked)]));
    let arrived = open(&HashMap::from([("context", asked)]));
    let short = open(&HashMap::from([("context", 31)]));
    Sprung::new(
        format!(
            "{:.1} µs at a context of 8192, as fast as the {:.1} µs at 31",
            attend(&lost) / 1e3,
            attend(&short) / 1e3
        ),
        format!("{:.1} µs at 8192, when the flag arrives", attend(&arrived) / 1e3),
        guards::context_arrived(asked, lost.0.len() * 8 / 1024),
    )
}

pub(super) fn mixed_units(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(64 << 20);
    let bytes = data.len() * 8;
    let ns = median_of(field.clock, 3, || {
        std::hint::black_box(sum(&data));
    });
    // Gigabytes by milliseconds, in whole numbers.
    let peak = (bytes as u64 / 1_000_000_000) / (ns as u64 / 1_000_000).max(1);
    let truth = gb_per_s(bytes, ns) * 1e9;
    Sprung::new(
        format!("peak {:.1}", peak as f64),
        format!("{:.1} GB/s", truth / 1e9),
        guards::plausible_peak(peak as f64, truth),
    )
}

/// A language model of one matrix: the logits of the next token are the row of the last.
fn greedy(matrix: &[f32], side: usize, steps: usize) -> (Vec<u32>, String) {
    let (mut token, mut tokens, mut hash) = (0usize, Vec::new(), Fingerprint::new());
    for step in 0..steps {
        let row: Vec<f32> = (0..side).map(|i| matrix[((token + step) % side) * side + i]).collect();
        hash.update(&row);
        token = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i);
        tokens.push(token as u32);
    }
    (tokens, hash.to_string())
}

pub(super) fn drifting_logits(_: &mut Field<'_>) -> Result<Sprung> {
    const SIDE: usize = 64;
    let mut random = Random::new(3);
    let exact: Vec<f32> = (0..SIDE * SIDE).map(|_| random.word() as f32 / u64::MAX as f32).collect();
    // The lowest eleven bits of each weight are lost, as in a narrower format.
    let drifted: Vec<f32> = exact.iter().map(|w| f32::from_bits(w.to_bits() & !0x7ff)).collect();
    let ((tokens_a, hash_a), (tokens_b, hash_b)) = (greedy(&exact, SIDE, 32), greedy(&drifted, SIDE, 32));
    let equal = tokens_a.iter().zip(&tokens_b).filter(|(a, b)| a == b).count();
    let worst = exact.iter().zip(&drifted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    Sprung::new(
        format!("{equal} of 32 greedy tokens equal: the same answer"),
        format!("logits differ by up to {worst:.1e}"),
        guards::same_answer(&tokens_a, &tokens_b, Some(&hash_a), Some(&hash_b)),
    )
}

pub(super) fn own_golden(_: &mut Field<'_>) -> Result<Sprung> {
    // A mean square that forgets the last element.
    let norm = |x: &[f64]| (x[..x.len() - 1].iter().map(|v| v * v).sum::<f64>() / x.len() as f64).sqrt();
    let cases: Vec<Vec<f64>> = (2..20usize).map(|n| (1..=n).map(|i| i as f64).collect()).collect();
    let golden: Vec<f64> = cases.iter().map(|x| norm(x)).collect();
    let exact = cases.iter().zip(&golden).filter(|(x, want)| norm(x).to_bits() == want.to_bits()).count();
    // The mean square of 1 to n is (n + 1)(2n + 1) / 6.
    let right = |x: &[f64]| ((x.len() + 1) as f64 * (2 * x.len() + 1) as f64 / 6.0).sqrt();
    let wrong = cases.iter().filter(|x| (norm(x) - right(x)).abs() > 1e-9).count();
    Sprung::new(
        format!("bit-exact in {exact} of {} cases", cases.len()),
        format!("wrong in {wrong} of {}, by the closed form", cases.len()),
        guards::independent_oracle(Some("the function itself"), "the function itself"),
    )
}

pub(super) fn never_fires(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(2 << 20);
    let shot = || {
        timed(field.clock, || {
            for _ in 0..4 {
                std::hint::black_box(sum(std::hint::black_box(&data)));
            }
        })
    };
    let pairs: Vec<(f64, f64)> = (0..60)
        .map(|_| {
            let a = shot();
            let start = field.clock.now_ns();
            let b = shot();
            field.clock.spin_ns((b * 0.05) as u64);
            (a, (field.clock.now_ns() - start) as f64)
        })
        .collect();
    // The detector is handed A for both: a slip of one letter.
    let ratio = |a: f64, b: f64| a / b;
    let blind: Vec<f64> = pairs.iter().map(|&(a, _)| ratio(a, a)).collect();
    let seeing: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    let (blind, seeing) = (summarise(&blind, 1), summarise(&seeing, 1));
    Sprung::new(
        format!("all green: {:.3}× ({:.3} to {:.3})", blind.ratio, blind.interval.low, blind.interval.high),
        format!("{:.3}×: B was slowed down by 5%", seeing.ratio),
        guards::sensitive(0.05, blind.interval),
    )
}
