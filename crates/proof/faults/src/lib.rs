//! Faults: what is promised of each, and whether it is kept.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`table`] | the rows: fault, promise, how it is tried |
//! | [`load`] | three workloads |
//! | [`stage`] | a volume that is filled, damaged, served, checked, repaired |
//! | [`sight`] | what a damaged volume shows: each path as before, or EIO |
//! | [`anatomy`], [`rot`], [`decay`] | metadata that is not what was written |
//! | [`astray`] | metadata of another address, or of another time |
//! | [`left`] | logs that a crash left |
//! | [`cuts`] | power cuts while repair works |
//! | [`media`] | media that are missing, others', older; other versions |
//! | `below`, [`lower`], [`zones`], [`devices`] | lower tiers that fail, are full, rot, are not there |
//! | [`images`], [`golden`] | images damaged in many places; images of each release |
//! | [`child`], [`killed`], [`clients`] | processes killed and stopped at each point |
//! | [`held`] | calls that go on while others free what they see |
//! | [`scarce`] | a system that says no |
//! | [`memory`] | pages of NVM that cannot be read any more |
//! | [`fuzz`] | bytes that anybody could have written |
//! | [`full`] | no space, no inode numbers, a log that is full |
//!
//! A row passes if the rest of the volume is untouched, the error names what is damaged, and
//! nothing that returned is lost unless the row says so.
#![forbid(unsafe_code)]

pub mod anatomy;
pub mod astray;
mod below;
pub mod changes;
pub mod child;
pub mod clients;
pub mod cuts;
pub mod decay;
pub mod devices;
pub mod full;
pub mod fuzz;
pub mod golden;
pub mod gone;
pub mod held;
pub mod images;
pub mod killed;
pub mod left;
pub mod load;
pub mod lower;
pub mod lower_inodes;
pub mod media;
pub mod memory;
pub mod rot;
pub mod scarce;
pub mod sight;
pub mod stage;
pub mod table;
pub mod zones;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use load::Load;
use shale_bench::Result;
use shale_bench::chance::Chance;
use stage::{Checked, Filled, Stage};
use table::{ROWS, Row};

/// What to try, and how long.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory on tmpfs for volumes.
    pub dir: PathBuf,
    /// Only rows whose name contains this.
    pub only: String,
    /// Only these workloads.
    pub loads: Vec<Load>,
    /// Seed of workloads and damages.
    pub seed: u64,
    /// Each row is tried so long with each workload at most.
    pub row_limit: Duration,
    /// Ends after so long; what was not tried by then counts as not passed.
    pub time_limit: Duration,
    /// Few cases of each row, for tests.
    pub quick: bool,
}

/// What one row came to with one workload.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Outcome {
    /// The row's name.
    pub fault: &'static str,
    /// The workload.
    pub load: Load,
    /// What is promised.
    pub promise: &'static str,
    /// Cases tried.
    pub cases: u64,
    /// What was seen.
    pub seen: String,
    /// It could not be tried; `seen` says why.
    pub untried: bool,
    /// What is wrong; `None`: the promise was kept, or not tried.
    pub wrong: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
}

/// One row with one workload on its way.
pub struct Trial<'t> {
    /// The volume that the workload left.
    pub filled: &'t Filled,
    /// What to try.
    pub options: &'t Options,
    /// Of this row.
    pub chance: Chance,
    /// Cases so far.
    pub cases: u64,
    /// What was seen, for the table.
    pub seen: String,
    /// It cannot be tried; `seen` says why.
    pub untried: bool,
    until: Instant,
}

impl Trial<'_> {
    /// A small volume of its own.
    ///
    /// # Errors
    /// No space.
    pub fn stage(&self) -> Result<Stage> {
        Stage::small(&self.options.dir)
    }

    /// Whether this build has failpoints; else the row is not tried.
    pub fn armed(&mut self) -> bool {
        self.untried = !cfg!(feature = "failpoints");
        if self.untried {
            self.seen = "build with --features failpoints".to_owned();
        }
        !self.untried
    }

    /// Whether there is no time for another case.
    pub fn is_over(&self) -> bool {
        let quick_over = self.options.quick && self.cases >= table::QUICK_CASES;
        quick_over || (self.cases > 0 && Instant::now() >= self.until)
    }

    /// Counts a case; whether there is time for it.
    pub fn next_case(&mut self) -> bool {
        let over = self.is_over();
        self.cases += u64::from(!over);
        !over
    }
}

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
