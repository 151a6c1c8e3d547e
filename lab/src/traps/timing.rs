//! Falsehoods of what stands inside a timer, and of how often it is read.

use std::collections::BTreeMap;
use std::sync::mpsc;

use super::{Field, Sprung, gb_per_s, median_of, sum, timed, words};
use crate::Result;
use crate::clock::Clock;
use crate::guards;
use crate::stats::{median, summarise};

type Job = Box<dyn FnOnce() + Send>;

/// A worker that does jobs in order, as a device does.
struct Queue {
    jobs: mpsc::Sender<(Job, mpsc::Sender<()>)>,
}

impl Queue {
    fn start() -> Queue {
        let (jobs, taken) = mpsc::channel::<(Job, mpsc::Sender<()>)>();
        std::thread::spawn(move || {
            for (job, done) in taken {
                job();
                // Nobody may be waiting any more.
                let _ = done.send(());
            }
        });
        Queue { jobs }
    }

    fn submit(&self, job: impl FnOnce() + Send + 'static) -> mpsc::Receiver<()> {
        let (done, wait) = mpsc::channel();
        // The worker ends only when this sender does.
        let _ = self.jobs.send((Box::new(job), done));
        wait
    }

    fn run(&self, job: impl FnOnce() + Send + 'static) {
        let _ = self.submit(job).recv();
    }
}

fn busy(rounds: u64) -> u64 {
    (0..rounds)
        .fold(1u64, |x, i| std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i)))
}

pub(super) fn little_work(field: &mut Field<'_>) -> Result<Sprung> {
    let data = std::sync::Arc::new(words(256 << 20));
    let queue = Queue::start();
    let read = |clock: &dyn Clock, bytes: usize, n: usize| {
        let mut at = 0;
        median_of(clock, n, || {
            let data = std::sync::Arc::clone(&data);
            at = (at + bytes / 8) % (data.len() - bytes / 8 + 1);
            queue.run(move || {
                std::hint::black_box(sum(&data[at..at + bytes / 8]));
            });
        })
    };
    let small = 64 << 10;
    let (once, doubled) = (read(field.clock, small, 101), read(field.clock, 2 * small, 101));
    let large = 128 << 20;
    let truth = gb_per_s(large, read(field.clock, large, 5));
    Sprung::new(
        format!("{:.2} GB/s, from samples of 64 KiB handed to a worker", gb_per_s(small, once)),
        format!("{truth:.2} GB/s, from samples of 128 MiB"),
        guards::amortised(once, doubled),
    )
}

pub(super) fn first_call(field: &mut Field<'_>) -> Result<Sprung> {
    let text = "prompt 12 tokens 345 seconds 6.7 ".repeat(60);
    let mut built = 0;
    let mut compiled: Option<regex::Regex> = None;
    let before = built;
    let mut sample = |compiled: &mut Option<regex::Regex>| {
        timed(field.clock, || {
            let regex = match compiled {
                Some(regex) => regex,
                None => {
                    built += 1;
                    // The pattern is fixed and known to be one.
                    compiled.insert(
                        regex::Regex::new(r"(\w+) (\d+(?:\.\d+)?)").unwrap_or_else(|_| unreachable!()),
                    )
                }
            };
            regex.find_iter(&text).count()
        })
    };
    let times: Vec<f64> = (0..5).map(|_| sample(&mut compiled)).collect();
    let mean = times.iter().sum::<f64>() / 5.0;
    let rest = median(&times[1..]);
    Sprung::new(
        format!("{:.2}× the speed of what was built before, by the mean of five samples", rest / mean),
        format!(
            "1.00×: it is the same code; its first call took {:.1} times as long",
            guards::first_call_ratio(times[0], &times[1..])
        ),
        guards::nothing_built(before, built),
    )
}

pub(super) fn prepare_each_call(field: &mut Field<'_>) -> Result<Sprung> {
    const SIDE: usize = 512;
    let weights: Vec<f32> = (0..SIDE * SIDE).map(|i| (i % 251) as f32 / 251.0).collect();
    let x: Vec<f32> = (0..SIDE).map(|i| (i % 17) as f32).collect();
    let preparations = std::cell::Cell::new(0);
    let pack = || -> Vec<f32> {
        preparations.set(preparations.get() + 1);
        (0..SIDE * SIDE).map(|i| weights[(i % SIDE) * SIDE + i / SIDE]).collect()
    };
    // Rows by dot products, and columns of the packed matrix by scaled additions, which need no reduction.
    let plain = |out: &mut [f32]| {
        for (o, row) in out.iter_mut().zip(weights.chunks_exact(SIDE)) {
            *o = row.iter().zip(&x).map(|(w, x)| w * x).sum();
        }
    };
    let by_columns = |packed: &[f32], out: &mut [f32]| {
        out.fill(0.0);
        for (column, &x) in packed.chunks_exact(SIDE).zip(&x) {
            for (o, w) in out.iter_mut().zip(column) {
                *o += w * x;
            }
        }
    };
    let mut out = vec![0.0; SIDE];
    let base = median_of(field.clock, 15, || {
        plain(&mut out);
        std::hint::black_box(&out);
    });
    let each = median_of(field.clock, 15, || {
        let packed = pack();
        by_columns(&packed, &mut out);
        std::hint::black_box(&out);
    });
    let calls = preparations.get();
    let packed = pack();
    let once = median_of(field.clock, 15, || {
        by_columns(&packed, &mut out);
        std::hint::black_box(&out);
    });
    Sprung::new(
        format!("{:.2}× for packed weights", base / each),
        format!("{:.2}×, packed once", base / once),
        guards::prepared_once(calls, 15),
    )
}

