//! One directory of very many names: making, looking up, listing and removing them must
//! not get slower as they become more.

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::files::Files;
use shale_bench::BenchError;
use shale_bench::Result;
use shale_bench::chance::Chance;

/// How many names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MillionOptions {
    /// Names.
    pub files: u64,
    /// Names of which each rate is taken together.
    pub window: u64,
    /// Of the order of lookups and removals.
    pub seed: u64,
    /// The work that a window puts off is waited for at its end and part of its time. A log
    /// takes the first windows at its own speed; this shows the rate that can last.
    pub flushed: bool,
}

impl Default for MillionOptions {
    fn default() -> Self {
        MillionOptions {
            files: 1_000_000,
            window: 10_000,
            seed: 1,
            flushed: true,
        }
    }
}

/// One phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Which.
    pub name: String,
    /// Names in each second, for one window after the other.
    pub rates: Vec<f64>,
    /// Seconds of all windows.
    pub seconds: f64,
    /// Median of the first tenth of the windows over the median of the last: 1 when the
    /// number of names does not matter, above 1 when it slows down.
    pub first_over_last: f64,
}

/// What a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MillionReport {
    /// What it ran on.
    pub target: String,
    /// The names.
    pub options: MillionOptions,
    /// Create, lookup, list, delete.
    pub phases: Vec<Phase>,
    /// Seconds for work put off, after the first and after the last phase.
    pub flush_seconds: [f64; 2],
}

impl fmt::Display for MillionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "million  {:<16} {} names in one directory, windows of {}{}",
            self.target,
            self.options.files,
            self.options.window,
            if self.options.flushed {
                " with the work they put off"
            } else {
                ""
            }
        )?;
        for phase in &self.phases {
            let (first, last) = (phase.rates.first(), phase.rates.last());
            writeln!(
                f,
                "  {:<8} {:>10.0}/s  first window {:>10.0}/s, last {:>10.0}/s, first over last {:.2}",
                phase.name,
                self.options.files as f64 / phase.seconds.max(1e-9),
                first.copied().unwrap_or(0.0),
                last.copied().unwrap_or(0.0),
                phase.first_over_last
            )?;
        }
        write!(
            f,
            "  put off: {:.3} s after create, {:.3} s after delete",
            self.flush_seconds[0], self.flush_seconds[1]
        )
    }
}

/// Takes the time of each window.
struct Windows {
    window: u64,
    done: u64,
    since: Instant,
    rates: Vec<f64>,
    seconds: f64,
}

impl Windows {
    fn start(window: u64) -> Self {
        Windows {
            window: window.max(1),
            done: 0,
            since: Instant::now(),
            rates: Vec::new(),
            seconds: 0.0,
        }
    }

    fn one_done(&mut self) {
        self.done += 1;
        if self.done == self.window {
            self.close();
        }
    }

    /// As [`Self::one_done`], for a change of `files`, if put-off work counts.
    fn one_changed(&mut self, files: &mut dyn Files, flushed: bool) -> Result<()> {
        if flushed && self.done + 1 == self.window {
            flush(files)?;
        }
        self.one_done();
        Ok(())
    }

    fn close(&mut self) {
        let seconds = self.since.elapsed().as_secs_f64();
        if self.done > 0 {
            self.rates.push(self.done as f64 / seconds.max(1e-9));
            self.seconds += seconds;
        }
        self.done = 0;
        self.since = Instant::now();
    }

    fn phase(mut self, name: &str) -> Phase {
        self.close();
        let tenth = self.rates.len().div_ceil(10);
        let first = median(&self.rates[..tenth]);
        let last = median(&self.rates[self.rates.len() - tenth..]);
        Phase {
            name: name.to_owned(),
            first_over_last: if last > 0.0 { first / last } else { 0.0 },
            rates: self.rates,
            seconds: self.seconds,
        }
    }
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

fn name(number: u64) -> String {
    format!("file-{number:010}")
}

/// The numbers below `count` in a seeded order.
fn shuffled(count: u64, chance: &mut Chance) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    chance.shuffle(&mut numbers);
    numbers
}

/// Makes, looks up, lists and removes `options.files` names. The directory is empty
/// before and after.
///
/// # Errors
/// A call that fails, or a listing that has not every name.
pub fn million(files: &mut dyn Files, options: &MillionOptions) -> Result<MillionReport> {
    let order = shuffled(options.files, &mut Chance::new(options.seed));
    let mut phases = Vec::new();
    let mut windows = Windows::start(options.window);
    for number in 0..options.files {
        let file = files.create(&name(number))?;
        files.close(file);
        windows.one_changed(files, options.flushed)?;
    }
    phases.push(windows.phase("create"));
    let after_create = flush(files)?;
    let mut windows = Windows::start(options.window);
    for &number in &order {
        files.stat(&name(number))?;
        windows.one_done();
    }
    phases.push(windows.phase("lookup"));
    let mut windows = Windows::start(options.window);
    let mut found = 0;
    files.list(&mut || {
        found += 1;
        windows.one_done();
    })?;
    phases.push(windows.phase("list"));
    if found != options.files {
        return Err(BenchError::Wrong {
            target: files.name().to_owned(),
            what: "names listed",
            expected: options.files,
            found,
        });
    }
    let mut windows = Windows::start(options.window);
    for &number in &order {
        files.unlink(&name(number))?;
        windows.one_changed(files, options.flushed)?;
    }
    phases.push(windows.phase("delete"));
    let after_delete = flush(files)?;
    Ok(MillionReport {
        target: files.name().to_owned(),
        options: options.clone(),
        phases,
        flush_seconds: [after_create, after_delete],
    })
}

fn flush(files: &mut dyn Files) -> Result<f64> {
    let start = Instant::now();
    files.flush()?;
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{DirectFiles, Directory};
    use shale_bench::scratch::ScratchOptions;

    fn small() -> MillionOptions {
        MillionOptions {
            files: 2_050,
            window: 100,
            seed: 3,
            flushed: true,
        }
    }

    fn check(report: &MillionReport) {
        let names: Vec<&str> = report.phases.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["create", "lookup", "list", "delete"]);
        for phase in &report.phases {
            assert_eq!(phase.rates.len(), 21, "{}", phase.name);
            assert!(phase.rates.iter().all(|&rate| rate > 0.0) && phase.seconds > 0.0);
            assert!(phase.first_over_last > 0.0);
        }
    }

    #[test]
    fn names_come_and_go_in_a_directory_and_in_a_volume() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        check(&million(&mut Directory::new("tmpfs", &empty), &small()).unwrap());
        assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
        let options = ScratchOptions {
            nvm_bytes: 64 << 20,
            log_bytes: 16 << 20,
        };
        let mut files = DirectFiles::new(dir.path(), options).unwrap();
        check(&million(&mut files, &small()).unwrap());
    }

    #[test]
    fn a_slowdown_shows() {
        let mut windows = Windows::start(1);
        windows.rates = (1..=20).rev().map(f64::from).collect();
        let phase = windows.phase("create");
        assert_eq!(phase.first_over_last, 20.0 / 2.0);
    }

    #[test]
    fn the_order_has_every_number_once() {
        let mut order = shuffled(1_000, &mut Chance::new(5));
        assert_ne!(order[..20], (0..20).collect::<Vec<_>>()[..]);
        order.sort_unstable();
        assert_eq!(order, (0..1_000).collect::<Vec<_>>());
    }
}
