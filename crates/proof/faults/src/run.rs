//! Every row with every workload, one after the other.

use std::time::Instant;

use crate::table::{ROWS, Row};
use crate::trial::{Options, Outcome, Trial};
use crate::volume::load::Load;
use crate::volume::stage::{Checked, Filled};
use shale_bench::Result;
use shale_bench::chance::Chance;

/// Tries all rows with all workloads; tells each outcome as soon as it is known.
///
/// # Errors
/// What is around could not do it. What Shale does wrong is in the outcomes.
pub fn run(options: &Options, tell: &dyn Fn(&Outcome)) -> Result<Vec<Outcome>> {
    let begun = Instant::now();
    let acts = if options.quick { 300 } else { 1_500 };
    let mut outcomes = Vec::new();
    for &load in &options.loads {
        let filled = Filled::make(&options.dir, load, options.seed, acts)?;
        let rows = ROWS.iter().filter(|r| r.name.contains(&options.only));
        for row in rows {
            let outcome = match &filled {
                Err(wrong) => missed(row, load, format!("the workload: {wrong}")),
                Ok(_) if begun.elapsed() >= options.time_limit => {
                    missed(row, load, "not tried: time was up".to_owned())
                }
                Ok(filled) => one(options, row, filled)?,
            };
            tell(&outcome);
            outcomes.push(outcome);
        }
    }
    Ok(outcomes)
}

fn missed(row: &Row, load: Load, wrong: String) -> Outcome {
    Outcome {
        fault: row.name,
        load,
        promise: row.promise,
        cases: 0,
        seen: String::new(),
        untried: false,
        wrong: Some(wrong),
        seconds: 0.0,
    }
}

fn one(options: &Options, row: &Row, filled: &Filled) -> Result<Outcome> {
    let begun = Instant::now();
    let mut trial = Trial {
        filled,
        options,
        chance: Chance::new(options.seed ^ row.name.len() as u64),
        cases: 0,
        seen: String::new(),
        untried: false,
        buffered: false,
        until: begun + options.row_limit,
    };
    let done: Checked<()> = (row.run)(&mut trial)?;
    let wrong = match done {
        Ok(()) if trial.cases == 0 && !trial.untried => Some("no case could be tried".to_owned()),
        done => done.err(),
    };
    Ok(Outcome {
        fault: row.name,
        load: filled.load,
        promise: row.promise,
        cases: trial.cases,
        seen: trial.seen,
        untried: trial.untried,
        wrong,
        seconds: begun.elapsed().as_secs_f64(),
    })
}
