//! The table of faults in short: a few cases of each row, with each workload.
//!
//! Rows that need failpoints are tried with `cargo test -p shale-harness --features failpoints`.

use std::process::Command;

fn quick(load: &str) {
    let mut harness = Command::new(env!("CARGO_BIN_EXE_shale-harness"));
    harness.args(["faults", "--quick", "--row-seconds", "3", "--loads", load]);
    let output = harness.output().unwrap();
    let noted = String::from_utf8_lossy(&output.stderr);
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{noted}\n{summary}");
    assert!(summary.contains(" 0 failed"), "{summary}");
    let untried = summary.contains(" 0 not tried");
    assert_eq!(untried, cfg!(feature = "failpoints"), "{summary}");
}

#[test]
fn promises_are_kept_with_random_operations() {
    quick("random");
}

#[test]
fn promises_are_kept_with_mail() {
    quick("mail");
}

#[test]
fn promises_are_kept_with_records() {
    quick("records");
}
