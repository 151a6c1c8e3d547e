//! Runs the accuracy text through real models and prints, for each, a row of the table in `docs/accuracy.md`.
//! `cargo xtask accuracy` starts it and writes the table.
//!
//! usage: accuracy [--blocks] MODEL…
//!
//! Fails if a bar of the numerics contract is missed. `--blocks` also prints, to standard error, the KL divergence over
//! the text's beginnings and blocks, which says how much a shorter test would scatter, and the worst positions. `PLUMB_ISA` picks a kernel
//! table; the figures, and the fingerprint over all logits, are the same with each.

#[path = "../tests/accuracy/mod.rs"]
mod accuracy;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use accuracy::{Golden, model_file};
use cpu::{CpuDevice, Isa};
use engine::prepare::prepare;
use engine::{Feed, Fingerprint, LoadOptions, LogitRows, Model};
use tensor::files::WeightFile;

fn main() -> ExitCode {
    let (flags, models): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let mut passed = true;
    for model in &models {
        passed &= measure(model, flags.iter().any(|f| f == "--blocks"));
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a model's row; false if a bar is missed.
fn measure(name: &str, blocks: bool) -> bool {
    let golden = Golden::read(name);
    let started = Instant::now();
    let file = WeightFile::open(model_file(name)).expect("a weight file");
    let preparation = prepare(&file).expect("a model");
    let weights = Arc::new(preparation.in_memory(&file).expect("memory for the weights"));
    let isa = std::env::var("PLUMB_ISA").map_or(Isa::best(), |n| Isa::from_name(&n).expect("a kernel table"));
    let device = CpuDevice::new(isa, cpu::default_threads()).expect("a device");
    let mut comparison = golden.compare(golden.ids.len());
    let options =
        LoadOptions { context: Some(golden.ids.len()), keep_prefixes: false, ..LoadOptions::default() };
    let mut model = Model::load(&device, preparation.bundle.spec, weights, &options).expect("it loads");
    let mut sequence = model.sequence(&[]);
    let mut fingerprint = Fingerprint::new();
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &golden.ids, logits: LogitRows::All }];
    let sink = &mut |_: usize, _: usize, row: &[f32]| {
        fingerprint.update(row);
        comparison.add(row);
    };
    model.step_with(&mut feeds, sink).expect("it steps");
    eprintln!(
        "{name}: {} tokens, {}, {:.0} s",
        golden.ids.len(),
        isa.name(),
        started.elapsed().as_secs_f64()
    );

    let figures = comparison.figures();
    let bars = figures.bars(golden.int8_kl, 1.2);
    println!(
        "| {name} | {:.6} | {:.6} ± {:.6} | {:.3} | {:.6} | {:.3} | {:+.5} ± {:.5} | {:.1}% | `{fingerprint}` |",
        golden.int8_kl,
        figures.kl,
        figures.kl_error,
        bars[0].found,
        figures.kl_int8,
        bars[1].found,
        figures.difference,
        figures.difference_error,
        figures.same_best * 100.0,
    );
    for bar in bars.iter().filter(|bar| !bar.holds()) {
        eprintln!("{name}: {}: {:.3}, at most {}", bar.what, bar.found, bar.most);
    }
    if blocks {
        let ratio = |pairs: &[(f64, f64)]| {
            pairs.iter().map(|p| p.0).sum::<f64>() / pairs.iter().map(|p| p.1).sum::<f64>()
        };
        let pairs = comparison.pairs();
        for first in [64, 128, 256, 512, 1024, 2048] {
            eprintln!("{name}: first {first} positions: {:.3}", ratio(&pairs[..first.min(pairs.len())]));
        }
        let mut worst: Vec<usize> = (0..pairs.len()).collect();
        worst.sort_by(|&a, &b| pairs[b].0.total_cmp(&pairs[a].0));
        for &position in worst.iter().take(8) {
            let (ours, int8) = pairs[position];
            eprintln!("{name}: position {position}: {ours:.4}, the int8 oracle {int8:.4}");
        }
        for length in [64, 256] {
            let ratios: Vec<String> = pairs.chunks(length).map(|c| format!("{:.2}", ratio(c))).collect();
            eprintln!("{name}: blocks of {length}: {}", ratios.join(" "));
        }
    }
    bars.iter().all(accuracy::Bar::holds)
}
