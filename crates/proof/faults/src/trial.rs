//! One row of the table with one workload, under way.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::volume::load::Load;
use crate::volume::stage::{Filled, Stage};
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_model::Act;

/// Cases of a row in a quick run.
pub const QUICK_CASES: u64 = 6;

/// Unpacks what is wrong with Shale, and gives it back.
macro_rules! kept {
    ($checked:expr) => {
        match $checked {
            Ok(value) => value,
            Err(wrong) => return Ok(Err(wrong)),
        }
    };
}
pub(crate) use kept;

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
    /// Its volumes are those of buffered clients.
    pub buffered: bool,
    /// No case begins after it.
    pub(crate) until: Instant,
}

impl Trial<'_> {
    /// A small volume of its own.
    ///
    /// # Errors
    /// No space.
    pub fn stage(&self) -> Result<Stage> {
        match self.buffered {
            true => Stage::buffered(&self.options.dir),
            false => Stage::small(&self.options.dir),
        }
    }

    /// The workload's operations; of buffered clients without fsync, so that what they wrote is in memory.
    pub fn acts(&self) -> Box<dyn Iterator<Item = Act> + Send> {
        let (load, seed) = (self.filled.load, self.options.seed);
        match self.buffered {
            true => load.unsynced_acts(seed),
            false => load.acts(seed),
        }
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
        let quick_over = self.options.quick && self.cases >= QUICK_CASES;
        quick_over || (self.cases > 0 && Instant::now() >= self.until)
    }

    /// Counts a case; whether there is time for it.
    pub fn next_case(&mut self) -> bool {
        let over = self.is_over();
        self.cases += u64::from(!over);
        !over
    }
}
