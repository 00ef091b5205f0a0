//! The budgets of DESIGN §13, compared with what was measured.
//!
//! A budget on times compares medians of the same run. One that names several
//! operations holds only if it holds for each of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Counts, MicroReport};
use crate::micro::target::Op;
use crate::micro::target::{FLOOR, LIBFS, TMPFS};

/// What became of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Kept.
    Pass,
    /// Not kept.
    Fail,
    /// The rows it needs are not in the report, or mean nothing: times of a short run or of a debug build, counts of a short run.
    NotMeasured,
}

/// One budget for one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// What it says.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// Bytes of the operation.
    pub size_bytes: u64,
    /// What was measured, in `unit`.
    pub measured: Option<f64>,
    /// The most that is allowed, in `unit`.
    pub limit: f64,
    /// Of both numbers.
    pub unit: String,
    /// Kept or not.
    pub verdict: Verdict,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::NotMeasured => "----",
        };
        let measured = match self.measured {
            Some(n) => format!("{n:.3}"),
            None => "not measured".to_owned(),
        };
        write!(
            f,
            "{verdict}  {:<44} {:<17} {measured} of at most {:.3} {}",
            self.name, self.op, self.limit, self.unit
        )
    }
}

const WRITES: [Op; 3] = [Op::Append, Op::Overwrite, Op::RandomOverwrite];
const READS: [Op; 2] = [Op::SequentialRead, Op::RandomRead];

/// Fences of a small write. A hundredth above 1: giving digested space back to the log
/// costs one fence, once for each digest.
const FENCES_MAX: f64 = 1.01;
/// Operations before a digest from which on counts are judged that hold what it costs once: a fence, and the blocks of a
/// few nodes.
const DIGEST_OPS_MIN: usize = 1_000;
/// Rounds of a run whose medians are compared.
const ROUNDS_MIN: u32 = 5;
/// Bytes of a 128 B write. Half a byte above 192 for the same reason: the position that
/// is given back is 8 bytes, once for each digest.
const SMALL_BYTES_MAX: f64 = 192.5;

impl MicroReport {
    /// Every budget that is about single operations.
    pub fn budgets(&self) -> Vec<Budget> {
        let mut budgets = Vec::new();
        for op in WRITES {
            budgets.push(self.times(op, 4_096, "4 KiB write over copy and fence", FLOOR, 1.5));
        }
        for op in WRITES {
            budgets.push(self.times(op, 128, "128 B write over copy and fence", FLOOR, 2.0));
        }
        for op in READS {
            budgets.push(self.times(op, 4_096, "4 KiB read over memcpy", FLOOR, 1.3));
        }
        for op in WRITES {
            budgets.push(self.times(
                op,
                4_096,
                "4 KiB durable write over tmpfs pwrite",
                TMPFS,
                1.0,
            ));
        }
        for (size, name) in [
            (128, "fences of a 128 B write"),
            (4_096, "fences of a 4 KiB write"),
        ] {
            for op in WRITES {
                let count = |c: &Counts| c.fences;
                budgets.push(self.counted(op, size, name, "fences", FENCES_MAX, count));
            }
        }
        for op in WRITES {
            let count = |c: &Counts| c.nvm_bytes_before_digest;
            let name = "NVM bytes of a 128 B write before digest";
            budgets.push(self.counted(op, 128, name, "B", SMALL_BYTES_MAX, count));
        }
        for op in WRITES {
            let count = |c: &Counts| c.nvm_bytes_after_digest;
            let name = "NVM bytes of a 4 KiB write with digest";
            budgets.push(self.counted(op, 4_096, name, "B", 1.05 * 4_096.0, count));
        }
        budgets
    }

    /// How many of them are not kept.
    pub fn budgets_broken(&self) -> usize {
        let budgets = self.budgets();
        budgets
            .iter()
            .filter(|b| b.verdict == Verdict::Fail)
            .count()
    }

    /// Whether times of the run mean anything: of an optimised build, over enough rounds.
    fn has_times(&self) -> bool {
        self.optimised && self.options.rounds >= ROUNDS_MIN
    }

    /// Whether what a digest costs once is little beside the operations that it was for.
    fn has_long_digests(&self) -> bool {
        let rounds = self.options.digest_rounds as usize;
        rounds * self.options.round_ops_max >= DIGEST_OPS_MIN
    }

    /// LibFS's median over another target's.
    fn times(&self, op: Op, size: u64, name: &str, over: &str, limit: f64) -> Budget {
        let median = |target| self.row(op, size, target).map(|row| row.p50_ns);
        let measured = match (median(LIBFS), median(over)) {
            _ if !self.has_times() => None,
            (Some(ours), Some(theirs)) if theirs > 0.0 => Some(ours / theirs),
            _ => None,
        };
        budget(op, size, name, "x", limit, measured)
    }

