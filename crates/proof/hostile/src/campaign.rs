//! All cases: alone, each with each on one volume, and as logs that a killed daemon left.
//!
//! What is wrong comes as a panic from the look at a stage, and is reported with a command that
//! shows it again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::stage::Stage;
use super::{Case, Scene, TABLES, buffered, left};

/// Cases and pairs that share a stage.
const EACH: usize = 60;

/// What to try, and how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only cases whose name contains this; pairs of which one does.
    pub only: String,
    /// Which pairs.
    pub pairs: Pairs,
    /// Ends after so long; what was not tried by then has not passed.
    pub time_limit: Duration,
    /// Ends at the first failure.
    pub first: bool,
}

/// Which pairs of cases are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// None: each case alone.
    None,
    /// Each case with one other.
    Some,
    /// Part `.0` of `.1` of all pairs.
    Part(u64, u64),
}

/// Something that is wrong.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Failure {
    /// The case or cases.
    pub cases: Vec<String>,
    /// What is wrong.
    pub wrong: String,
    /// Arguments that show it again.
    pub again: String,
}

/// How many of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// There are.
    pub all: u64,
    /// Were tried.
    pub tried: u64,
    /// Kept what is promised.
    pub passed: u64,
}

/// What a run came to.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Summary {
    /// Each case alone.
    pub alone: Count,
    /// Two cases at once.
    pub pairs: Count,
    /// Logs that were left for recovery.
    pub left: Count,
    /// What is wrong.
    pub failures: Vec<Failure>,
    /// Seconds it took.
    pub seconds: f64,
}

impl Summary {
    /// All counts together.
    pub fn sum(&self) -> Count {
        let mut sum = Count::default();
        for count in [self.alone, self.pairs, self.left] {
            sum.all += count.all;
            sum.tried += count.tried;
            sum.passed += count.passed;
        }
        sum
    }
}

/// Heads and names of all cases; last those of [`left`] and [`buffered`], which look at everything by themselves.
pub fn names() -> Vec<(&'static str, &'static str)> {
    let cases = TABLES.into_iter();
    let cases = cases.flat_map(|(head, cases)| cases.iter().map(move |case| (head, case.name)));
    let left = left::CASES.iter().map(|case| ("left", case.0));
    let buffered = buffered::CASES.iter().map(|case| ("buffered", case.0));
    cases.chain(left).chain(buffered).collect()
}

fn all() -> Vec<&'static Case> {
    TABLES.into_iter().flat_map(|table| table.1).collect()
}

fn caught(act: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        text.unwrap_or_default()
    })
}

