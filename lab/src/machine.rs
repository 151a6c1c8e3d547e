//! Which machine this is: what decides whether two figures may be compared. It measures nothing.

use serde::{Deserialize, Serialize};

/// A machine as far as it bears on speed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor, as it names itself.
    pub cpu: String,
    /// Logical CPUs that this process may use.
    pub cores: usize,
    /// Memory, rounded to 2^28 bytes: kernels keep a little more or less of it at each start.
    pub memory_bytes: u64,
    /// Frequency governor; `none` where the system shows none.
    pub governor: String,
    /// `none`, or what the processor or the firmware say of the hypervisor.
    pub virtualisation: String,
    /// Kernel release.
    pub kernel: String,
    /// Size of the last cache that one core sees, in bytes; 0 where unknown.
    pub last_cache_bytes: u64,
}

/// Reads a file of the system; injected for tests.
pub type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads the real one.
pub fn system(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

impl Machine {
    /// This machine.
    pub fn here() -> Machine {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        Machine::of(&system, cores)
    }

    /// The machine that the system files describe, of which `cores` CPUs can be used.
    pub fn of(read: Read<'_>, cores: usize) -> Machine {
        let line = |path: &str| read(path).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let found = cpuinfo.lines().find_map(|l| l.split_once(':').filter(|(k, _)| k.trim() == name));
            found.map(|(_, value)| value.trim().to_owned())
        };
        let cpu =
            field("model name").or_else(|| field("CPU implementer").map(|i| format!("implementer {i}")));
        let is_guest = field("flags").is_some_and(|f| f.split(' ').any(|flag| flag == "hypervisor"));
        let hypervisor = line("/sys/hypervisor/type").or_else(|| line("/sys/class/dmi/id/sys_vendor"));
        let virtualisation = match (is_guest, hypervisor) {
            (true, name) => name.unwrap_or_else(|| "a hypervisor".into()),
            (false, _) => "none".into(),
        };
        let memory = read("/proc/meminfo").and_then(|t| kib(&t, "MemTotal")).unwrap_or(0);
        const UNIT: u64 = 1 << 28;
        Machine {
            cpu: cpu.unwrap_or_else(|| "unknown".into()),
            cores,
            memory_bytes: (memory + UNIT / 2) / UNIT * UNIT,
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .unwrap_or_else(|| "none".into()),
            virtualisation,
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
            last_cache_bytes: last_cache(read),
        }
    }

    /// A short name that differs where any field differs.
    pub fn fingerprint(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        // FNV-1a: enough to tell machines apart, and the same for ever.
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        format!("{hash:016x}")
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        write!(f, "{}, {} CPUs, {gib:.1} GiB", self.cpu, self.cores)?;
        write!(
            f,
            ", governor {}, virtualisation {}, kernel {}",
            self.governor, self.virtualisation, self.kernel
        )
    }
}

/// Bytes of a `name:  n kB` line.
pub(crate) fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The largest cache of CPU 0.
fn last_cache(read: Read<'_>) -> u64 {
    let size = |index: usize| {
        let text = read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size"))?;
        let text = text.trim();
        let (digits, unit) = match text.strip_suffix('K') {
            Some(digits) => (digits, 1 << 10),
            None => (text.strip_suffix('M')?, 1 << 20),
        };
        digits.parse::<u64>().ok().map(|n| n * unit)
    };
    (0..8).filter_map(size).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Option<String> {
        let text = match path {
            "/proc/cpuinfo" => {
                "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu hypervisor avx2\n"
            }
            "/proc/meminfo" => "MemTotal:       16318412 kB\nMemFree: 1 kB\n",
            "/proc/sys/kernel/osrelease" => "6.1.0-test\n",
            "/sys/class/dmi/id/sys_vendor" => "QEMU\n",
            "/sys/devices/system/cpu/cpu0/cache/index0/size" => "32K\n",
            "/sys/devices/system/cpu/cpu0/cache/index3/size" => "36M\n",
            _ => return None,
        };
        Some(text.into())
    }

    #[test]
    fn a_machine_is_read_from_the_systems_files() {
        let machine = Machine::of(&read, 4);
        assert_eq!(machine.cpu, "Some CPU @ 2.0GHz");
        assert_eq!(machine.cores, 4);
        assert_eq!(machine.memory_bytes % (1 << 28), 0);
        assert!(machine.memory_bytes.abs_diff(16_318_412 * 1024) <= 1 << 27);
        assert_eq!((machine.governor.as_str(), machine.virtualisation.as_str()), ("none", "QEMU"));
        assert_eq!(machine.last_cache_bytes, 36 << 20);
    }

    #[test]
    fn a_machine_that_says_nothing_is_still_one() {
        let machine = Machine::of(&|_| None, 1);
        assert_eq!((machine.cpu.as_str(), machine.memory_bytes), ("unknown", 0));
    }

    #[test]
    fn each_field_changes_the_fingerprint() {
        let one = Machine::of(&read, 4);
        let changes: [fn(&mut Machine); 6] = [
            |m| m.cpu.push('x'),
            |m| m.cores += 1,
            |m| m.memory_bytes += 1 << 28,
            |m| m.governor.push('x'),
            |m| m.virtualisation.push('x'),
            |m| m.kernel.push('x'),
        ];
        for change in changes {
            let mut other = one.clone();
            change(&mut other);
            assert_ne!(one.fingerprint(), other.fingerprint());
        }
        assert_eq!(one.fingerprint(), Machine::of(&read, 4).fingerprint());
    }
}
