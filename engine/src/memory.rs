//! The memory contract: what a model at a context needs, what there is, and what would fit.
//!
//! Bytes come from the plan and the KV layout's formula; it measures nothing of the process.

use serde::Serialize;
use tensor::kv::{BLOCK_POSITIONS, KvLayout};
use tensor::op::Plan;

use crate::{Error, Result};

/// What a process may hold beyond weights, cache and tokenizer: step buffers, kernel scratch, code, stacks.
pub const OVERHEAD_BYTES: u64 = 64 << 20;

/// What a loaded model will hold at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The prepared weights, mapped.
    pub weight_bytes: u64,
    /// The KV pool.
    pub kv_bytes: u64,
    /// [`OVERHEAD_BYTES`], or the step buffers where a large batch needs more.
    pub overhead_bytes: u64,
}

impl Need {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weight_bytes + self.kv_bytes + self.overhead_bytes
    }
}

/// Blocks of each group for `sequences` sequences of `context` positions and room for as many kept prefixes' ends.
///
/// A kept end needs what the sequence, going on, drops: on sliding layers their window, of packed layers the halves and
/// the sinks; elsewhere it shares the sequence's blocks but for a copy of the open one.
pub fn pool_blocks(
    layout: &KvLayout,
    context: usize,
    chunk: usize,
    sequences: usize,
    kept: usize,
) -> Vec<usize> {
    let live = layout.blocks_for(context, chunk).into_iter().enumerate();
    live.map(|(g, live)| live * sequences + layout.blocks_of_end(g, context, chunk) * kept).collect()
}

/// What a plan needs at a context.
pub fn need(plan: &Plan, weight_bytes: u64, context: usize, sequences: usize, kept: usize) -> Need {
    let blocks = pool_blocks(&plan.kv, context, plan.max_step_tokens, sequences, kept);
    let kv_bytes = blocks.iter().zip(&plan.kv.groups).map(|(&n, g)| (n * g.block_bytes) as u64).sum();
    let overhead_bytes = OVERHEAD_BYTES.max(plan.buffer_bytes() as u64 + OVERHEAD_BYTES / 2);
    Need { weight_bytes, kv_bytes, overhead_bytes }
}

/// Checks that a context fits into `available_bytes`.
///
/// # Errors
/// [`Error::DoesNotFit`] with the numbers and the largest context that would fit.
pub fn check(
    plan: &Plan,
    weight_bytes: u64,
    context: usize,
    sequences: usize,
    kept: usize,
    available_bytes: u64,
) -> Result<Need> {
    let at = |context| need(plan, weight_bytes, context, sequences, kept);
    let wanted = at(context);
    if wanted.total() <= available_bytes {
        return Ok(wanted);
    }
    let fits = largest_context(plan, weight_bytes, context, sequences, kept, available_bytes);
    Err(Error::DoesNotFit {
        context,
        sequences,
        needed_bytes: wanted.total(),
        kv_bytes: wanted.kv_bytes,
        available_bytes,
        fits,
    })
}

/// The largest context of whole blocks, at most `most` positions, that fits into `available_bytes`; 0 if none does.
pub fn largest_context(
    plan: &Plan,
    weight_bytes: u64,
    most: usize,
    sequences: usize,
    kept: usize,
    available_bytes: u64,
) -> usize {
    let fits = |context| need(plan, weight_bytes, context, sequences, kept).total() <= available_bytes;
    if fits(most) {
        return most;
    }
    // By bisection: the need grows with the context.
    let (mut fitting, mut too_many) = (0, most.div_ceil(BLOCK_POSITIONS));
    while too_many - fitting > 1 {
        let middle = fitting + (too_many - fitting) / 2;
        if fits(middle * BLOCK_POSITIONS) {
            fitting = middle;
        } else {
            too_many = middle;
        }
    }
    fitting * BLOCK_POSITIONS
}

/// What a process is expected to hold at its peak while one plan runs, rather than what it may hold at most: the
/// estimate that a measured peak is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// What the process held before the model was loaded: code, tokenizer, heap.
    pub base_bytes: u64,
    /// The prepared weights, all of them mapped.
    pub weight_bytes: u64,
    /// Blocks of the cache that sequences of the context fill.
    pub kv_bytes: u64,
    /// Step buffers and kernel scratch.
    pub scratch_bytes: u64,
}

impl Expected {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.base_bytes + self.weight_bytes + self.kv_bytes + self.scratch_bytes
    }
}

/// The expected peak of `sequences` full sequences of `context` positions, given what the process holds before and what
/// the device's executor says of its scratch.
pub fn expected_peak(
    plan: &Plan,
    weight_bytes: u64,
    context: usize,
    sequences: usize,
    base_bytes: u64,
    scratch_bytes: u64,
) -> Expected {
    let kv_bytes = plan.kv.bytes_for(context, plan.max_step_tokens) * sequences as u64;
    // The rows of logits are the caller's, not the executor's.
    let logits = (plan.vocab * sequences * 4) as u64;
    Expected { base_bytes, weight_bytes, kv_bytes, scratch_bytes: scratch_bytes + logits }
}

/// Bytes that this process can still have without swapping: the system's estimate, or what its control groups leave
/// if that is less. `None` where the system does not say.
pub fn available() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|t| mem_available(&t))?;
    Some(control_groups().into_iter().fold(system, u64::min))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What each control group (v2, from the process's own upwards; v1's memory controller) leaves.
fn control_groups() -> Vec<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut left = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        for folder in std::path::Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = std::path::Path::new(root).join(folder);
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
            let number = |name: &str| read(name).and_then(|t| t.trim().parse::<u64>().ok());
            if let (Some(limit), Some(usage)) = (number(limit), number(usage)) {
                let reclaimable = read("memory.stat").map_or(0, |t| page_cache(&t));
                left.push(limit.saturating_sub(usage.saturating_sub(reclaimable)));
            }
        }
    }
    left
}

/// Bytes of file pages that a control group can drop.
fn page_cache(memory_stat: &str) -> u64 {
    let field = |l: &str| {
        let (name, value) = l.split_once(' ')?;
        matches!(name, "inactive_file" | "active_file").then(|| value.trim().parse::<u64>().ok())?
    };
    memory_stat.lines().filter_map(field).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_files_are_read_as_they_are_written() {
        assert_eq!(mem_available("MemTotal:  10 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal:  10 kB\n"), None);
        assert_eq!(page_cache("anon 7\nfile 100\ninactive_file 30\nactive_file 12\n"), 42);
    }
}
