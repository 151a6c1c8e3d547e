//! Falsehoods of a machine that does other things as well.

use std::process::{Child, Command, Stdio};

use super::{Field, Sprung, median_of, sum, words};
use crate::guards;
use crate::machine::system;
use crate::preflight::{Limits, counters, traffic};
use crate::{Error, Result};

/// Other processes that keep `count` CPUs busy until this is dropped.
struct Others(Vec<Child>);

impl Others {
    fn start(count: usize) -> Result<Others> {
        let mut others = Others(Vec::new());
        for _ in 0..count {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).stdout(Stdio::null());
            others.0.push(shell.spawn().map_err(Error::io("/bin/sh"))?);
        }
        // Until they have begun.
        std::thread::sleep(std::time::Duration::from_millis(50));
        Ok(others)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // They may have been ended from outside.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Median time of the same work on as many threads as there are CPUs.
fn work(field: &Field<'_>, data: &[u64]) -> f64 {
    median_of(field.clock, 15, || {
        std::thread::scope(|scope| {
            for _ in 0..field.cores {
                scope.spawn(|| {
                    for _ in 0..4 {
                        std::hint::black_box(sum(std::hint::black_box(data)));
                    }
                });
            }
        });
    })
}

pub(super) fn other_process(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(4 << 20);
    let alone = work(field, &data);
    let (before, start) = (counters(&system), field.clock.now_ns());
    let others = Others::start(2 * field.cores)?;
    let beside = work(field, &data);
    let after = counters(&system);
    let seconds = (field.clock.now_ns() - start) as f64 / 1e9;
    drop(others);
    Sprung::new(
        format!("{:.2}×: B ran while another process did", alone / beside),
        "1.00×: A and B are the same work",
        guards::undisturbed(&traffic(&before, &after, seconds), &Limits::default()),
    )
}

pub(super) fn both_degraded(field: &mut Field<'_>) -> Result<Sprung> {
    let data = words(4 << 20);
    let reference = 1e9 / work(field, &data);
    let others = Others::start(4 * field.cores)?;
    let (a, b) = (work(field, &data), work(field, &data));
    drop(others);
    Sprung::new(
        format!("parity: {:.2}×, at {:.1} and {:.1} a second", a / b, 1e9 / a, 1e9 / b),
        format!("both arms are starved: the machine does {reference:.1} a second"),
        guards::absolute(1e9 / a, reference),
    )
}
