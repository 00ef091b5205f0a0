//! Two reports of [`super::grow`] side by side: how much faster the first one was.

use super::grow::{Report, Step};

const MIB: f64 = (1 << 20) as f64;

/// Bytes written and read by the load per second, MiB.
fn speed(report: &Report) -> f64 {
    (report.written_bytes + report.read_bytes) as f64 / MIB / report.seconds
}

/// The tenth of the file system that a step filled; 1 is the first.
fn tenth(step: &Step) -> u32 {
    (step.used_percent / 10.0).floor().max(1.0) as u32
}

/// A table for docs/BENCHMARKS.md: speeds by tenths of the file system, overall, and their ratio.
pub fn table((name, report): (&str, &Report), (other_name, other): (&str, &Report)) -> String {
    let mut lines = vec![
        format!("| filled to | {name} MiB/s | {other_name} MiB/s | ratio |"),
        "| --- | ---: | ---: | ---: |".to_owned(),
    ];
    let mut line = |what: &str, a: f64, b: f64| {
        lines.push(format!("| {what} | {a:.1} | {b:.1} | {:.2} |", a / b));
    };
    for step in &report.steps {
        let same = other.steps.iter().find(|s| tenth(s) == tenth(step));
        if let Some(same) = same {
            let what = format!("{}%", 10 * tenth(step));
            line(&what, step.mib_per_s, same.mib_per_s);
        }
    }
    line("overall", speed(report), speed(other));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::Times;

    fn report(seconds: f64, steps: &[(f64, f64)]) -> Report {
        let times = Times {
            calls: 1,
            p50_us: 1.0,
            p99_us: 1.0,
            max_us: 1.0,
            sum_us: 1.0,
        };
        let steps = steps.iter().map(|(used_percent, mib_per_s)| Step {
            used_percent: *used_percent,
            mib_per_s: *mib_per_s,
        });
        Report {
            seconds,
            written_bytes: 60 << 20,
            read_bytes: 40 << 20,
            checked_bytes: 0,
            last_checked_bytes: 0,
            files: 1,
            moved_bytes: 0,
            waits: 0,
            make: times,
            append: times,
            read: times,
            remove: times,
            steps: steps.collect(),
        }
    }

    #[test]
    fn tenths_are_compared_with_the_same_tenths() {
        let shale = report(2.0, &[(10.1, 300.0), (20.4, 50.0), (30.0, 20.0)]);
        let other = report(4.0, &[(11.0, 100.0), (30.2, 40.0)]);
        let wanted = "\
| filled to | a MiB/s | b MiB/s | ratio |
| --- | ---: | ---: | ---: |
| 10% | 300.0 | 100.0 | 3.00 |
| 30% | 20.0 | 40.0 | 0.50 |
| overall | 50.0 | 25.0 | 2.00 |";
        assert_eq!(table(("a", &shale), ("b", &other)), wanted);
    }
}
