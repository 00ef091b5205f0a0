//! On what a measurement was made: without it no time means anything.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine, as far as it matters for times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Processors online.
    pub cpus: usize,
    /// Bytes of the last-level cache, 0 if unknown.
    pub last_level_cache_bytes: u64,
    /// Bytes of memory, 0 if unknown.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Whether it is a virtual machine.
    pub virtual_machine: bool,
    /// The kernel's setting for huge pages of shared memory.
    pub huge_pages: String,
}

impl Machine {
    /// This machine.
    pub fn this() -> Self {
        let cpuinfo = text("/proc/cpuinfo");
        let field = |key: &str| {
            cpuinfo
                .lines()
                .find(|line| line.starts_with(key))
                .and_then(|line| line.split_once(':'))
                .map_or("", |(_, value)| value.trim())
        };
        Machine {
            cpu: field("model name").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            last_level_cache_bytes: last_level_cache_bytes(),
            memory_bytes: memory_bytes(),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            virtual_machine: field("flags").split(' ').any(|f| f == "hypervisor"),
            huge_pages: chosen(&text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} x {}{}, last-level cache {} MiB, memory {} MiB, kernel {}",
            self.cpus,
            self.cpu,
            if self.virtual_machine {
                " (virtual)"
            } else {
                ""
            },
            self.last_level_cache_bytes >> 20,
            self.memory_bytes >> 20,
            self.kernel
        )
    }
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The word in brackets of a setting such as "always [never] deny".
fn chosen(setting: &str) -> String {
    let word = setting.split(['[', ']']).nth(1).unwrap_or("unknown");
    word.to_owned()
}

/// A size such as "32768K" or "2M".
fn parse_size(size: &str) -> u64 {
    let size = size.trim();
    let (digits, unit) = match size.as_bytes().last() {
        Some(b'K') => (&size[..size.len() - 1], 1 << 10),
        Some(b'M') => (&size[..size.len() - 1], 1 << 20),
        _ => (size, 1),
    };
    digits.parse::<u64>().map_or(0, |n| n * unit)
}

fn last_level_cache_bytes() -> u64 {
    (0..8)
        .map(|n| text(format!("/sys/devices/system/cpu/cpu0/cache/index{n}/size")))
        .map(|size| parse_size(&size))
        .max()
        .unwrap_or(0)
}

fn memory_bytes() -> u64 {
    let meminfo = text("/proc/meminfo");
    let total = meminfo.lines().find(|line| line.starts_with("MemTotal:"));
    total
        .and_then(|line| line.split_ascii_whitespace().nth(1))
        .and_then(|kib| kib.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// Threads that ran or wanted to in the last minute, on average: what else the machine
/// was doing. 0 if unknown.
pub fn load() -> f64 {
    let loads = text("/proc/loadavg");
    let first = loads.split(' ').next();
    first.and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The commit that the program was built from: "0123456789ab", with "+changes" behind it if
/// files differed from the commit; `None`: there was no repository.
pub fn commit() -> Option<String> {
    option_env!("SHALE_COMMIT").map(str::to_owned)
}

/// Now, as "2026-01-31 23:59 UTC".
pub fn date() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    date_of(now.map_or(0, |since| since.as_secs()))
}

/// Gregorian calendar from seconds since 1970, by eras of 400 years from 1 March 0000.
fn date_of(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_moments() {
        assert_eq!(date_of(0), "1970-01-01 00:00 UTC");
        assert_eq!(date_of(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date_of(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date_of(1_767_225_599), "2025-12-31 23:59 UTC");
    }

    #[test]
    fn this_machine_has_a_processor_and_a_kernel() {
        let machine = Machine::this();
        assert!(!machine.cpu.is_empty() && !machine.kernel.is_empty());
        assert!(machine.cpus > 0 && machine.memory_bytes > 0);
    }

    #[test]
    fn sizes_and_settings_are_understood() {
        assert_eq!(parse_size("32768K\n"), 32 << 20);
        assert_eq!(parse_size("2M"), 2 << 20);
        assert_eq!(parse_size(""), 0);
        assert_eq!(chosen("always within_size [advise] never"), "advise");
    }
}
