//! `cargo xtask bench-diff OLD NEW`: which counts of a benchmark changed.
//!
//! Only counts are compared: they hold on every machine. Both files are what the
//! benchmarks write: `{"rows": [{"name": "append 4 KiB", "counts": {"fences": 1.0, …}}]}`.
//! Rows and counts that only one side has are differences too.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, read};

/// Counts are ratios per operation; below this they are the same number printed twice.
const RELATIVE_DIFFERENCE_MIN: f64 = 1e-6;

#[derive(Debug, Deserialize)]
struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    name: String,
    #[serde(default)]
    counts: BTreeMap<String, f64>,
}

type Counts = BTreeMap<(String, String), f64>;

/// Prints every difference; it is an error if there is one.
pub fn run(old: &Path, new: &Path) -> Result<(), Error> {
    let differences = compare(&load(old)?, &load(new)?);
    for difference in &differences {
        println!("{difference}");
    }
    match differences.len() {
        0 => {
            println!("bench-diff: counts are the same");
            Ok(())
        }
        count => Err(Error::BenchDiffers(count)),
    }
}

fn load(path: &Path) -> Result<Counts, Error> {
    parse(&read(path)?).ok_or_else(|| Error::BenchFile {
        path: path.to_path_buf(),
        expected: "{\"rows\": [{\"name\": …, \"counts\": {…}}]} with at least one count",
    })
}

fn parse(text: &str) -> Option<Counts> {
    let report: Report = serde_json::from_str(text).ok()?;
    let counts: Counts = report
        .rows
        .into_iter()
        .flat_map(|row| {
            let name = row.name;
            row.counts
                .into_iter()
                .map(move |(count, value)| ((name.clone(), count), value))
        })
        .collect();
    // Two files without counts would always agree.
    (!counts.is_empty()).then_some(counts)
}

fn compare(old: &Counts, new: &Counts) -> Vec<String> {
    let mut differences = Vec::new();
    for ((row, count), before) in old {
        match new.get(&(row.clone(), count.clone())) {
            None => differences.push(format!("{row}: {count} was {before}, now missing")),
            Some(now) if differ(*before, *now) => {
                differences.push(format!("{row}: {count} was {before}, now {now}"));
            }
            Some(_) => {}
        }
    }
    for ((row, count), now) in new {
        if !old.contains_key(&(row.clone(), count.clone())) {
            differences.push(format!("{row}: {count} is new: {now}"));
        }
    }
    differences
}

fn differ(a: f64, b: f64) -> bool {
    (a - b).abs() > RELATIVE_DIFFERENCE_MIN * a.abs().max(b.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Counts {
        parse(text).unwrap()
    }

    #[test]
    fn changed_lost_and_new_counts_are_named() {
        let old = counts(
            r#"{"rows":[{"name":"append","counts":{"fences":1.0,"nvm_bytes":4184}},{"name":"time","ns":3}]}"#,
        );
        assert!(compare(&old, &old).is_empty());
        let new = counts(r#"{"rows":[{"name":"append","counts":{"fences":2.0,"flushes":1}}]}"#);
        assert_eq!(
            compare(&old, &new),
            [
                "append: fences was 1, now 2",
                "append: nvm_bytes was 4184, now missing",
                "append: flushes is new: 1"
            ]
        );
    }

    #[test]
    fn a_file_without_counts_is_refused() {
        assert!(parse(r#"{"rows":[]}"#).is_none());
        assert!(parse("[]").is_none());
    }
}
