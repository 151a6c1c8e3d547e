//! An arm with a known slowdown: what a sensitivity run must find. It keeps busy rather than sleeping, which is not exact.

use std::rc::Rc;

use super::{Arm, Ready, Taken};
use crate::Result;
use crate::clock::Clock;
use crate::results::Settings;

/// Adds a share of the time that the work took.
pub struct Slowed<'a> {
    arm: &'a mut dyn Arm,
    clock: Rc<dyn Clock>,
    share: f64,
    label: String,
}

impl<'a> Slowed<'a> {
    /// `arm`, slower by `share` (0.05: every sample takes 5% longer).
    pub fn new(arm: &'a mut dyn Arm, share: f64, clock: Rc<dyn Clock>) -> Slowed<'a> {
        let label = format!("{} slowed by {:.0}%", arm.label(), share * 100.0);
        Slowed { arm, clock, share, label }
    }
}

impl Arm for Slowed<'_> {
    fn label(&self) -> &str {
        &self.label
    }

    fn asked(&self) -> Settings {
        self.arm.asked()
    }

    fn prepare(&mut self) -> Result<Ready> {
        self.arm.prepare()
    }

    fn take(&mut self, inner: u64, turn: u64) -> Result<Taken> {
        let mut taken = self.arm.take(inner, turn)?;
        let start = self.clock.now_ns();
        self.clock.spin_ns((taken.elapsed_ns as f64 * self.share) as u64);
        taken.elapsed_ns += self.clock.now_ns() - start;
        Ok(taken)
    }

    fn bytes_per_repetition(&self) -> Option<u64> {
        self.arm.bytes_per_repetition()
    }

    fn is_elsewhere(&self) -> bool {
        self.arm.is_elsewhere()
    }

    fn most_repetitions(&self) -> u64 {
        self.arm.most_repetitions()
    }
}
