//! Every kind of damage is found and named; no damage harms the check.

mod grown;
mod heads;
mod images;
mod inodes;
mod logs;
mod names;
mod random;
mod repair;
mod sample;
mod spaces;
mod staged;

use super::{Report, Severity};
use sample::Sample;

/// A deliberate damage: what does it, and the finding that names it.
struct Damage {
    /// Changes the volume.
    make: fn(&Sample),
    /// Words of the finding.
    what: &'static str,
    /// Part of its line.
    names: &'static str,
}

const fn damage(make: fn(&Sample), what: &'static str, names: &'static str) -> Damage {
    Damage { make, what, names }
}

/// Makes each damage in turn: it is found and named, and nothing is left of it after.
fn each_is_found(all: &[Damage]) {
    let sample = Sample::new();
    assert_clean(&sample.check());
    for d in all {
        (d.make)(&sample);
        let report = sample.check();
        assert!(!report.clean(), "'{}' is not found", d.what);
        let found = report.findings.iter().any(|f| {
            f.what == d.what && f.severity > Severity::Info && f.to_string().contains(d.names)
        });
        assert!(
            found,
            "'{}' with '{}' is not in:\n{report}",
            d.what, d.names
        );
        sample.put_back();
        repair::each_is_mended(d);
    }
    assert_clean(&sample.check());
}

fn assert_clean(report: &Report) {
    assert!(report.clean(), "{report}");
}

#[test]
fn a_volume_with_everything_is_clean() {
    let sample = Sample::journalled();
    let report = sample.check();
    assert_clean(&report);
    assert!(report.findings.is_empty(), "{report}");
    assert!(!report.needs_recovery);
    let t = report.totals;
    assert_eq!(
        (t.directories, t.symlinks, t.special, t.orphans),
        (8, 1, 2, 2)
    );
    assert_eq!(t.inodes, t.directories + t.files + t.symlinks + t.special);
    assert_eq!(t.entries, 5 + 30 * 14 + 10 + 2 + 2);
    let volume = shale_volume::Volume::open(std::sync::Arc::clone(&sample.map)).unwrap();
    let space = volume.space();
    assert_eq!((t.blocks_used, t.blocks_free), (space.used, space.free));
    assert!(
        report
            .to_string()
            .ends_with("volume is clean: 0 errors, 0 warnings")
    );
    let json = serde_json::to_string(&report).unwrap();
    assert!(json.contains("\"complete\":true"), "{json}");
}

#[test]
fn findings_are_capped_and_counted() {
    let sample = Sample::new();
    for ino in sample::MANY {
        sample.edit(ino, |i| i.nlink += 1);
    }
    let options = super::CheckOptions {
        findings_max: 7,
        ..super::CheckOptions::default()
    };
    let report = super::check(
        std::sync::Arc::clone(&sample.map),
        &[],
        &options,
        &mut |_| (),
    );
    assert_eq!(
        (report.findings.len(), report.errors, report.not_listed),
        (7, 30, 23)
    );
    assert!(report.to_string().contains("and 23 more"));
}
