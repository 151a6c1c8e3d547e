//! The thread pool of a step: all threads run one function together, in stages separated by barriers, and take work
//! of a stage from a shared counter.
//!
//! Waiting spins briefly, because stages last microseconds, and then parks, because a thread may have lost its core:
//! with more threads than cores it parks at once. How work falls to threads never changes a result.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Spins before parking. A pause is about 140 cycles on Skylake and 40 on most others, so this is 20 to 100 µs.
const SPINS: u32 = 1500;

/// Something that threads wait for: a number that only grows.
#[derive(Default)]
struct Gate {
    value: AtomicU32,
    parked: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    /// Waits until the value differs from `old`.
    fn wait(&self, old: u32, spins: u32) {
        for _ in 0..spins {
            if self.value.load(Ordering::Acquire) != old {
                return;
            }
            std::hint::spin_loop();
        }
        self.parked.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(|e| e.into_inner());
        while self.value.load(Ordering::SeqCst) == old {
            guard = self.wake.wait(guard).unwrap_or_else(|e| e.into_inner());
        }
        drop(guard);
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Changes the value and wakes whoever parked.
    fn open(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(|e| e.into_inner()));
            self.wake.notify_all();
        }
    }
}

/// Counters of the stage now running and of its neighbours; the last thread at a barrier clears the next one.
const COUNTERS: usize = 4;

#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicUsize);

/// What all threads run together.
type Body<'a> = dyn Fn(&Worker<'_>) + Sync + 'a;

/// A job's function, its lifetime erased: [`Pool::run`] returns only after every thread has left it.
#[derive(Clone, Copy)]
struct Job(*const Body<'static>);

// SAFETY: the function behind the pointer is Sync, and outlives its use by the pool's protocol.
unsafe impl Send for Job {}

struct Shared {
    threads: usize,
    spins: u32,
    start: Gate,
    barrier: Gate,
    arrived: AtomicUsize,
    counters: [Counter; COUNTERS],
    job: Mutex<Option<Job>>,
    stop: AtomicBool,
}

/// One thread's view of the job that is running.
pub(crate) struct Worker<'a> {
    /// 0 is the thread that called [`Pool::run`].
    pub(crate) id: usize,
    stage: Cell<usize>,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Threads of the job.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Waits for all threads; what they wrote before is visible after.
    pub(crate) fn barrier(&self) {
        let s = self.shared;
        self.stage.set(self.stage.get() + 1);
        if s.threads == 1 {
            s.counters[(self.stage.get() + 1) % COUNTERS].0.store(0, Ordering::Relaxed);
            return;
        }
        let generation = s.barrier.value.load(Ordering::Acquire);
        if s.arrived.fetch_add(1, Ordering::AcqRel) + 1 == s.threads {
            s.arrived.store(0, Ordering::Relaxed);
            // Last used three stages ago, and by nobody before the next barrier.
            s.counters[(self.stage.get() + 1) % COUNTERS].0.store(0, Ordering::Relaxed);
            s.barrier.open();
        } else {
            s.barrier.wait(generation, s.spins);
        }
    }

    /// The next `chunk` units of this stage's `total`, or `None` when all are taken.
    pub(crate) fn take(&self, total: usize, chunk: usize) -> Option<Range<usize>> {
        let counter = &self.shared.counters[self.stage.get() % COUNTERS].0;
        if counter.load(Ordering::Relaxed) >= total {
            return None;
        }
        let from = counter.fetch_add(chunk, Ordering::Relaxed);
        (from < total).then(|| from..(from + chunk).min(total))
    }
}

/// A fixed set of threads, the caller's among them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads, at least one: the calling thread and `threads − 1` of its own.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        assert!(threads > 0, "a pool of no threads");
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            threads,
            spins: if threads > cores { 0 } else { SPINS },
            start: Gate::default(),
            barrier: Gate::default(),
            arrived: AtomicUsize::new(0),
            counters: Default::default(),
            job: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, handles: Vec::new() };
        for id in 1..threads {
            let shared = pool.shared.clone();
            let handle =
                std::thread::Builder::new().name(format!("plumb-{id}")).spawn(move || serve(&shared, id))?;
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// How many threads it has.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `f` on all threads and returns when all are done. A panic in `f` aborts the process: the other threads
    /// would wait for ever.
    pub(crate) fn run(&mut self, f: &(dyn Fn(&Worker<'_>) + Sync)) {
        let s = &*self.shared;
        for c in &s.counters {
            c.0.store(0, Ordering::Relaxed);
        }
        // SAFETY: only the lifetime changes. No thread holds the pointer after the last barrier below.
        let job = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(f) };
        *s.job.lock().unwrap_or_else(|e| e.into_inner()) = Some(Job(job));
        s.start.open();
        work(s, 0, f);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.start.open();
        for h in self.handles.drain(..) {
            let _ = h.join();
        }
    }
}

/// Aborts when dropped by a panic.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("plumb: a thread of a step failed; the step cannot go on");
            std::process::abort();
        }
    }
}

fn work(shared: &Shared, id: usize, f: &(dyn Fn(&Worker<'_>) + Sync)) {
    let guard = AbortOnPanic;
    let worker = Worker { id, stage: Cell::new(0), shared };
    f(&worker);
    worker.barrier();
    drop(guard);
}

fn serve(shared: &Shared, id: usize) {
    let mut seen = 0;
    loop {
        shared.start.wait(seen, shared.spins);
        seen = seen.wrapping_add(1);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let Some(job) = *shared.job.lock().unwrap_or_else(|e| e.into_inner()) else { continue };
        // SAFETY: `run` keeps the function alive until this thread has passed the barrier at the end of `work`.
        work(shared, id, unsafe { &*job.0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every unit of every stage is done exactly once, with more, as many and fewer threads than cores.
    #[test]
    fn stages_share_their_units() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for _ in 0..50 {
                let done: Vec<_> = (0..40).map(|_| AtomicUsize::new(0)).collect();
                pool.run(&|w| {
                    for stage in 0..8 {
                        while let Some(units) = w.take(5, 2) {
                            for u in units {
                                done[stage * 5 + u].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        w.barrier();
                        // After the barrier the stage is complete.
                        for u in 0..5 {
                            assert_eq!(done[stage * 5 + u].load(Ordering::Relaxed), 1);
                        }
                    }
                });
            }
        }
    }
}
