//! Whether the machine is fit to measure on: load, other processes, stolen time, frequency, temperature, memory, swap; each
//! with a limit. What may not be read is said.
//!
//! It reads the system's files through a function, so that it can be tested on recorded ones, and knows no clock.

use serde::{Deserialize, Serialize};

use crate::machine::{Read, kib};

/// The limits of a fit machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Runnable processes of the last minute, per CPU, before the run.
    pub load_per_cpu: f64,
    /// CPUs that others may use.
    pub others_cpus: f64,
    /// Share of the CPUs' time that a hypervisor may take.
    pub steal_share: f64,
    /// Share of the highest frequency that must be reached under load.
    pub frequency_share: f64,
    /// Degrees Celsius.
    pub temperature_c: f64,
    /// Memory that must be free beyond what is needed, in bytes.
    pub spare_bytes: u64,
    /// Pages swapped in or out per second.
    pub swapped_pages_per_s: f64,
    /// CPU frequency pressure events (thermal throttling) while the machine was watched.
    pub throttles: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            load_per_cpu: 0.75,
            others_cpus: 0.10,
            steal_share: 0.01,
            frequency_share: 0.70,
            temperature_c: 90.0,
            spare_bytes: 256 << 20,
            swapped_pages_per_s: 1.0,
            throttles: 0,
        }
    }
}

/// What the system's counters stood at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// CPU time of all processes but idle and waiting, in clock ticks of [`TICKS_PER_S`].
    pub busy_ticks: Option<u64>,
    /// All CPU time.
    pub all_ticks: Option<u64>,
    /// Time that a hypervisor gave to others.
    pub steal_ticks: Option<u64>,
    /// CPU time of this process and of children it has waited for.
    pub own_ticks: Option<u64>,
    /// Pages swapped in and out since the system's start.
    pub swapped_pages: Option<u64>,
    /// Thermal throttling events.
    pub throttles: Option<u64>,
}

/// Clock ticks of /proc per second: 100 on every Linux that this runs on (USER_HZ).
pub const TICKS_PER_S: f64 = 100.0;

/// Reads the counters.
pub fn counters(read: Read<'_>) -> Counters {
    let stat = read("/proc/stat").unwrap_or_default();
    let cpu: Vec<u64> = stat
        .lines()
        .find_map(|l| l.strip_prefix("cpu "))
        .map(|l| l.split_whitespace().map_while(|n| n.parse().ok()).collect())
        .unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let all = (cpu.len() >= 8).then(|| cpu[..8].iter().sum::<u64>());
    let busy = all.map(|all| all - cpu[3] - cpu[4] - cpu[7]);
    let own = read("/proc/self/stat").and_then(|text| {
        // The name is in brackets and may hold anything; utime, stime, cutime, cstime are fields 14 to 17.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        fields.get(11..15)?.iter().map(|n| n.parse::<i64>().ok().map(|n| n.max(0) as u64)).sum()
    });
    let vmstat = read("/proc/vmstat");
    let pages = |name: &str| {
        let text = vmstat.as_ref()?;
        text.lines().find_map(|l| l.split_once(' ').filter(|(k, _)| *k == name))?.1.trim().parse::<u64>().ok()
    };
    Counters {
        busy_ticks: busy,
        all_ticks: all,
        steal_ticks: all.map(|_| cpu[7]),
        own_ticks: own,
        swapped_pages: pages("pswpin").zip(pages("pswpout")).map(|(i, o)| i + o),
        throttles: read("/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count")
            .and_then(|t| t.trim().parse().ok()),
    }
}

/// What happened on the machine between two readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Seconds between them.
    pub seconds: f64,
    /// CPUs that other processes used.
    pub others_cpus: Option<f64>,
    /// Share of time stolen.
    pub steal_share: Option<f64>,
    /// Pages swapped per second.
    pub swapped_pages_per_s: Option<f64>,
    /// Throttling events.
    pub throttles: Option<u64>,
}

