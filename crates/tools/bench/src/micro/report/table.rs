//! A report as text for people.

use std::fmt;

use super::{MicroReport, Row};

/// "64 B", "4 KiB", "1 MiB".
pub(crate) fn size_text(bytes: u64) -> String {
    match bytes {
        0 => "-".to_owned(),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

/// A number with a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

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

/// The first three columns are words and start left; numbers end right.
const WORDS: usize = 3;

fn line(f: &mut fmt::Formatter<'_>, cells: &[String; 13], widths: &[usize; 13]) -> fmt::Result {
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = if column == 0 { "" } else { "  " };
        match column < WORDS {
            true => write!(f, "{gap}{cell:<width$}")?,
            false => write!(f, "{gap}{cell:>width$}")?,
        }
    }
    writeln!(f)
}

impl fmt::Display for MicroReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (m, o) = (&self.machine, &self.options);
        let mib = |bytes: u64| bytes >> 20;
        writeln!(
            f,
            "{} x {}{}, last-level cache {} MiB, memory {} MiB, kernel {}",
            m.cpus,
            m.cpu,
            if m.virtual_machine { " (virtual)" } else { "" },
            mib(m.last_level_cache_bytes),
            mib(m.memory_bytes),
            m.kernel
        )?;
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
            mib(o.working_set_bytes),
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
        let all: Vec<[String; 13]> = self.rows.iter().map(cells).collect();
        let head = HEAD.map(str::to_owned);
        let mut widths = [0; 13];
        for cells in all.iter().chain([&head]) {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.len());
            }
        }
        line(f, &head, &widths)?;
        let mut last = None;
        for (row, cells) in self.rows.iter().zip(&all) {
            if last.is_some_and(|last| last != (row.op, row.size_bytes)) {
                writeln!(f)?;
            }
            last = Some((row.op, row.size_bytes));
            line(f, cells, &widths)?;
        }
        writeln!(f)?;
        for budget in self.budgets() {
            writeln!(f, "{budget}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::report::tests::{report, row};
    use crate::micro::{FLOOR, LIBFS, Op};

    #[test]
    fn sizes_and_numbers_are_readable() {
        assert_eq!(
            [64, 1_000, 4_096, 1 << 20].map(size_text),
            ["64 B", "1000 B", "4 KiB", "1 MiB"]
        );
        assert_eq!(
            [7, 1_000, 1_234_567].map(grouped),
            ["7", "1,000", "1,234,567"]
        );
    }

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
