//! What a device offers to be measured by: small loads of known work that say how long they took.
//!
//! It does not know what is concluded from the times, nor how often a load is repeated.

use crate::Result;
use crate::device::Device;

/// The pages that a buffer lies in. What was asked for is only a request to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// The system's smallest.
    Small,
    /// 2 MiB.
    Huge,
}

/// A load that can be run in any number of units, all of them equal.
pub trait Load: Send {
    /// What one unit does: bytes read, arithmetic operations (a multiply-add is two), or barriers passed.
    fn per_unit(&self) -> f64;

    /// Runs `units` units and returns the nanoseconds that they took. What was computed is checked, so that no part of
    /// it can have been left out.
    ///
    /// # Errors
    /// The result is not what the work should have given.
    fn run(&mut self, units: u64) -> Result<u64>;
}

/// The loads that a device can be measured by, and devices set up as asked.
pub trait Probes {
    /// The kernel tables that run here, slowest first.
    fn kernels(&self) -> Vec<String>;

    /// Threads that can run at once.
    fn threads(&self) -> usize;

    /// Reads `bytes` of memory, each thread its own part; a unit is one pass over all of it.
    ///
    /// # Errors
    /// No memory, or a table that is not there.
    fn read(&self, kernels: &str, threads: usize, bytes: usize, pages: Pages) -> Result<Box<dyn Load>>;

    /// Passes barriers between `threads` threads; a unit is one.
    ///
    /// # Errors
    /// The system refuses a thread.
    fn barrier(&self, threads: usize) -> Result<Box<dyn Load>>;

    /// Hands empty jobs to `threads` threads; a unit is one job, from start to end.
    ///
    /// # Errors
    /// The system refuses a thread.
    fn dispatch(&self, threads: usize) -> Result<Box<dyn Load>>;

    /// Fused multiply-adds of f32 in registers; a unit is counted in operations.
    ///
    /// # Errors
    /// A table that is not there.
    fn float_peak(&self, kernels: &str, threads: usize) -> Result<Box<dyn Load>>;

    /// The table's products of 4-bit codes with bytes, from registers and the first cache.
    ///
    /// # Errors
    /// A table that is not there.
    fn integer_peak(&self, kernels: &str, threads: usize) -> Result<Box<dyn Load>>;

    /// A device with a kernel table and a number of threads.
    ///
    /// # Errors
    /// A table that is not there.
    fn device(&self, kernels: &str, threads: usize) -> Result<Box<dyn Device>>;
}
