//! The CPU as a [`Device`].

use std::sync::Arc;

use tensor::device::{Device, DeviceInfo, Executor, WeightStore};
use tensor::op::Plan;
use tensor::{Error, Result};

use crate::executor::CpuExecutor;
use crate::isa::Isa;
use crate::table::Table;

/// The CPU with one kernel table and a number of threads. Several may live in one process.
#[derive(Clone, Copy)]
pub struct CpuDevice {
    table: Table,
    threads: usize,
}

impl CpuDevice {
    /// A device that runs steps on `threads` threads with the kernels of `isa`.
    ///
    /// # Errors
    /// No threads; a table that this CPU cannot run.
    pub fn new(isa: Isa, threads: usize) -> Result<CpuDevice> {
        if threads == 0 {
            return Err(Error::malformed("threads", "at least 1", "0"));
        }
        let table = Table::of(isa).ok_or_else(|| {
            Error::unsupported(format!("the {} kernel table", isa.name()), "this CPU lacks the instructions")
        })?;
        Ok(CpuDevice { table, threads })
    }

    /// The fastest table on every CPU that the process may use.
    ///
    /// # Errors
    /// None in practice: the portable table runs everywhere.
    pub fn best() -> Result<CpuDevice> {
        CpuDevice::new(Isa::best(), default_threads())
    }
}

/// CPUs that this process may use, as its affinity and control group allow.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

impl Device for CpuDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: cpu_name(), kernels: self.table.isa.name().into(), threads: self.threads }
    }

    fn load(
        &self,
        plan: Arc<Plan>,
        weights: Arc<dyn WeightStore>,
        kv_blocks: &[usize],
    ) -> Result<Box<dyn Executor>> {
        Ok(Box::new(CpuExecutor::new(self.table, self.threads, plan, weights, kv_blocks)?))
    }
}

/// The processor's name for people.
fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.into(), |(_, n)| n.trim().into())
}