    fn counted(
        &self,
        op: Op,
        size: u64,
        name: &str,
        unit: &str,
        limit: f64,
        count: fn(&Counts) -> f64,
    ) -> Budget {
        let row = self.row(op, size, LIBFS);
        let counts = row.and_then(|row| row.counts.as_ref());
        let measured = counts.filter(|_| self.has_long_digests()).map(count);
        budget(op, size, name, unit, limit, measured)
    }
}

fn budget(op: Op, size: u64, name: &str, unit: &str, limit: f64, measured: Option<f64>) -> Budget {
    Budget {
        name: name.to_owned(),
        op,
        size_bytes: size,
        measured,
        limit,
        unit: unit.to_owned(),
        verdict: match measured {
            None => Verdict::NotMeasured,
            Some(n) if n <= limit => Verdict::Pass,
            Some(_) => Verdict::Fail,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::report::Row;
    use crate::micro::report::tests::{report, row};

    fn verdicts(report: &MicroReport, part_of_name: &str, op: Op) -> Vec<Verdict> {
        let budgets = report.budgets();
        let found = budgets
            .iter()
            .filter(|b| b.name.contains(part_of_name) && b.op == op);
        found.map(|b| b.verdict).collect()
    }

    fn counted(op: Op, size: u64, fences: f64, before: f64, after: f64) -> Row {
        let mut row = row(op, size, LIBFS, 600);
        row.counts = Some(Counts {
            fences,
            lines_flushed: 0.0,
            nvm_bytes_before_digest: before,
            nvm_bytes_after_digest: after,
        });
        row
    }

    #[test]
    fn times_of_a_short_run_are_not_judged() {
        let rows = vec![
            row(Op::Append, 4_096, FLOOR, 400),
            row(Op::Append, 4_096, LIBFS, 900),
        ];
        let mut long = report(rows);
        let verdict = |report: &MicroReport| verdicts(report, "4 KiB write over copy", Op::Append);
        assert_eq!(verdict(&long), [Verdict::Fail]);
        assert_eq!(long.budgets_broken(), 1);
        long.options.rounds = 2;
        assert_eq!(verdict(&long), [Verdict::NotMeasured]);
        assert_eq!(long.budgets_broken(), 0);
    }

    #[test]
    fn times_are_compared_at_the_limit() {
        let rows = |libfs| {
            report(vec![
                row(Op::Append, 4_096, FLOOR, 400),
                row(Op::Append, 4_096, LIBFS, libfs),
                row(Op::Append, 4_096, TMPFS, 700),
                row(Op::RandomRead, 4_096, FLOOR, 100),
                row(Op::RandomRead, 4_096, LIBFS, libfs),
            ])
        };
        let (kept, broken) = (rows(600), rows(601));
        assert_eq!(
            verdicts(&kept, "4 KiB write over copy", Op::Append),
            [Verdict::Pass]
        );
        assert_eq!(
            verdicts(&broken, "4 KiB write over copy", Op::Append),
            [Verdict::Fail]
        );
        assert_eq!(verdicts(&broken, "tmpfs", Op::Append), [Verdict::Pass]);
        assert_eq!(verdicts(&kept, "memcpy", Op::RandomRead), [Verdict::Fail]);
        assert_eq!(
            verdicts(&rows(130), "memcpy", Op::RandomRead),
            [Verdict::Pass]
        );
    }

    #[test]
    fn counts_of_few_operations_are_not_judged() {
        let mut short = report(vec![counted(Op::Append, 4_096, 1.02, 4_224.0, 4_345.0)]);
        let verdict = |report: &MicroReport| verdicts(report, "with digest", Op::Append);
        assert_eq!(verdict(&short), [Verdict::Fail]);
        short.options.round_ops_max = 50;
        short.options.digest_rounds = 1;
        assert_eq!(verdict(&short), [Verdict::NotMeasured]);
        assert_eq!(short.budgets_broken(), 0);
    }

    #[test]
    fn counts_are_compared() {
        let good = report(vec![
            counted(Op::Append, 128, 1.001, 192.0, 400.0),
            counted(Op::Append, 4_096, 1.0, 4_224.0, 4_300.0),
        ]);
        for name in [
            "fences of a 128",
            "fences of a 4",
            "128 B write before",
            "with digest",
        ] {
            assert_eq!(verdicts(&good, name, Op::Append), [Verdict::Pass], "{name}");
        }
        let bad = report(vec![
            counted(Op::Append, 128, 2.0, 193.0, 400.0),
            counted(Op::Append, 4_096, 1.02, 4_224.0, 4_301.0),
        ]);
        for name in [
            "fences of a 128",
            "fences of a 4",
            "128 B write before",
            "with digest",
        ] {
            assert_eq!(verdicts(&bad, name, Op::Append), [Verdict::Fail], "{name}");
        }
    }

    #[test]
    fn what_was_not_measured_does_not_pass() {
        let empty = report(vec![]);
        let budgets = empty.budgets();
        assert!(budgets.iter().all(|b| b.verdict == Verdict::NotMeasured));
        assert!(budgets[0].to_string().contains("not measured"));
    }
}
