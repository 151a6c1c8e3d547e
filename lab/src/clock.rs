//! Time as a value handed down, so that every rule can be tested on recorded time. It does not know what is timed.

use std::cell::RefCell;
use std::time::Instant;

/// A clock that never runs backwards.
pub trait Clock {
    /// Nanoseconds since a moment of the clock's own.
    fn now_ns(&self) -> u64;

    /// Keeps the caller busy for so many nanoseconds: a known slowdown, which sleeping would not time exactly.
    fn spin_ns(&self, ns: u64);
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct System(Instant);

impl Default for System {
    fn default() -> Self {
        System(Instant::now())
    }
}

impl Clock for System {
    fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn spin_ns(&self, ns: u64) {
        let end = self.now_ns() + ns;
        while self.now_ns() < end {
            std::hint::spin_loop();
        }
    }
}

/// A clock that stands still until it is told: for tests.
#[derive(Debug, Default)]
pub struct Manual(RefCell<u64>);

impl Manual {
    /// Moves it forward.
    pub fn advance_ns(&self, ns: u64) {
        *self.0.borrow_mut() += ns;
    }
}

impl Clock for Manual {
    fn now_ns(&self) -> u64 {
        *self.0.borrow()
    }

    fn spin_ns(&self, ns: u64) {
        self.advance_ns(ns);
    }
}
