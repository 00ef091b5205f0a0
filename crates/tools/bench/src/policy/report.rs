//! What a run found: rows, the circumstances, JSON.

mod plot;
mod table;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::loads::Load;
use super::options::PolicyOptions;
use super::systems::{Measured, System};
use crate::machine::Machine;
use crate::micro::Skipped;
use crate::table::size_text;

/// One combination of what is varied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The load.
    pub load: Load,
    /// Model of NVM, or "none".
    pub model: String,
    /// Bytes of a client's log, which is the buffer.
    pub log_bytes: u64,
    /// Threads of the load.
    pub threads: u32,
    /// Bytes of its calls; `None`: as published.
    pub io_bytes: Option<u64>,
}

impl Cell {
    /// Size of the calls, for people.
    fn io_text(&self) -> String {
        self.io_bytes.map_or("-".to_owned(), size_text)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = size_text(self.log_bytes);
        write!(
            f,
            "{}, {}, log {log}, threads {}",
            self.load, self.model, self.threads
        )?;
        match self.io_bytes {
            Some(bytes) => write!(f, ", calls of {}", size_text(bytes)),
            None => Ok(()),
        }
    }
}

/// A number of several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of numbers; `None`: there are none.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut all: Vec<f64> = numbers.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let (least, greatest) = (*all.first()?, *all.last()?);
        let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0;
        Some(Spread {
            median,
            least,
            greatest,
        })
    }
}

/// One system in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was varied.
    pub cell: Cell,
    /// What the load ran on.
    pub system: System,
    /// Bytes that reached the medium for each that the load wrote; `None`: no counts, or nothing was written.
    pub medium_bytes_for_each: Option<Spread>,
    /// Requests for each operation; `None`: no counts.
    pub requests_for_each: Option<Spread>,
    /// Of a hundred bytes that the load wrote so many were synced; `None`: nothing was written.
    pub synced_percent: Option<Spread>,
    /// Of a hundred blocks that the mount's Buffer Benefit Model has decided about again it was right about so many; `None`: of none.
    pub model_right_percent: Option<Spread>,
    /// Operations a second.
    pub operations_per_s: Spread,
    /// Operations a second over those of `base` in the same round; `None`: it is the base, or there is none.
    pub ratio: Option<Spread>,
    /// What this is compared with.
    pub base: Option<System>,
    /// Each round.
    pub rounds: Vec<Measured>,
}

impl Row {
    /// One for each system, of what each did in all rounds.
    pub(crate) fn of(cell: &Cell, systems: &[System], measured: &[Vec<Measured>]) -> Vec<Row> {
        let row =
            |(system, rounds): (&System, &Vec<Measured>)| {
                let base = base_of(system, systems);
                let speed = |round: &Measured| round.found.operations_per_s();
                let base_rounds = base
                    .and_then(|base| systems.iter().position(|s| s == base))
                    .map(|at| &measured[at]);
                let ratios = base_rounds.map(|base| {
                    let pairs = rounds.iter().zip(base);
                    pairs.map(|(own, base)| speed(own) / speed(base).max(1e-9))
                });
                let written = |round: &Measured| match round.found.written_bytes {
                    0 => None,
                    bytes => Some(bytes as f64),
                };
                Some(Row {
                    cell: cell.clone(),
                    system: system.clone(),
                    medium_bytes_for_each: Spread::of(rounds.iter().filter_map(|round| {
                        Some(round.counts?.medium_bytes as f64 / written(round)?)
                    })),
                    requests_for_each: Spread::of(rounds.iter().filter_map(|round| {
                        let operations = round.found.operations.max(1) as f64;
                        Some(round.counts?.requests as f64 / operations)
                    })),
                    synced_percent: Spread::of(rounds.iter().filter_map(|round| {
                        Some(100.0 * round.found.synced_bytes as f64 / written(round)?)
                    })),
                    model_right_percent: Spread::of(rounds.iter().filter_map(|round| {
                        let (right, wrong) = round.decided?;
                        Some(100.0 * right as f64 / (right + wrong) as f64)
                    })),
                    operations_per_s: Spread::of(rounds.iter().map(speed))?,
                    ratio: ratios.and_then(Spread::of),
                    base: base.cloned(),
                    rounds: rounds.clone(),
                })
            };
        systems.iter().zip(measured).filter_map(row).collect()
    }
}

/// What a system is compared with: the first policy of the same way; of others the first of all. `None`: that is itself.
fn base_of<'s>(system: &System, systems: &'s [System]) -> Option<&'s System> {
    let base = systems.iter().find(|other| match (system, other) {
        (System::Shale(own, _), System::Shale(way, _)) => own == way,
        (_, other) => matches!(other, System::Shale(..)),
    });
    base.filter(|base| *base != system)
}

