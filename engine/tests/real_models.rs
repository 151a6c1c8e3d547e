//! The models that plumb is used with, as they are published: as accurate as their arithmetic allows, and one answer.
//! Small models on every setting are `goldens.rs` and `invariance.rs`; `cargo xtask accuracy` takes the whole text, and
//! `cargo xtask invariance --full` runs what is ignored here.

mod accuracy;

use std::sync::Arc;

use accuracy::{Golden, MODELS, model_file};
use conformance::{Arm, Case, Cut, Reuse, all_cuts, assert_arms, assert_one_answer, pairwise_cuts};
use cpu::{CpuDevice, Isa};
use engine::prepare::prepare;
use engine::spec::ModelSpec;
use engine::{Feed, LoadOptions, LogitRows, Model};
use tensor::device::{Device, WeightStore};
use tensor::files::WeightFile;
use tensor::reservoir::Reservoir;

/// Positions of the text that a test takes.
const POSITIONS: usize = 64;

/// Most KL divergence over so few positions, in the int8 oracle's. The contract's 1.2 is for the whole text, to which `cargo xtask
/// accuracy` holds: over its 32 blocks of 64 positions the ratio scatters around 1 with a standard deviation of 0.17
/// (smollm2-135m; `accuracy --blocks`), and 4 blocks lie above 1.2 by chance. Three deviations are allowed here.
const MOST_KL: f64 = 1.5;

fn open(name: &str) -> (ModelSpec, Arc<Reservoir>) {
    let file = WeightFile::open(model_file(name)).unwrap();
    let preparation = prepare(&file).unwrap();
    let weights = Arc::new(preparation.in_memory(&file).unwrap());
    (preparation.bundle.spec, weights)
}

/// The contract's accuracy, over the beginning of the text.
fn is_accurate(name: &str) {
    let golden = Golden::read(name);
    let mut comparison = golden.compare(POSITIONS);
    let (spec, weights) = open(name);
    let options = LoadOptions { context: Some(POSITIONS), keep_prefixes: false, ..LoadOptions::default() };
    let mut model = Model::load(&CpuDevice::best().unwrap(), spec, weights, &options).unwrap();
    let mut sequence = model.sequence(&[]);
    let ids = comparison.ids().to_vec();
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids, logits: LogitRows::All }];
    model.step_with(&mut feeds, &mut |_, _, row| comparison.add(row)).unwrap();
    let figures = comparison.figures();
    for bar in figures.bars(golden.int8_kl_first_64, MOST_KL) {
        assert!(bar.holds(), "{name}: {}: {:.3}, at most {}; {figures:?}", bar.what, bar.found, bar.most);
    }
}

/// Token histories of these lengths.
fn case(name: &str, lengths: &[usize], most_rows: usize) -> Case {
    let (spec, weights) = open(name);
    let kind_of = |tensor: &str| weights.get(tensor).map(|(kind, _)| kind);
    let mut plan = engine::plan::build(&spec, &kind_of, 8, &tensor::kv::KvSettings::default()).unwrap();
    // Every position's logits are compared.
    plan.max_logit_rows = plan.max_step_tokens.min(most_rows);
    let vocab = plan.vocab as u32;
    let history = |(i, &n): (usize, &usize)| {
        (0..n as u32).map(|t| (t * t * 17 + 311 * t + 7 * i as u32) % vocab).collect()
    };
    let histories = lengths.iter().enumerate().map(history).collect();
    Case { name: name.into(), plan: Arc::new(plan), weights, histories }
}

fn devices(isas: &[Isa], threads: &[usize]) -> Vec<(String, Box<dyn Device>)> {
    let mut out: Vec<(String, Box<dyn Device>)> = Vec::new();
    for &isa in isas {
        for &n in threads {
            out.push((format!("{} x{n}", isa.name()), Box::new(CpuDevice::new(isa, n).unwrap())));
        }
    }
    out
}

/// The tables with vector kernels.
fn vector_tables() -> Vec<Isa> {
    Isa::supported().into_iter().filter(|&isa| isa != Isa::Portable).collect()
}

/// An arm: table, threads, batch, chunk, and whether a prefix is reused, which ends inside a tile.
type Row = (usize, usize, usize, usize, bool);

/// Every pair of settings of tables, threads, batches, chunks and reuse meets in one of these twelve.
fn pairwise(tables: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (i, batch) in [1, 2, 5, 8].into_iter().enumerate() {
        for (j, chunk) in [1, 7, 64].into_iter().enumerate() {
            rows.push(((i + 2 * j) % 3 % tables, 1 + (i + j) % 3, batch, chunk, (i + j) % 2 == 1));
        }
    }
    rows
}

#[test]
fn every_pair_of_settings_meets() {
    for tables in 1..=3 {
        let rows: Vec<[usize; 5]> =
            pairwise(tables).into_iter().map(|(t, n, b, c, r)| [t, n, b, c, usize::from(r)]).collect();
        let values = |k: usize| rows.iter().map(|r| r[k]).collect::<std::collections::BTreeSet<_>>();
        for (k, l) in (0..5).flat_map(|k| (0..k).map(move |l| (k, l))) {
            for (x, y) in values(k).into_iter().flat_map(|x| values(l).into_iter().map(move |y| (x, y))) {
                assert!(
                    rows.iter().any(|r| (r[k], r[l]) == (x, y)),
                    "{tables} tables: {k}={x} without {l}={y}"
                );
            }
        }
    }
}

