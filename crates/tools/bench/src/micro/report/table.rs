//! A report as text for people.

use std::fmt;

use super::{MicroReport, Row};
use crate::table::{grouped, size_text, write_table};

/// With one decimal where it says something.
fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns < 100.0 => format!("{ns:.1}"),
        ns => grouped(ns.round() as u64),
    }
}

const HEAD: [&str; 13] = [
    "operation",
    "size",
    "target",
    "ops",
    "p50 ns",
    "p99 ns",
    "p99.9 ns",
    "mean ns",
    "x floor",
    "later ns",
    "fences",
    "NVM B",
    "+digest B",
];

fn cells(row: &Row) -> [String; 13] {
    let count = |pick: fn(&super::Counts) -> f64, digits: usize| {
        let found = row.counts.as_ref().map(pick);
        found.map_or(String::new(), |n| format!("{n:.digits$}"))
    };
    [
        row.op.name().to_owned(),
        size_text(row.size_bytes),
        row.target.clone(),
        grouped(row.ops),
        nanoseconds(row.p50_ns),
        nanoseconds(row.p99_ns),
        nanoseconds(row.p999_ns),
        nanoseconds(row.mean_ns),
        row.ratio_to_floor
            .map_or(String::new(), |r| format!("{r:.2}")),
        nanoseconds(row.flush_ns),
        count(|c| c.fences, 2),
        count(|c| c.nvm_bytes_before_digest, 0),
        count(|c| c.nvm_bytes_after_digest, 0),
    ]
}

/// Columns that are words.
const WORDS: usize = 3;

impl fmt::Display for MicroReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (m, o) = (&self.machine, &self.options);
        writeln!(f, "{m}")?;
        writeln!(
            f,
            "NVM: {}; huge pages of shared memory: {}",
            self.device, m.huge_pages
        )?;
        writeln!(
            f,
            "commit {}{}, {}, seed {}, {} rounds, file of {} MiB, timer {:.1} ns (taken off) in steps of {} ns",
            self.commit.as_deref().unwrap_or("unknown"),
            if self.optimised {
                ""
            } else {
                " (NOT OPTIMISED)"
            },
            self.date,
            o.seed,
            o.rounds,
            o.working_set_bytes >> 20,
            self.timer_overhead_ns,
            self.timer_step_ns
        )?;
        for skipped in &self.skipped {
            writeln!(f, "left out: {}: {}", skipped.target, skipped.why)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        writeln!(f)?;
        let rows = self.rows.iter();
        let rows: Vec<_> = rows
            .map(|row| ((row.op, row.size_bytes), cells(row)))
            .collect();
        write_table(f, WORDS, HEAD, &rows)?;
        writeln!(f)?;
        for budget in self.budgets() {
            writeln!(f, "{budget}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::micro::report::tests::{report, row};
    use crate::micro::{FLOOR, LIBFS, Op};

    #[test]
    fn the_table_has_a_line_for_each_row_and_each_budget() {
        let report = report(vec![
            row(Op::Append, 4_096, FLOOR, 400),
            row(Op::Append, 4_096, LIBFS, 520),
        ]);
        let text = report.to_string();
        let found = text.lines().find(|line| line.contains(LIBFS)).unwrap();
        assert!(found.contains("4 KiB") && found.contains("1.30"), "{found}");
        assert!(text.lines().count() >= 5 + 2 + report.budgets().len());
    }
}