struct Run<'o> {
    options: &'o Options,
    begun: Instant,
    summary: Summary,
    tell: &'o dyn Fn(&Summary),
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        let failed = self.options.first && !self.summary.failures.is_empty();
        failed || self.begun.elapsed() >= self.options.time_limit
    }

    fn fail(&mut self, cases: &[&str], wrong: String) {
        let again = match cases {
            [one] => format!("hostile --only '{one}' --no-pairs"),
            _ => format!("hostile --only '{}' --pairs", cases[0]),
        };
        self.summary.failures.push(Failure {
            cases: cases.iter().map(|&name| name.to_owned()).collect(),
            wrong,
            again,
        });
    }

    fn noted(&mut self) {
        self.summary.seconds = self.begun.elapsed().as_secs_f64();
        (self.tell)(&self.summary);
    }

    fn alone(&mut self) {
        let mine = |case: &&Case| case.name.contains(&self.options.only);
        let cases: Vec<&Case> = all().into_iter().filter(mine).collect();
        self.summary.alone.all = cases.len() as u64;
        for some in cases.chunks(EACH) {
            if self.is_over() {
                return;
            }
            let strike = |cases: &[&Case]| {
                caught(|| {
                    let stage = Stage::new();
                    for (n, case) in cases.iter().enumerate() {
                        case.alone(&stage, n);
                    }
                    stage.end();
                })
            };
            let together = strike(some);
            self.summary.alone.tried += some.len() as u64;
            self.summary.alone.passed += match together {
                Ok(()) => some.len() as u64,
                // Which of them it is shows on a stage of their own.
                Err(wrong) => {
                    self.each(some, &wrong, |case| strike(&[case]), |case| vec![case.name])
                }
            };
            self.noted();
        }
    }

    /// Tries again one at a time what failed together; how many pass.
    fn each<T: Copy>(
        &mut self,
        some: &[T],
        together: &str,
        strike: impl Fn(T) -> Result<(), String>,
        names: impl Fn(T) -> Vec<&'static str>,
    ) -> u64 {
        let before = self.summary.failures.len();
        for &one in some {
            if let Err(wrong) = strike(one) {
                self.fail(&names(one), wrong);
            }
        }
        let failed = self.summary.failures.len() - before;
        if failed == 0 {
            let first = some.first().map_or(vec![], |&one| names(one));
            let wrong = format!("{together} (among {}, each of which passes)", some.len());
            self.fail(&first, wrong);
        }
        (some.len() - failed.max(1)) as u64
    }

    fn left(&mut self) {
        let mine = left::CASES
            .iter()
            .chain(buffered::CASES)
            .filter(|c| c.0.contains(&self.options.only));
        for (name, act) in mine {
            self.summary.left.all += 1;
            if self.is_over() {
                continue;
            }
            self.summary.left.tried += 1;
            match caught(act) {
                Ok(()) => self.summary.left.passed += 1,
                Err(wrong) => self.fail(&[name], wrong),
            }
            self.noted();
        }
    }

    fn pairs(&mut self) {
        let cases = all();
        let count = cases.len();
        let mine = |n: usize| cases[n].name.contains(&self.options.only);
        let pairs: Vec<(usize, usize)> = match self.options.pairs {
            Pairs::None => return,
            // Each case is with one other at least.
            Pairs::Some => (0..count).map(|n| (n, (n * 31 + 17) % count)).collect(),
            Pairs::Part(..) => (0..count)
                .flat_map(|a| (a..count).map(move |b| (a, b)))
                .collect(),
        };
        let pairs: Vec<_> = pairs
            .into_iter()
            .filter(|p| mine(p.0) || mine(p.1))
            .collect();
        let (part, of) = match self.options.pairs {
            Pairs::Part(part, of) => (part as usize, of as usize),
            _ => (0, 1),
        };
        let pairs = pairs.chunks(pairs.len().div_ceil(of).max(1)).nth(part);
        let pairs = pairs.unwrap_or_default();
        self.summary.pairs.all = pairs.len() as u64;
        for some in pairs.chunks(EACH) {
            if self.is_over() {
                return;
            }
            let strike = |pairs: &[(usize, usize)]| {
                caught(|| {
                    let stage = Stage::new();
                    pairs.iter().for_each(|&pair| at_once(&stage, &cases, pair));
                    stage.end();
                })
            };
            let together = strike(some);
            self.summary.pairs.tried += some.len() as u64;
            self.summary.pairs.passed += match together {
                Ok(()) => some.len() as u64,
                Err(wrong) => self.each(
                    some,
                    &wrong,
                    |pair| strike(&[pair]),
                    |(one, other)| vec![cases[one].name, cases[other].name],
                ),
            };
            self.noted();
        }
    }
}

/// Two attacks at once.
fn at_once(stage: &Stage, cases: &[&'static Case], (one, other): (usize, usize)) {
    std::thread::scope(|scope| {
        for (n, side) in [(one, "a"), (other, "b")] {
            let case = cases[n];
            scope.spawn(move || {
                let scene = Scene {
                    stage,
                    tag: format!("{one}-{other}-{side}"),
                    alone: false,
                };
                // What one attacker hears may depend on the other one: a lease that it
                // was given has gone before it used it. What must hold is looked at after.
                let _ = catch_unwind(AssertUnwindSafe(|| (case.strike)(&scene)));
            });
        }
    });
    stage.unchanged(&format!("{} and {}", cases[one].name, cases[other].name));
}

/// Tries all that `options` say; tells the summary as it grows.
pub fn run(options: &Options, tell: &dyn Fn(&Summary)) -> Summary {
    let mut run = Run {
        options,
        begun: Instant::now(),
        summary: Summary::default(),
        tell,
    };
    run.alone();
    run.left();
    run.pairs();
    run.noted();
    run.summary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(pairs: Pairs, only: &str) {
        let options = Options {
            only: only.to_owned(),
            pairs,
            time_limit: Duration::MAX,
            first: false,
        };
        let summary = run(&options, &|_| ());
        assert!(summary.failures.is_empty(), "{:#?}", summary.failures);
        let sum = summary.sum();
        assert_eq!((sum.passed, sum.tried), (sum.all, sum.all));
        assert!(sum.all > 0);
    }

    #[test]
    fn each_alone_and_as_a_left_log() {
        passes(Pairs::None, "");
    }

    #[test]
    fn each_with_some_others() {
        let run = Options {
            only: String::new(),
            pairs: Pairs::Some,
            time_limit: Duration::MAX,
            first: false,
        };
        let mut run = Run {
            options: &run,
            begun: Instant::now(),
            summary: Summary::default(),
            tell: &|_| (),
        };
        run.pairs();
        assert!(
            run.summary.failures.is_empty(),
            "{:#?}",
            run.summary.failures
        );
        assert_eq!(run.summary.pairs.passed, all().len() as u64);
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<_> = names().into_iter().map(|name| name.1).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