/// The difference of two readings, `seconds` apart.
pub fn traffic(before: &Counters, after: &Counters, seconds: f64) -> Traffic {
    let grown = |a: Option<u64>, b: Option<u64>| Some(b?.saturating_sub(a?));
    let busy = grown(before.busy_ticks, after.busy_ticks);
    let own = grown(before.own_ticks, after.own_ticks);
    let seconds = seconds.max(1e-9);
    let per_s = |ticks: u64| ticks as f64 / TICKS_PER_S / seconds;
    let all = grown(before.all_ticks, after.all_ticks).filter(|&n| n > 0);
    Traffic {
        seconds,
        others_cpus: busy.zip(own).map(|(busy, own)| per_s(busy.saturating_sub(own))),
        steal_share: grown(before.steal_ticks, after.steal_ticks)
            .zip(all)
            .map(|(s, all)| s as f64 / all as f64),
        swapped_pages_per_s: grown(before.swapped_pages, after.swapped_pages).map(|n| n as f64 / seconds),
        throttles: grown(before.throttles, after.throttles),
    }
}

/// What stands at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Load average of the last minute, per CPU.
    pub load_per_cpu: Option<f64>,
    /// Frequency of the CPUs now over their highest.
    pub frequency_share: Option<f64>,
    /// The hottest thermal zone, in degrees Celsius.
    pub temperature_c: Option<f64>,
    /// Memory that can be had without swapping, in bytes.
    pub available_bytes: Option<u64>,
    /// Swap in use, in bytes.
    pub swap_used_bytes: Option<u64>,
    /// The other process that used most CPU time while the machine was watched, in words.
    pub busiest: Option<String>,
}

/// Reads what stands now.
pub fn standing(read: Read<'_>, cores: usize) -> Standing {
    let number = |path: &str| read(path).and_then(|t| t.trim().parse::<f64>().ok());
    let load = read("/proc/loadavg").and_then(|t| t.split(' ').next()?.parse::<f64>().ok());
    let frequency =
        |cpu: usize, name: &str| number(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}"));
    let shares: Vec<f64> = (0..cores)
        .filter_map(|cpu| Some(frequency(cpu, "scaling_cur_freq")? / frequency(cpu, "cpuinfo_max_freq")?))
        .collect();
    let zones = (0..16).filter_map(|zone| number(&format!("/sys/class/thermal/thermal_zone{zone}/temp")));
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let swap = kib(&meminfo, "SwapTotal").zip(kib(&meminfo, "SwapFree"));
    Standing {
        load_per_cpu: load.map(|l| l / cores.max(1) as f64),
        frequency_share: (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64),
        temperature_c: zones.reduce(f64::max).map(|milli| milli / 1000.0),
        available_bytes: kib(&meminfo, "MemAvailable"),
        swap_used_bytes: swap.map(|(total, free)| total.saturating_sub(free)),
        busiest: None,
    }
}

/// Name and CPU time of a process, in ticks.
pub type Processes = std::collections::BTreeMap<u32, (String, u64)>;

/// Every process that the system shows, without this one.
pub fn processes() -> Processes {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = folders.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let own = std::process::id();
    let read = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, process(&text)?))
    };
    numbers.filter(|&pid| pid != own).filter_map(read).collect()
}

/// Name and ticks from a process' `stat` line.
fn process(stat: &str) -> Option<(String, u64)> {
    let (head, rest) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
    Some((name.to_owned(), user + system))
}

/// The process that used most CPU time between two looks, in words; none where none used a tick.
pub fn busiest(before: &Processes, after: &Processes, seconds: f64) -> Option<String> {
    let used = after.iter().map(|(pid, (name, ticks))| {
        let earlier = before.get(pid).map_or(0, |(_, ticks)| *ticks);
        (ticks.saturating_sub(earlier), name, pid)
    });
    let (ticks, name, pid) = used.max()?;
    let cpus = ticks as f64 / TICKS_PER_S / seconds.max(1e-9);
    (ticks > 0).then(|| format!("{name} ({pid}): {cpus:.2}"))
}

/// One check's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// What was found, in words; the reason where it could not be read.
    pub found: String,
    /// The limit, in words.
    pub limit: String,
    /// Whether it is within it; none where it could not be read.
    pub passed: Option<bool>,
}

/// Every check of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In the order in which they were made.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether nothing that could be read is beyond its limit.
    pub fn is_fit(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The checks beyond their limits.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|c| c.passed == Some(false))
    }

    /// The checks that could not be made.
    pub fn unread(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|c| c.passed.is_none())
    }

    /// The marks of rows measured on such a machine: its failures, and what was not checked.
    pub fn marks(&self) -> Vec<String> {
        let failed = self.failures().map(|c| format!("{}: {} (limit {})", c.name, c.found, c.limit));
        let unread: Vec<&str> = self.unread().map(|c| c.name.as_str()).collect();
        let unread = (!unread.is_empty()).then(|| format!("not checked: {}", unread.join(", ")));
        failed.chain(unread).collect()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for check in &self.checks {
            let mark = match check.passed {
                Some(true) => "ok",
                Some(false) => "FAILED",
                None => "not read",
            };
            writeln!(f, "{:22} {:9} {} (limit {})", check.name, mark, check.found, check.limit)?;
        }
        Ok(())
    }
}