pub(super) fn queued_work(field: &mut Field<'_>) -> Result<Sprung> {
    let queue = Queue::start();
    // A long job stands in the queue when the function's timer starts; the function's own work is 1 or 4.
    let of = |work: u64| {
        median_of(field.clock, 5, || {
            // Its end is waited for by whoever comes next.
            drop(queue.submit(|| {
                busy(20_000_000);
            }));
            queue.run(move || {
                busy(work * 50_000);
            });
        })
    };
    let (less, more) = (of(1), of(4));
    let alone = |clock: &dyn Clock, work: u64| {
        median_of(clock, 9, || {
            queue.run(move || {
                busy(work * 50_000);
            });
        })
    };
    let (true_less, true_more) = (alone(field.clock, 1), alone(field.clock, 4));
    Sprung::new(
        format!("the function takes {:.2} ms, and {:.2} ms with four times its work", less / 1e6, more / 1e6),
        format!("{:.3} ms and {:.3} ms, with the queue drained first", true_less / 1e6, true_more / 1e6),
        guards::distinguishable(less, more, 4.0),
    )
}

pub(super) fn single_shots(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(4 << 20);
    let shot = || timed(field.clock, || sum(&data));
    // The same work twice, shown once: the pair that looks most like a result, as a person would keep it.
    let ratios: Vec<f64> = (0..200).map(|_| shot() / shot()).collect();
    let shown = ratios[..10]
        .iter()
        .copied()
        .fold(1.0, |far: f64, r| if (r - 1.0).abs() > (far - 1.0).abs() { r } else { far });
    let summary = summarise(&ratios, 1);
    Sprung::new(
        format!("{shown:.3}× from one shot of each"),
        format!(
            "{:.3}× ({:.3} to {:.3}) from 200 pairs: both are the same work",
            summary.ratio, summary.interval.low, summary.interval.high
        ),
        guards::beyond_noise(1, shown - 1.0, summary.interval.half_width().max(0.01)),
    )
}

pub(super) fn overlapped_time(field: &mut Field<'_>) -> Result<Sprung> {
    if field.cores < 2 {
        return Err(crate::Error::invalid(
            "overlapped-time",
            "two CPUs, so that something can overlap",
            field.cores,
        ));
    }
    let queue = Queue::start();
    let mut host_ns = Vec::new();
    let mut step = |has_host_work: bool| {
        median_of(field.clock, 9, || {
            let wait = queue.submit(|| {
                busy(8_000_000);
            });
            if has_host_work {
                host_ns.push(timed(field.clock, || busy(2_000_000)));
            }
            let _ = wait.recv();
        })
    };
    let (with, without) = (step(true), step(false));
    let claimed = median(&host_ns) / with;
    Sprung::new(
        format!(
            "host work costs {:.0}% of a step: {:.2} of {:.2} ms",
            claimed * 100.0,
            median(&host_ns) / 1e6,
            with / 1e6
        ),
        format!("without it a step takes {:.2} ms: it overlaps", without / 1e6),
        guards::removal(claimed, with, without),
    )
}

pub(super) fn blocked_arms(field: &mut Field<'_>) -> Result<Sprung> {
    // A history that grows with every call: the machine drifts, and both arms are the same function.
    let mut history: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 0u64;
    let mut call = || {
        timed(field.clock, || {
            for _ in 0..2000 {
                next += 1;
                history.insert(next.wrapping_mul(0x9e37_79b9_7f4a_7c15), next);
            }
            history.values().take(1_000_000).fold(0u64, |a, &b| a.wrapping_add(b))
        })
    };
    let mut run = |order: &[usize]| {
        let mut times = [Vec::new(), Vec::new()];
        for &arm in order {
            times[arm].push(call());
        }
        median(&times[0]) / median(&times[1])
    };
    let blocked: Vec<usize> = [vec![0; 20], vec![1; 20]].concat();
    let shown = run(&blocked);
    let interleaved: Vec<usize> = [0, 1, 1, 0].repeat(10);
    let truth = run(&interleaved);
    Sprung::new(
        format!("B at {shown:.2}× of A, with twenty runs of A and then twenty of B"),
        format!("{truth:.2}×, interleaved: A and B are one function on a machine that slows down"),
        guards::interleaved(&blocked),
    )
}

pub(super) fn tiny_duration(field: &mut Field<'_>) -> Result<Sprung> {
    let ns = timed(field.clock, || std::hint::black_box(1u64) + 1);
    let long = timed(field.clock, || busy(2_000_000)) / 2_000_000.0;
    Sprung::new(
        format!("{:.0} tokens/s, from one token in {ns:.0} ns", 1e9 / ns),
        format!(
            "the timer's own {ns:.0} ns; a step of such work takes {long:.2} ns when two million are timed at once"
        ),
        guards::long_enough(ns as u64, 30),
    )
}
