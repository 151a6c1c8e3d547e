//! Speed of whole steps on the CPU: a prompt in chunks, and generation at a depth, one sequence or several.
//!
//! usage: cargo bench -p plumb-engine --bench steps -- MODEL.{gguf,plumb} [THREADS [PROMPT [DEPTH [TOKENS [BATCH]]]]]

use std::sync::Arc;
use std::time::Instant;

use cpu::{CpuDevice, Isa};
use engine::prepare::prepare;
use engine::{Feed, LoadOptions, LogitRows, Model};
use tensor::files::WeightFile;
use tensor::reservoir::Reservoir;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let path = args.first().expect("a model");
    let number = |i: usize, default: usize| args.get(i).map_or(default, |a| a.parse().expect("a number"));
    let (threads, prompt, depth, tokens, batch) =
        (number(1, 2), number(2, 512), number(3, 512), number(4, 128), number(5, 1));
    let isa = std::env::var("PLUMB_ISA").map_or(Isa::best(), |n| Isa::from_name(&n).expect("a table"));
    let (weights, spec) = if path.ends_with(".plumb") {
        let weights = Reservoir::open(path).expect("a pack");
        let bundle: engine::prepare::ModelBundle = weights.model().expect("a model");
        (weights, bundle.spec)
    } else {
        let file = WeightFile::open(path).expect("a weight file");
        let preparation = prepare(&file).expect("a model");
        let pack = std::path::PathBuf::from(format!("{path}.plumb"));
        let source = tensor::reservoir::Source::of(file.paths()).expect("a source");
        let builder = preparation.builder(source).expect("a layout");
        let mut fill = |part, out: &mut [u8]| preparation.fill(&file, part, out);
        let written = builder.write_file(&pack, &mut fill, &mut |_, _| {}).expect("a pack");
        drop(written);
        (Reservoir::open(&pack).expect("a pack"), preparation.bundle.spec)
    };
    weights.touch();
    println!(
        "{path}: {:.1} MB, {:.1} MB in huge pages, {}, {threads} threads",
        weights.len_bytes() as f64 / 1e6,
        weights.huge_page_bytes() as f64 / 1e6,
        isa.name()
    );
    let device = CpuDevice::new(isa, threads).expect("a device");
    let context = depth.max(prompt) + tokens + 1;
    let options =
        LoadOptions { context: Some(context), sequences: batch, keep_prefixes: false, ..Default::default() };
    let mut model = Model::load(&device, spec, Arc::new(weights), &options).expect("loads");
    let vocab = model.plan().vocab;
    let ids: Vec<u32> = (0..context).map(|i| ((i * 7919 + 13) % 20000) as u32).collect();
    for round in 0..3 {
        let mut logits = vec![0.0; vocab];
        if prompt > 0 {
            let mut sequence = model.sequence(&[]);
            let t = Instant::now();
            let mut feeds =
                [Feed { sequence: &mut sequence, tokens: &ids[..prompt], logits: LogitRows::Last }];
            model.step(&mut feeds, &mut logits).expect("steps");
            println!(
                "round {round}: prompt of {prompt}: {:.1} tokens/s",
                prompt as f64 / t.elapsed().as_secs_f64()
            );
        }
        let mut sequences: Vec<_> = (0..batch).map(|_| model.sequence(&[])).collect();
        for s in &mut sequences {
            let mut feeds = [Feed { sequence: s, tokens: &ids[..depth], logits: LogitRows::None }];
            model.step(&mut feeds, &mut []).expect("steps");
        }
        let mut logits = vec![0.0; batch * vocab];
        let t = Instant::now();
        for i in 0..tokens {
            let token = &ids[depth + i..depth + i + 1];
            let mut feeds: Vec<_> = sequences
                .iter_mut()
                .map(|sequence| Feed { sequence, tokens: token, logits: LogitRows::Last })
                .collect();
            model.step(&mut feeds, &mut logits).expect("steps");
        }
        let seconds = t.elapsed().as_secs_f64();
        println!(
            "round {round}: generation at {depth}, batch {batch}: {:.2} tokens/s, {:.3} ms a step, {:.1} GB/s of weights",
            (tokens * batch) as f64 / seconds,
            seconds / tokens as f64 * 1e3,
            model.plan().work(1, depth, 1).bytes_read.weights as f64 * tokens as f64 / seconds / 1e9,
        );
    }
}
