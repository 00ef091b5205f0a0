//! Two attacks at once, on one volume, with an honest client beside them.

use crate::stage::Stage;
use crate::{Scene, all};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Pairs that share a stage.
const EACH: usize = 60;

fn strike(stage: &Stage, pairs: &[(usize, usize)]) {
    let cases = all();
    for &(one, other) in pairs {
        let at_once = [(one, "a"), (other, "b")];
        std::thread::scope(|scope| {
            for (n, side) in at_once {
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
}

fn run(pairs: &[(usize, usize)]) {
    for some in pairs.chunks(EACH) {
        let stage = Stage::new();
        strike(&stage, some);
        stage.end();
    }
}

/// A sample in which each case is with one other at least.
#[test]
fn each_with_some_others() {
    let count = all().len();
    let pairs: Vec<(usize, usize)> = (0..count).map(|n| (n, (n * 31 + 17) % count)).collect();
    run(&pairs);
}

/// All pairs. `SHALE_PAIRS=3/8` runs the third of eight parts.
#[test]
#[ignore = "some minutes: cargo test -p shale-daemon --test hostile -- --ignored"]
fn each_with_each() {
    let count = all().len();
    let part = std::env::var("SHALE_PAIRS").unwrap_or_else(|_| "1/1".to_owned());
    let (part, of) = part.split_once('/').unwrap();
    let (part, of): (usize, usize) = (part.parse().unwrap(), of.parse().unwrap());
    let pairs: Vec<(usize, usize)> = (0..count)
        .flat_map(|a| (a..count).map(move |b| (a, b)))
        .collect();
    let each = pairs.len().div_ceil(of);
    let some = pairs.chunks(each).nth(part - 1).unwrap();
    println!("{} of {} pairs", some.len(), pairs.len());
    run(some);
}
