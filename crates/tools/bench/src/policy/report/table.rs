//! A report as text for people.

use std::fmt;

use super::{PolicyReport, Row, Spread};
use crate::table::{grouped, size_text, write_table};

const HEAD: [&str; 13] = [
    "load", "model", "log", "io", "on", "threads", "NVM B/B", "synced", "req/op", "right", "op/s",
    "ratio", "range",
];
/// Columns that are words.
const WORDS: usize = 5;

fn cells(row: &Row) -> [String; 13] {
    let two = |spread: &Option<Spread>| match spread {
        Some(spread) => format!("{:.2}", spread.median),
        None => "-".to_owned(),
    };
    let percent = |spread: Spread| format!("{:.0}%", spread.median);
    let range = |spread: Spread| format!("{:.2}-{:.2}", spread.least, spread.greatest);
    [
        row.cell.load.name().to_owned(),
        row.cell.model.clone(),
        size_text(row.cell.log_bytes),
        row.cell.io_text(),
        row.system.to_string(),
        row.cell.threads.to_string(),
        two(&row.medium_bytes_for_each),
        row.synced_percent.map_or("-".to_owned(), percent),
        two(&row.requests_for_each),
        row.model_right_percent.map_or("-".to_owned(), percent),
        grouped(row.operations_per_s.median.round() as u64),
        two(&row.ratio),
        row.ratio.map_or("-".to_owned(), range),
    ]
}

impl fmt::Display for PolicyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let o = &self.options;
        writeln!(f, "{}", self.machine)?;
        let files = o.files.map_or("as published".to_owned(), grouped);
        writeln!(
            f,
            "commit {}{}, {}, seed {}, rounds {}, {} s each, files {files}, volumes of {}",
            self.commit.as_deref().unwrap_or("unknown"),
            match self.optimised {
                true => "",
                false => " (NOT OPTIMISED)",
            },
            self.date,
            o.seed,
            o.rounds,
            o.seconds,
            size_text(o.volume_bytes)
        )?;
        for skipped in &self.skipped {
            writeln!(f, "left out: {}: {}", skipped.target, skipped.why)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for failed in &self.failed {
            writeln!(f, "FAILED: {failed}")?;
        }
        writeln!(f)?;
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| (&row.cell, cells(row)))
            .collect();
        write_table(f, WORDS, HEAD, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cell, report};
    use crate::policy::Load;

    #[test]
    fn a_line_for_each_system_and_what_has_to_be_known() {
        let report = report(&[cell(Load::Usr0, 1, None), cell(Load::Usr0, 2, Some(4_096))]);
        let text = report.to_string();
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("buffered"))
            .collect();
        assert_eq!(lines.len(), 2, "{text}");
        for part in ["usr0", "64 MiB", "4 KiB", "0.90", "2.00", "1.50-2.50"] {
            assert!(lines[1].contains(part), "{part}: {}", lines[1]);
        }
        assert!(text.contains("note: usr0: synthetic"));
    }
}