/// Everything a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// On what.
    pub machine: Machine,
    /// Of which commit, if the sources are still there.
    pub commit: Option<String>,
    /// Whether the program was built with optimisation.
    pub optimised: bool,
    /// When it ended, in UTC.
    pub date: String,
    /// How it was measured.
    pub options: PolicyOptions,
    /// Systems that were left out.
    pub skipped: Vec<Skipped>,
    /// What has to be known to read the rows.
    pub notes: Vec<String>,
    /// Measurements that failed, and why; nothing of their cells is in the rows.
    pub failed: Vec<String>,
    /// What was measured: by cell, then system.
    pub rows: Vec<Row>,
}

impl PolicyReport {
    /// As JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only names and numbers")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::policy::{Counts, Found, Way};

    /// A made-up turn.
    pub fn measured(operations: u64, written_bytes: u64, counts: Option<(u64, u64)>) -> Measured {
        Measured {
            found: Found {
                operations,
                seconds: 2.0,
                written_bytes,
                read_bytes: 0,
                fsyncs: 0,
                synced_bytes: written_bytes / 2,
            },
            counts: counts.map(|(medium_bytes, requests)| Counts {
                medium_bytes,
                requests,
            }),
            decided: None,
        }
    }

    /// A made-up cell.
    pub fn cell(load: Load, threads: u32, io_bytes: Option<u64>) -> Cell {
        Cell {
            load,
            model: "hinfs".to_owned(),
            log_bytes: 64 << 20,
            threads,
            io_bytes,
        }
    }

    /// Two policies on the mount, and tmpfs.
    pub fn systems() -> [System; 3] {
        [
            System::Shale(Way::Mount, "strict".to_owned()),
            System::Shale(Way::Mount, "buffered".to_owned()),
            System::Tmpfs,
        ]
    }

    /// A made-up report with rows of two rounds of each of these cells.
    pub fn report(cells: &[Cell]) -> PolicyReport {
        let rows = cells.iter().flat_map(|cell| {
            let n = u64::from(cell.threads);
            let strict = [
                measured(100 * n, 1_000, Some((1_500, 50))),
                measured(200 * n, 1_000, Some((1_700, 50))),
            ];
            let buffered = [
                measured(150 * n, 1_000, Some((1_000, 60))),
                measured(500 * n, 1_000, Some((800, 60))),
            ];
            let tmpfs = [
                measured(1_000 * n, 1_000, None),
                measured(1_000 * n, 1_000, None),
            ];
            let all = [strict, buffered, tmpfs].map(Vec::from);
            Row::of(cell, &systems(), &all)
        });
        PolicyReport {
            machine: Machine::this(),
            commit: Some("0123456789ab".to_owned()),
            optimised: true,
            date: "2025-11-21 21:00 UTC".to_owned(),
            options: PolicyOptions::quick("shale".into()),
            skipped: vec![],
            notes: vec!["usr0: synthetic".to_owned()],
            failed: vec![],
            rows: rows.collect(),
        }
    }

    #[test]
    fn ratios_are_of_the_same_round_and_the_same_way() {
        let report = report(&[cell(Load::Varmail, 1, None)]);
        let [strict, buffered, tmpfs] = &report.rows[..] else {
            panic!("three systems");
        };
        assert_eq!((strict.ratio, &strict.base), (None, &None));
        let ratio = buffered.ratio.unwrap();
        assert_eq!((ratio.least, ratio.median, ratio.greatest), (1.5, 2.0, 2.5));
        assert_eq!(buffered.base.as_ref(), Some(&strict.system));
        assert_eq!(tmpfs.ratio.unwrap().median, 7.5);
        assert_eq!(strict.medium_bytes_for_each.unwrap().median, 1.6);
        assert_eq!(buffered.requests_for_each.unwrap().greatest, 0.4);
        assert_eq!(tmpfs.medium_bytes_for_each, None);
        assert_eq!(strict.synced_percent.unwrap().median, 50.0);
        assert_eq!(strict.operations_per_s.median, 75.0);
        let run = System::Shale(Way::Run, "buffered".to_owned());
        assert_eq!(
            base_of(&run, &systems()),
            None,
            "not compared with the mount"
        );
    }

    #[test]
    fn what_writes_nothing_has_no_bytes_for_each() {
        let rows = Row::of(
            &cell(Load::KernelGrep, 1, None),
            &systems()[..1],
            &[vec![measured(10, 0, Some((4_096, 3)))]],
        );
        assert_eq!(rows[0].medium_bytes_for_each, None);
        assert_eq!(rows[0].requests_for_each.unwrap().median, 0.3);
    }

    #[test]
    fn json_keeps_everything() {
        let report = report(&[cell(Load::Varmail, 1, Some(4_096))]);
        let back: PolicyReport = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(back, report);
        assert_eq!(Spread::of([]), None);
    }
}
