//! Tokens per second of a ragged batch beside those of one sequence: sequence i of the batch stands at
//! `SHORTEST·2^(i mod STEPS)` positions.
//!
//! usage: cargo bench -p plumb --bench ragged -- MODEL [THREADS [BATCH [SHORTEST [STEPS [FORMAT [ALONE]]]]]]
//!
//! ALONE is the length of the one sequence. Prints every sample in milliseconds, then the medians.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use cpu::{CpuDevice, Isa};
use engine::plan;
use lab::roofline::Driver;
use tensor::kv::KvSettings;

const SAMPLES: usize = 7;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let path = args.first().context("a model")?;
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (threads, batch, shortest, steps) = (number(1, 2)?, number(2, 32)?, number(3, 64)?, number(4, 7)?);
    let kv: KvSettings = args.get(5).map_or(Ok(KvSettings::default()), |f| f.parse())?;
    let alone = number(6, 1024)?;

    let opened = engine::open::open(Path::new(path), None, &mut |_| {})?;
    let kind_of = |name: &str| opened.weights.entry(name).map(|entry| entry.kind);
    let plan = Arc::new(plan::build(&opened.bundle.spec, &kind_of, batch, &kv)?);
    let contexts: Vec<usize> = (0..batch).map(|i| shortest << (i % steps)).collect();
    let longest = contexts.iter().copied().chain([alone]).max().context("a batch")?;
    let device = CpuDevice::new(Isa::best(), threads)?;
    let weights = Arc::clone(&opened.weights);
    weights.touch();
    let mut driver = Driver::new(&device, plan, weights, batch, longest)?;

    // Turns of one and of all, so that both meet the same machine.
    let mut taken = [Vec::new(), Vec::new()];
    for round in 0..=SAMPLES {
        for (taken, contexts) in taken.iter_mut().zip([&[alone][..], &contexts]) {
            for step in driver.steps_at(contexts, if contexts.len() == 1 { 8 } else { 2 }, false)? {
                if round > 0 {
                    taken.push(step.wall_ns as f64 / 1e6);
                }
            }
        }
    }
    let medians = taken.each_ref().map(|samples| {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    });
    let [one, all] = medians.map(|ms| 1000.0 / ms);
    println!("alone at {alone}, ms: {:.2?}", taken[0]);
    println!("batch of {batch}, ms: {:.2?}", taken[1]);
    let total = all * batch as f64;
    println!("{kv}: {one:.2} tokens/s alone, {total:.2} in the batch, {:.2} times", total / one);
    Ok(())
}