/// A pairwise selection on the tables with vector kernels; the portable table, a hundred times slower, on six tokens.
fn gives_one_answer(name: &str, lengths: [usize; 8]) {
    let case = case(name, &lengths, 128);
    let tables = vector_tables();
    let best = CpuDevice::new(Isa::best(), 2).unwrap();
    let whole = Cut { batch: 1, chunk: 512, reuse: Reuse::None };
    let reference = Arm { name: "best x2", device: &best, cut: whole };
    if !tables.is_empty() {
        let devices = devices(&tables, &[1, 2, 3]);
        let arms: Vec<Arm<'_>> = pairwise(tables.len())
            .into_iter()
            .map(|(table, threads, batch, chunk, reuse)| {
                let (name, device) = &devices[table * 3 + threads - 1];
                let reuse = if reuse { Reuse::Prefix(13) } else { Reuse::None };
                Arm { name, device: &**device, cut: Cut { batch, chunk, reuse } }
            })
            .collect();
        assert_arms(&case, reference, &arms);
    }
    let short = Case { histories: vec![case.histories[0][..6].to_vec()], ..case };
    let portable = CpuDevice::new(Isa::Portable, 2).unwrap();
    let cut = Cut { batch: 1, chunk: 4, reuse: Reuse::None };
    assert_arms(&short, reference, &[Arm { name: "portable x2", device: &portable, cut }]);
}

/// Everything, with histories around tile boundaries and one of 600 tokens.
fn gives_one_answer_at_length(name: &str, cuts: &[Cut]) {
    let case = case(name, &[131, 64, 1, 90, 65, 600, 17, 128], 512);
    let mut tables = vector_tables();
    tables.reverse();
    if !tables.is_empty() {
        assert_one_answer(&case, &devices(&tables, &[1, 2, 3]), cuts);
    }
    let short = Case { histories: vec![case.histories[0][..70].to_vec()], ..case };
    let portable = CpuDevice::new(Isa::Portable, cpu::default_threads()).unwrap();
    let cut = Cut { batch: 1, chunk: 64, reuse: Reuse::None };
    let best = CpuDevice::best().unwrap();
    let reference = Arm { name: "best", device: &best, cut: Cut { chunk: 1, ..cut } };
    assert_arms(&short, reference, &[Arm { name: "portable", device: &portable, cut }]);
}

macro_rules! accurate {
    ($($test:ident: $model:literal;)*) => {
        $(#[test] fn $test() { is_accurate($model); })*

        #[test]
        fn every_golden_is_tested() {
            let tested = [$($model),*];
            for model in MODELS {
                let is_golden = accuracy::golden_folder().join(format!("{model}.json")).exists();
                assert_eq!(is_golden, tested.contains(&model), "{model}: goldens without a test, or the reverse");
            }
        }
    };
}

accurate! {
    smollm2_is_as_accurate_as_its_arithmetic: "smollm2-135m";
    gemma3_is_as_accurate_as_its_arithmetic: "gemma3-270m";
    qwen2_5_0_5b_is_as_accurate_as_its_arithmetic: "qwen2.5-coder-0.5b";
    qwen2_5_1_5b_is_as_accurate_as_its_arithmetic: "qwen2.5-coder-1.5b";
}

#[test]
fn smollm2_gives_one_answer() {
    gives_one_answer("smollm2-135m", [40, 24, 17, 5, 3, 2, 1, 1]);
}

#[test]
fn gemma3_gives_one_answer() {
    gives_one_answer("gemma3-270m", [30, 17, 5, 3, 2, 1, 1, 1]);
}

#[test]
fn qwen_half_gives_one_answer() {
    gives_one_answer("qwen2.5-coder-0.5b", [15, 5, 2, 1, 1, 1, 1, 1]);
}

#[test]
fn qwen_large_gives_one_answer() {
    gives_one_answer("qwen2.5-coder-1.5b", [15, 3, 1, 1, 1, 1, 1, 1]);
}

/// Ten tiles of cache: in two steps on three threads, and tile by tile on one after a prefix that ends inside the second.
#[test]
fn smollm2_gives_one_answer_over_600_tokens() {
    let case = case("smollm2-135m", &[600], 512);
    let (three, one) = (CpuDevice::new(Isa::best(), 3).unwrap(), CpuDevice::new(Isa::best(), 1).unwrap());
    let cut = Cut { batch: 1, chunk: 512, reuse: Reuse::None };
    let reference = Arm { name: "best x3", device: &three, cut };
    let cut = Cut { batch: 1, chunk: 64, reuse: Reuse::Prefix(77) };
    assert_arms(&case, reference, &[Arm { name: "best x1", device: &one, cut }]);
}

#[test]
#[ignore = "takes long; `cargo xtask invariance --full` runs it"]
fn smollm2_at_length() {
    gives_one_answer_at_length("smollm2-135m", &all_cuts());
}

#[test]
#[ignore = "takes long; `cargo xtask invariance --full` runs it"]
fn gemma3_at_length() {
    gives_one_answer_at_length("gemma3-270m", &all_cuts());
}

#[test]
#[ignore = "takes long; `cargo xtask invariance --full` runs it"]
fn qwen_half_at_length() {
    gives_one_answer_at_length("qwen2.5-coder-0.5b", &pairwise_cuts());
}

#[test]
#[ignore = "takes long; `cargo xtask invariance --full` runs it"]
fn qwen_large_at_length() {
    gives_one_answer_at_length("qwen2.5-coder-1.5b", &pairwise_cuts());
}