/// Checks a machine, before a run, against `limits`. `needed_bytes` is what the run will hold.
pub fn check(standing: &Standing, traffic: &Traffic, needed_bytes: u64, limits: &Limits) -> Report {
    let mut report = during(traffic, limits);
    if let (Some(others), Some(busiest)) = (report.checks.first_mut(), &standing.busiest) {
        others.found.push_str(&format!(", most of them {busiest}"));
    }
    let per_cent = |share: f64| format!("{:.0}%", share * 100.0);
    let mut add = |name: &str, found: Option<(String, bool)>, limit: String| {
        report.checks.push(row(name, found, limit));
    };
    add(
        "load",
        standing.load_per_cpu.map(|l| (format!("{l:.2} per CPU"), l <= limits.load_per_cpu)),
        format!("at most {:.2} per CPU", limits.load_per_cpu),
    );
    add(
        "frequency",
        standing
            .frequency_share
            .map(|s| (format!("{} of the highest", per_cent(s)), s >= limits.frequency_share)),
        format!("at least {}", per_cent(limits.frequency_share)),
    );
    add(
        "temperature",
        standing.temperature_c.map(|t| (format!("{t:.0} °C"), t <= limits.temperature_c)),
        format!("at most {:.0} °C", limits.temperature_c),
    );
    let wanted = needed_bytes.saturating_add(limits.spare_bytes);
    let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    add(
        "free memory",
        standing.available_bytes.map(|b| (mb(b), b >= wanted)),
        format!("at least {}", mb(wanted)),
    );
    report
}

/// Checks what happened on the machine while it was watched, before a run or during it.
pub fn during(traffic: &Traffic, limits: &Limits) -> Report {
    let checks = vec![
        row(
            "other processes",
            traffic.others_cpus.map(|c| (format!("{c:.2} CPUs"), c <= limits.others_cpus)),
            format!("at most {:.2} CPUs", limits.others_cpus),
        ),
        row(
            "stolen time",
            traffic.steal_share.map(|s| (format!("{:.1}%", s * 100.0), s <= limits.steal_share)),
            format!("at most {:.1}%", limits.steal_share * 100.0),
        ),
        row(
            "swapping",
            traffic.swapped_pages_per_s.map(|p| (format!("{p:.1} pages/s"), p <= limits.swapped_pages_per_s)),
            format!("at most {:.1} pages/s", limits.swapped_pages_per_s),
        ),
        row(
            "thermal throttling",
            traffic.throttles.map(|n| (format!("{n} events"), n <= limits.throttles)),
            format!("at most {} events", limits.throttles),
        ),
    ];
    Report { checks }
}

