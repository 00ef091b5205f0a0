//! `cargo xtask ci`: every check of the project, in order of cost, each timed. `cargo xtask check`: those that take
//! seconds, the unit tests but those of power cuts, and power cuts for 20 s.
//!
//! A failed step does not stop the next: one run shows everything. The last line
//! is `N passed, N failed`, counting each test and each other step as one.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::{figures, spec, tidy};

/// Power cuts for 20 s, by the program that the tests have had built.
const CRASH: [&str; 3] = ["crash", "--seconds", "20"];

struct Outcome {
    name: &'static str,
    passed: usize,
    failed: usize,
    took: Duration,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Minutes after a build.
    Fast,
    /// Everything.
    Whole,
}

/// Runs all steps of a tier and prints the summary.
pub fn run(root: &Path, tier: Tier) -> Result<(), Error> {
    let cargo = |arguments: &[&str]| cargo(root, arguments);
    let mut outcomes = vec![
        step("fmt", || cargo(&["fmt", "--all", "--check"])),
        step("tidy", || single(tidy::run(root))),
        step("spec", || single(spec::run(root, spec::Mode::Check))),
        step("figures", || {
            single(figures::run(root, figures::Mode::Check))
        }),
        step("clippy", || {
            cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ])
        }),
    ];
    let mut tests = vec!["test", "--workspace", "--locked", "--no-fail-fast"];
    if tier == Tier::Whole {
        // Compiled in from the start: tests that need them would have the workspace built once more each.
        tests.extend([
            "--features",
            "shale-harness/failpoints,shale-preload/failpoints",
        ]);
    }
    if tier == Tier::Fast {
        // Tests of power cuts at every fence take minutes, and so does the crate that cuts; some cuts of all kinds follow. With one of its own
        // tests, which takes seconds, the harness is built as a program as well: on its own it would be built with other features of
        // what all use, so once more.
        tests.extend(["--exclude", "shale-powercut", "--lib", "--bins"]);
        tests.extend(["--test", "flash"]);
        tests.extend(["--", "--skip", "power_cut"]);
    }
    outcomes.push(step("test", || cargo(&tests)));
    if tier == Tier::Fast {
        outcomes.push(step("crash", || {
            program(root, &beside_this("shale-harness")?, &CRASH)
        }));
    }

    println!("\nstep      passed  failed   seconds");
    for outcome in &outcomes {
        let Outcome {
            name,
            passed,
            failed,
            took,
        } = outcome;
        println!(
            "{name:<8} {passed:>7} {failed:>7} {:>9.1}",
            took.as_secs_f64()
        );
    }
    let passed: usize = outcomes.iter().map(|outcome| outcome.passed).sum();
    let failed: usize = outcomes.iter().map(|outcome| outcome.failed).sum();
    println!("{passed} passed, {failed} failed");
    if failed == 0 {
        Ok(())
    } else {
        Err(Error::CiFailed(failed))
    }
}

fn step(name: &'static str, work: impl FnOnce() -> Result<(usize, usize), Error>) -> Outcome {
    println!("\n== {name}");
    let begin = Instant::now();
    let (passed, failed) = work().unwrap_or_else(|error| {
        println!("{error}");
        (0, 1)
    });
    Outcome {
        name,
        passed,
        failed,
        took: begin.elapsed(),
    }
}

fn single(outcome: Result<(), Error>) -> Result<(usize, usize), Error> {
    outcome.map(|()| (1, 0))
}

/// Runs cargo, shows what it prints, and counts the tests that it reports. A command
/// that reports none counts as one check.
fn cargo(root: &Path, arguments: &[&str]) -> Result<(usize, usize), Error> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    program(root, Path::new(&cargo), arguments)
}

/// A program of this workspace, where cargo has built this one.
fn beside_this(name: &str) -> Result<PathBuf, Error> {
    let this = std::env::current_exe().map_err(|source| Error::Program {
        program: name.to_owned(),
        source,
    })?;
    Ok(this.with_file_name(name))
}

/// Runs a program as [`cargo`] does.
fn program(root: &Path, program: &Path, arguments: &[&str]) -> Result<(usize, usize), Error> {
    let failed = |source| Error::Program {
        program: program.display().to_string(),
        source,
    };
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut counts = (0, 0);
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(failed)?;
            println!("{line}");
            if let Some((passed, failed)) = test_result(&line) {
                counts = (counts.0 + passed, counts.1 + failed);
            }
        }
    }
    let success = child.wait().map_err(failed)?.success();
    Ok(judge(counts, success))
}

/// A program that fails without a failed test (it did not build, it died) is one failure.
fn judge(counts: (usize, usize), success: bool) -> (usize, usize) {
    match (counts, success) {
        ((0, 0), true) => (1, 0),
        ((passed, 0), false) => (passed, 1),
        (counts, _) => counts,
    }
}

/// Counts of a line `test result: ok. 3 passed; 0 failed; …`.
fn test_result(line: &str) -> Option<(usize, usize)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut parts = counts.split("; ");
    let mut count = |word: &str| parts.next()?.strip_suffix(word)?.trim().parse().ok();
    Some((count("passed")?, count("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_results_are_counted() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(test_result(line), Some((12, 3)));
        assert_eq!(test_result("test a ... ok"), None);
    }

    #[test]
    fn a_failure_that_no_test_reports_still_counts() {
        assert_eq!(judge((7, 0), false), (7, 1));
        assert_eq!(judge((0, 0), false), (0, 1));
        assert_eq!(judge((0, 0), true), (1, 0));
        assert_eq!(judge((7, 2), false), (7, 2));
    }

    #[test]
    fn a_step_that_cannot_run_fails() {
        let outcome = step("x", || Err(Error::Usage("no")));
        assert_eq!((outcome.passed, outcome.failed), (0, 1));
    }
}
