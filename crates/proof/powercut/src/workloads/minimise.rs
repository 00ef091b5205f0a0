//! Makes a workload that fails smaller: steps are left out as long as it still fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::explore::explorer::{Explorer, Failure, Known};
use shale_bench::Result;
use shale_model::workload::words::{Step, Workload};

/// Longest time for one failure.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Gives the failure of the smallest workload found. `explorer` makes one that knows
/// nothing yet: what was seen before would hide what is looked for.
///
/// # Errors
/// A workload could not be looked at.
pub fn minimise(
    explorer: &mut dyn FnMut(Arc<Known>) -> Result<Explorer>,
    failure: Failure,
    seed: u64,
    begin: Instant,
) -> Result<Failure> {
    let until = begin.elapsed() + TIME_MAX;
    let Ok(mut smallest) = failure.workload.parse::<Workload>() else {
        return Ok(failure);
    };
    let mut best = failure;
    loop {
        let mut found = None;
        for smaller in smaller_ones(&smallest) {
            if begin.elapsed() > until {
                return Ok(best);
            }
            let mut fresh = explorer(Arc::default())?;
            if let Err(failure) = fresh.explore(&smaller, seed, &|| begin.elapsed() > until)? {
                found = Some((smaller, failure));
                break;
            }
        }
        match found {
            Some((smaller, failure)) => (smallest, best) = (smaller, *failure),
            None => return Ok(best),
        }
    }
}

/// Parts of the steps, single steps left out, everything done by one client, nothing special.
fn smaller_ones(workload: &Workload) -> Vec<Workload> {
    let steps = &workload.steps;
    let mut all = Vec::new();
    let n = steps.len();
    if n > 3 {
        all.push(workload.with(steps[..n / 2].to_vec()));
        all.push(workload.with(steps[n / 2..].to_vec()));
        for parts in [4, 16, 64].into_iter().filter(|&parts| parts <= n) {
            for part in 0..parts {
                let (from, to) = (n * part / parts, n * (part + 1) / parts);
                all.push(workload.with([&steps[..from], &steps[to..]].concat()));
            }
        }
    }
    for leave_out in (0..n).rev() {
        let mut fewer = steps.clone();
        fewer.remove(leave_out);
        all.push(workload.with(fewer));
    }
    if workload.clients() > 1 && !workload.threads && !workload.at_once {
        let alone = |step: &Step| match *step {
            Step::Item { item, .. } => Step::Item { client: 0, item },
            other => other,
        };
        all.push(workload.with(steps.iter().map(alone).collect()));
    }
    if workload.log_all || workload.wraps || workload.turned {
        all.push(Workload {
            threads: workload.threads,
            mkfs: workload.mkfs,
            requests: workload.requests,
            at_once: workload.at_once,
            program: workload.program,
            run: workload.run,
            tiers: workload.tiers,
            ..Workload::new(steps.clone())
        });
    }
    all.retain(|w| !w.steps.is_empty());
    all
}
