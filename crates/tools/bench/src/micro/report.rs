//! What a run found: rows, the circumstances, JSON.

pub mod budget;
mod plot;
mod table;

use serde::{Deserialize, Serialize};

use super::options::MicroOptions;
use super::target::{FLOOR, Op};
use crate::machine::Machine;

/// Costs in counts, for each operation on average. They hold on every machine.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Fences in the call.
    pub fences: f64,
    /// Cache lines of which the call asked the write-back.
    pub lines_flushed: f64,
    /// Bytes that the call stored to NVM: update log and stolen blocks.
    pub nvm_bytes_before_digest: f64,
    /// The same and what digest stored to the volume for it: data, structure, journal.
    pub nvm_bytes_after_digest: f64,
}

/// One operation at one size on one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// Bytes of each operation; 0 for operations without a size.
    pub size_bytes: u64,
    /// The target's name.
    pub target: String,
    /// Operations that were timed.
    pub ops: u64,
    /// Mean, in nanoseconds.
    pub mean_ns: f64,
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: f64,
    /// 99.9th percentile, in nanoseconds; the maximum where there are fewer than 1,000 operations.
    pub p999_ns: f64,
    /// Work put off and done after the calls, by anybody, in nanoseconds for each
    /// operation. What the mount puts off is not seen from here.
    #[serde(rename = "settle_ns")]
    pub flush_ns: f64,
    /// Median over the floor's median of the same operation and size, unless that is
    /// below a step of the timer.
    pub ratio_to_floor: Option<f64>,
    /// Costs in counts, where the target has them.
    pub counts: Option<Counts>,
}

/// A target that was not measured, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The target's name.
    pub target: String,
    /// Why.
    pub why: String,
}

/// Everything a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MicroReport {
    /// On what.
    pub machine: Machine,
    /// Of which commit, if the sources are still there.
    pub commit: Option<String>,
    /// Whether the program was built with optimisation.
    pub optimised: bool,
    /// When it ended, in UTC.
    pub date: String,
    /// What NVM was: instructions, whether it survives a power cut, timing model.
    pub device: String,
    /// How it was measured.
    pub options: MicroOptions,
    /// Cost of taking a time, already taken off every time, in nanoseconds.
    pub timer_overhead_ns: f64,
    /// Steps in which the time moves, in nanoseconds; medians are found within a step.
    pub timer_step_ns: u64,
    /// Targets that were left out.
    pub skipped: Vec<Skipped>,
    /// What has to be known to read the rows.
    pub notes: Vec<String>,
    /// What was measured: by operation, then size, then target.
    pub rows: Vec<Row>,
}

impl MicroReport {
    /// The row of an operation, a size (0: none) and a target.
    pub fn row(&self, op: Op, size_bytes: u64, target: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.op == op && row.size_bytes == size_bytes && row.target == target)
    }

    /// Names of the targets, in the order of their first rows.
    pub fn targets(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.target.as_str()) {
                names.push(&row.target);
            }
        }
        names
    }

    /// As JSON, for `bench-diff` and for later.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has only names and numbers")
    }

    /// Back from JSON.
    ///
    /// # Errors
    /// Text that is not such a report.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// Sets every row's ratio to the floor.
    pub(crate) fn set_ratios(&mut self) {
        let floors: Vec<(Op, u64, f64)> = self
            .rows
            .iter()
            .filter(|row| row.target == FLOOR)
            .map(|row| (row.op, row.size_bytes, row.p50_ns))
            .collect();
        // Below a step of the timer a floor is noise, and so would be the ratio.
        let least = self.timer_step_ns as f64;
        for row in &mut self.rows {
            let floor = floors
                .iter()
                .find(|(op, size, _)| (*op, *size) == (row.op, row.size_bytes));
            row.ratio_to_floor = floor
                .filter(|(_, _, ns)| *ns > least)
                .map(|(_, _, ns)| (row.p50_ns / ns * 1_000.0).round() / 1_000.0);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A made-up row with this median and no counts.
    pub(crate) fn row(op: Op, size_bytes: u64, target: &str, p50_ns: u64) -> Row {
        let p50_ns = p50_ns as f64;
        Row {
            op,
            size_bytes,
            target: target.to_owned(),
            ops: 1_000,
            mean_ns: p50_ns * 1.25,
            p50_ns,
            p99_ns: p50_ns * 2.0,
            p999_ns: p50_ns * 3.0,
            flush_ns: 0.0,
            ratio_to_floor: None,
            counts: None,
        }
    }

    /// A made-up report with these rows.
    pub(crate) fn report(rows: Vec<Row>) -> MicroReport {
        let mut report = MicroReport {
            machine: Machine::this(),
            commit: Some("0123456789ab".to_owned()),
            optimised: true,
            date: "2025-11-21 21:00 UTC".to_owned(),
            device: "avx512+clwb".to_owned(),
            options: MicroOptions::default(),
            timer_overhead_ns: 20.5,
            timer_step_ns: 10,
            skipped: vec![],
            notes: vec![],
            rows,
        };
        report.set_ratios();
        report
    }

    #[test]
    fn json_keeps_everything() {
        let mut rows = vec![
            row(Op::Append, 128, FLOOR, 200),
            row(Op::Append, 128, super::super::LIBFS, 300),
        ];
        rows[1].counts = Some(Counts {
            fences: 1.0,
            lines_flushed: 0.0,
            nvm_bytes_before_digest: 192.0,
            nvm_bytes_after_digest: 350.5,
        });
        let report = report(rows);
        assert_eq!(report.rows[1].ratio_to_floor, Some(1.5));
        let back = MicroReport::from_json(&report.to_json()).unwrap();
        assert_eq!(back, report);
        assert!(MicroReport::from_json("{}").is_err());
    }

    #[test]
    fn without_a_floor_there_is_no_ratio() {
        let report = report(vec![
            row(Op::Append, 128, FLOOR, 200),
            row(Op::Append, 64, "tmpfs", 900),
            row(Op::RandomRead, 64, FLOOR, 9),
            row(Op::RandomRead, 64, "tmpfs", 500),
        ]);
        let unclear = report.row(Op::RandomRead, 64, "tmpfs").unwrap();
        assert_eq!(
            unclear.ratio_to_floor, None,
            "the timer moves in steps of 10"
        );
        assert_eq!(
            report.row(Op::Append, 64, "tmpfs").unwrap().ratio_to_floor,
            None
        );
        assert_eq!(report.targets(), [FLOOR, "tmpfs"]);
    }
}
