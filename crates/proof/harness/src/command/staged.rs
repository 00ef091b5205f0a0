//! `shale-harness crash --staged`: power cuts of volumes without NVM.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shale_bench::{BenchError, Result};
use shale_powercut::staged::{
    Case, FailingCase, FullCase, Tally, explore, explore_failing, explore_full,
};

/// Cuts of one case.
const CUTS: usize = 24;

/// What is to be done.
pub struct Campaign<'a> {
    /// Where volumes and memory tiers are.
    pub dir: &'a Path,
    /// Number of the first case.
    pub first: u64,
    /// No case begins after this time.
    pub time: Duration,
    /// Threads; each has a volume of its own.
    pub threads: usize,
    /// What to look for, of one case.
    pub case: &'a (dyn Fn(Case) -> Case + Sync),
    /// Ends after so many failures.
    pub failures_max: usize,
    /// Fails with fewer cuts.
    pub cuts_least: u64,
}

impl Campaign<'_> {
    /// Runs cases one after the other. Whether nothing is wrong, and there were enough.
    ///
    /// # Errors
    /// It could not be done.
    pub fn run(&self) -> Result<bool> {
        let (begun, next) = (Instant::now(), AtomicU64::new(self.first));
        let found: Mutex<(Tally, u64, Vec<String>, Option<BenchError>)> = Mutex::default();
        let work = || {
            while begun.elapsed() < self.time {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let case = (self.case)(Case::numbered(number, CUTS, None));
                let explored = explore(&case, self.dir);
                let failing = FailingCase::numbered(number, case.mutant);
                let failing = explore_failing(&failing, self.dir);
                let full = explore_full(&FullCase::numbered(number, case.mutant), self.dir);
                let mut found = found.lock().expect("nobody panics with it");
                found.1 += 1;
                match explored {
                    Ok(Ok(tally)) => found.0 += tally,
                    Ok(Err(wrong)) => found.2.push(format!("case {number}: {wrong}")),
                    Err(e) => found.3 = Some(e),
                }
                match full {
                    Ok(Ok(tally)) => {
                        found.0.cuts += tally.cuts;
                        found.0.batches += tally.batches;
                    }
                    Ok(Err(wrong)) => found.2.push(format!("full case {number}: {wrong}")),
                    Err(e) => found.3 = Some(e),
                }
                match failing {
                    Ok(Ok(tally)) => found.0.given_up += u64::from(tally.given_up),
                    Ok(Err(wrong)) => found.2.push(format!("failing case {number}: {wrong}")),
                    Err(e) => found.3 = Some(e),
                }
                if found.2.len() >= self.failures_max || found.3.is_some() {
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            (0..self.threads.max(1)).for_each(|_| drop(scope.spawn(work)));
        });
        let (tally, cases, failures, error) = found.into_inner().expect("nobody panicked with it");
        if let Some(error) = error {
            return Err(error);
        }
        for failure in &failures {
            eprintln!("\nFAILED: {failure}");
        }
        eprintln!(
            "{} cuts ({} more in restores) of {} cases, {} writes and flushes; {} batches replayed, {} checkpoints meanwhile; {} MiB placed on flash by digests, {} KiB of logs hardened by that; {} staging areas failed; {:.1} s; from case {}",
            tally.cuts,
            tally.restores_cut,
            cases,
            tally.steps,
            tally.batches,
            tally.checkpoints,
            tally.placed_bytes >> 20,
            tally.hardened_in_place >> 10,
            tally.given_up,
            begun.elapsed().as_secs_f64(),
            self.first,
        );
        let enough = tally.cuts >= self.cuts_least;
        if !enough {
            let (cuts, least) = (tally.cuts, self.cuts_least);
            eprintln!("FAILED: {cuts} cuts, expected {least} at least");
        }
        println!(
            "{} passed, {} failed",
            3 * cases - failures.len() as u64,
            failures.len()
        );
        Ok(failures.is_empty() && enough)
    }
}