fn row(name: &str, found: Option<(String, bool)>, limit: String) -> Check {
    let (found, passed) = match found {
        Some((found, passed)) => (found, Some(passed)),
        None => ("the system does not show it to this process".into(), None),
    };
    Check { name: name.into(), found, limit, passed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> (Standing, Traffic) {
        let standing = Standing {
            load_per_cpu: Some(0.1),
            frequency_share: Some(0.95),
            temperature_c: Some(55.0),
            available_bytes: Some(8 << 30),
            swap_used_bytes: Some(0),
            busiest: None,
        };
        let traffic = Traffic {
            seconds: 1.0,
            others_cpus: Some(0.02),
            steal_share: Some(0.0),
            swapped_pages_per_s: Some(0.0),
            throttles: Some(0),
        };
        (standing, traffic)
    }

    #[test]
    fn an_idle_machine_passes() {
        let (standing, traffic) = fit();
        let report = check(&standing, &traffic, 1 << 30, &Limits::default());
        assert!(report.is_fit(), "{report}");
        assert_eq!(report.marks(), Vec::<String>::new());
        assert_eq!(report.checks.len(), 8);
    }

    #[test]
    fn each_limit_refuses_by_itself() {
        type Spoil = fn(&mut Standing, &mut Traffic);
        let cases: [(&str, Spoil); 8] = [
            ("load", |s, _| s.load_per_cpu = Some(0.8)),
            ("frequency", |s, _| s.frequency_share = Some(0.5)),
            ("temperature", |s, _| s.temperature_c = Some(97.0)),
            ("free memory", |s, _| s.available_bytes = Some(1 << 30)),
            ("other processes", |_, t| t.others_cpus = Some(0.2)),
            ("stolen time", |_, t| t.steal_share = Some(0.05)),
            ("swapping", |_, t| t.swapped_pages_per_s = Some(40.0)),
            ("thermal throttling", |_, t| t.throttles = Some(1)),
        ];
        for (name, spoil) in cases {
            let (mut standing, mut traffic) = fit();
            spoil(&mut standing, &mut traffic);
            let report = check(&standing, &traffic, 1 << 30, &Limits::default());
            let failed: Vec<&str> = report.failures().map(|c| c.name.as_str()).collect();
            assert_eq!(failed, [name]);
            assert!(report.marks()[0].starts_with(name));
        }
    }

    #[test]
    fn what_may_not_be_read_is_said_and_marked() {
        let report = check(&Standing::default(), &Traffic::default(), 0, &Limits::default());
        assert!(report.is_fit());
        assert_eq!(report.unread().count(), 8);
        assert!(report.marks()[0].starts_with("not checked: other processes, stolen time"));
    }

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        let read = |path: &str| {
            let text = match path {
                "/proc/stat" => "cpu  100 5 20 1000 10 1 2 7 0 0\ncpu0 1 1 1 1\n",
                "/proc/self/stat" => "42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 3 4 20 0 1 0 99\n",
                "/proc/vmstat" => "pswpin 3\npswpout 4\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let c = counters(&read);
        assert_eq!(c.all_ticks, Some(1145));
        assert_eq!(c.busy_ticks, Some(128));
        assert_eq!((c.steal_ticks, c.own_ticks), (Some(7), Some(49)));
        assert_eq!((c.swapped_pages, c.throttles), (Some(7), None));
    }

    #[test]
    fn our_own_time_is_not_counted_against_the_machine() {
        let before = Counters {
            busy_ticks: Some(100),
            own_ticks: Some(10),
            all_ticks: Some(1000),
            ..Counters::default()
        };
        let after =
            Counters { busy_ticks: Some(320), own_ticks: Some(210), all_ticks: Some(1400), ..before.clone() };
        let seen = traffic(&before, &after, 2.0);
        assert_eq!(seen.others_cpus, Some(0.1));
        assert_eq!(seen.steal_share, None);
    }

    #[test]
    fn the_busiest_process_is_named() {
        let line = |name: &str, ticks: u64| format!("7 ({name}) S 1 2 3 4 5 6 7 8 9 10 {ticks} 5 0 0 20 0");
        assert_eq!(process(&line("a) b", 95)), Some(("a) b".to_owned(), 100)));
        assert_eq!(process("nonsense"), None);
        let before = Processes::from([(7, ("cc".into(), 100)), (8, ("sh".into(), 900))]);
        let after =
            Processes::from([(7, ("cc".into(), 290)), (8, ("sh".into(), 901)), (9, ("new".into(), 20))]);
        assert_eq!(busiest(&before, &after, 2.0).as_deref(), Some("cc (7): 0.95"));
        assert_eq!(busiest(&before, &before, 2.0), None);
        let (mut standing, mut traffic) = fit();
        standing.busiest = busiest(&before, &after, 2.0);
        traffic.others_cpus = Some(1.0);
        assert!(check(&standing, &traffic, 0, &Limits::default()).marks()[0].contains("most of them cc (7)"));
    }

    #[test]
    fn swap_and_temperature_are_read_in_their_units() {
        let read = |path: &str| {
            let text = match path {
                "/proc/loadavg" => "1.50 1.0 0.5 2/300 4000\n",
                "/proc/meminfo" => "MemAvailable: 2048 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n",
                "/sys/class/thermal/thermal_zone0/temp" => "45000\n",
                "/sys/class/thermal/thermal_zone3/temp" => "61500\n",
                "/sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq" => "1500000\n",
                "/sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq" => "3000000\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let s = standing(&read, 2);
        assert_eq!((s.load_per_cpu, s.temperature_c, s.frequency_share), (Some(0.75), Some(61.5), Some(0.5)));
        assert_eq!((s.available_bytes, s.swap_used_bytes), (Some(2 << 20), Some(40 << 10)));
    }
}
