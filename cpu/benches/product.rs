//! Speed of the weight products at a shape, through the whole executor: GB/s of weights, and GMAC/s.
//!
//! usage: cargo bench -p plumb-cpu --bench product -- [ENCODING ROWS COLS COLUMNS THREADS ISA]...

use std::sync::Arc;
use std::time::Instant;

use cpu::{CpuDevice, Isa};
use tensor::Encoding;
use tensor::device::{Device, LogitRows, Span, WeightStore};
use tensor::kv::KvLayout;
use tensor::op::{Buffer, BufferId, Epilogue, Kind, Op, Part, Plan, Rows, Weight, WeightId};
use tensor::panels::matrix_bytes;

struct Store(Vec<(String, Kind, memmap2::MmapMut)>);

impl WeightStore for Store {
    fn get(&self, name: &str) -> Option<(Kind, &[u8])> {
        self.0.iter().find(|(n, ..)| n == name).map(|(_, k, b)| (*k, &b[..]))
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let encoding = |name: &str| Encoding::ALL.into_iter().find(|e| e.name() == name).expect("an encoding");
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.into());
    let number = |i: usize, default: &str| arg(i, default).parse::<usize>().expect("a number");
    let encodings: Vec<_> = match arg(0, "Q4_1").as_str() {
        "all" => Encoding::ALL.to_vec(),
        name => vec![encoding(name)],
    };
    let (rows, cols, columns) = (number(1, "1536"), number(2, "1536"), number(3, "1"));
    let (threads, copies) = (number(4, "2"), number(6, "64"));
    let isa = args.get(5).map_or(Isa::best(), |n| Isa::from_name(n).expect("a kernel table"));
    for e in encodings {
        // Weights rotate through several copies, so that they come from memory.
        let kind = Kind::Panels { encoding: e, rows, cols };
        let bytes = matrix_bytes(e, rows, cols);
        let mut random = 1u64;
        let stored = (0..copies)
            .map(|i| {
                let mut b = memmap2::MmapMut::map_anon(bytes).expect("memory");
                #[cfg(target_os = "linux")]
                let _ = b.advise(memmap2::Advice::HugePage);
                for x in b.iter_mut() {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // Small bytes only: no scale is an infinity.
                    *x = (random >> 33) as u8 & 0x3b;
                }
                (i.to_string(), kind, b)
            })
            .collect::<Vec<_>>();
        let weights = (0..copies).map(|i| Weight { name: i.to_string(), kind }).collect();
        let src = BufferId(0);
        let buffers = vec![
            Buffer { name: "x", width: cols, rows: Rows::Tokens },
            Buffer { name: "y", width: rows, rows: Rows::Tokens },
            Buffer { name: "logits", width: rows, rows: Rows::Tokens },
        ];
        let part = |i| vec![Part { weight: WeightId(i as u32), bias: None, dst_col: 0 }];
        let ops = (0..copies)
            .map(|i| Op::Linear { src, norm: None, parts: part(i), then: Epilogue::Store, dst: BufferId(1) })
            .collect();
        let plan = Plan {
            ops,
            buffers,
            weights,
            ropes: vec![],
            kv: KvLayout::default(),
            logits: BufferId(2),
            vocab: rows,
            max_step_tokens: columns,
            max_logit_rows: 0,
        };
        let device = CpuDevice::new(isa, threads).expect("a device");
        let mut run = device.load(Arc::new(plan), Arc::new(Store(stored)), &[]).expect("loads");
        let tokens = vec![0; columns];
        let step = [Span { tokens: &tokens, start: 0, tables: &[], logits: LogitRows::None }];
        let mut samples = Vec::new();
        for _ in 0..7 {
            let t = Instant::now();
            run.run(&step, &mut []).expect("runs");
            samples.push(t.elapsed().as_secs_f64());
        }
        samples.sort_by(f64::total_cmp);
        let median = samples[samples.len() / 2];
        println!(
            "{:8} {rows}x{cols} columns {columns} threads {threads} {}: {:7.2} GB/s {:7.1} GMAC/s  ({:.3} ms, {:.3}..{:.3})",
            e.name(),
            isa.name(),
            (bytes * copies) as f64 / median / 1e9,
            (rows * cols * columns * copies) as f64 / median / 1e9,
            median * 1e3,
            samples[0] * 1e3,
            samples[6] * 1e3,
        );
    }
}
