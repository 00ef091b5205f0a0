//! Volumes without NVM whose device fails: a write or a flush, once or from then on.
//!
//! Nobody knows what a device holds of what it failed to write, and a flush that succeeds after one that failed says nothing of
//! what came before. So the first failure of the staging area ends hardening for good: from then on no call that promises
//! durability may return without an error, also where the device has recovered. What was promised before is there after a power cut.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_block::Ask;
use shale_daemon::Daemon;
use shale_format::Durability;
use shale_model::random::{Abilities, Acts};
use shale_model::{Act, FileAct, Memory, Shale, Side};
use shale_record::{BlockReplay, BlockRules, Choice};

use super::stage::{Client, DEVICE_BYTES, Recorded, Stage, restore, side_of};
use super::{Done, SLOTS, judge, next_act, promises, stir, walk};
use crate::workloads::campaign::Switched;
use crate::wrong::Checked;

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct FailingCase {
    /// Chooses operations and what survives.
    pub seed: u64,
    /// What is promised.
    pub policy: Durability,
    /// Operations.
    pub acts: usize,
    /// Which of the device's writes and flushes fails, counted from the first operation on.
    pub fails_at: u64,
    /// So many one after the other; `u64::MAX`: all from then on.
    pub failures: u64,
    /// A deliberate mistake that is switched on while operations run.
    pub mutant: Option<&'static str>,
}

impl FailingCase {
    /// Case `number` of a campaign: policies, requests and lasting failures by turns.
    pub fn numbered(number: u64, mutant: Option<&'static str>) -> FailingCase {
        const POLICIES: [Durability; 3] = [
            Durability::Strict,
            Durability::Buffered,
            Durability::Ordered,
        ];
        FailingCase {
            seed: number,
            policy: POLICIES[(number % 3) as usize],
            acts: 60,
            fails_at: number * 5 % 32,
            failures: [1, 2, u64::MAX][(number / 3 % 3) as usize],
            mutant,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailingTally {
    /// Requests of the device that failed.
    pub failed: u64,
    /// Whether the staging area was given up, or a call failed.
    pub given_up: bool,
    /// Calls that promise durability after that; all of them failed.
    pub refused: u64,
}

/// Which request fails.
struct Schedule {
    /// Counts once it runs.
    running: std::sync::atomic::AtomicBool,
    requests: AtomicU64,
    failed: AtomicU64,
    fails_at: u64,
    failures: u64,
}

impl Schedule {
    fn answer(&self, ask: Ask) -> std::result::Result<(), Errno> {
        if !matches!(ask, Ask::Write | Ask::Flush) || !self.running.load(Ordering::Relaxed) {
            return Ok(());
        }
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let fails = (self.fails_at..self.fails_at.saturating_add(self.failures)).contains(&number);
        if fails {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(Errno::IO);
        }
        Ok(())
    }
}

/// Tries a case in `dir`.
///
/// # Errors
/// The outer error: it could not run. The inner one: what is wrong.
pub fn explore_failing(case: &FailingCase, dir: &Path) -> Result<Checked<FailingTally>> {
    let (stage, contents) = Stage::new(dir, case.policy, DEVICE_BYTES)?;
    let schedule = Arc::new(Schedule {
        running: false.into(),
        requests: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        fails_at: case.fails_at,
        failures: case.failures,
    });
    let _switched = Switched::on(case.mutant, false);
    let asked = schedule.clone();
    let recorded = Recorded::asking(contents.clone(), move |ask| asked.answer(ask));
    let tried = perform(case, &stage, &recorded, &schedule);
    stage.lose(0);
    let tried = tried.and_then(|(done, tally)| {
        let noted = std::mem::take(&mut *recorded.noted.lock());
        let mut replay = BlockReplay::new(&noted, vec![contents], BlockRules::default());
        while replay.step() {}
        // None of what was written and not flushed, then some of it.
        for survivors in [Choice::None, Choice::Seed(case.seed)] {
            let image = { replay.images(512, &survivors) }
                .pop()
                .expect("one device");
            let (tree, ..) = restore(&stage, 1, image)?;
            judge(&done, noted.len(), &tree)?;
        }
        Ok(tally)
    });
    Ok(tried.map_err(|wrong| format!("{case:?}: {wrong}")))
}

/// Does the operations until the first one fails; then no promise may be made any more.
fn perform(
    case: &FailingCase,
    stage: &Stage,
    recorded: &Recorded,
    schedule: &Schedule,
) -> Checked<(Vec<Done>, FailingTally)> {
    let daemon = stage.start(recorded)?;
    let mut side = side_of(&daemon)?;
    let other = Client::of(&daemon, false)?;
    let mut model = Memory::new(0o755);
    let mut acts = Acts::new(case.seed, Abilities { ranges: true });
    let mut chance = Chance::new(case.seed ^ 0xfa11);
    let mut done = vec![Done::before_any(&mut model)?];
    schedule.running.store(true, Ordering::Relaxed);
    let (mut failed, mut not_opened) = (false, None);
    for _ in 0..case.acts {
        let act = next_act(&mut acts, &mut chance);
        // Zones and checkpoints fail, too.
        let _ = stir(&daemon, &mut chance);
        let begun = recorded.steps();
        let (should, did) = (model.act(&act), side.act(&act));
        done.push(Done {
            begun,
            returned: recorded.steps(),
            promised: did.is_ok() && promises(case.policy, &act),
            of_all: false,
            tree: walk(&mut model)?,
        });
        failed = should.is_ok() && did.is_err();
        if failed {
            // The model has a file there, and the program has none.
            if let Act::Open(slot, ..) = act {
                not_opened = Some(slot);
            }
            break;
        }
    }
    let given_up = failed || has_given_up(&daemon);
    if given_up && other.sync_all().is_ok() {
        return Err(
            "the staging area has failed, and a sync of another client succeeds".to_owned(),
        );
    }
    let refused = match given_up {
        true => none_is_promised(&mut model, &mut side, not_opened)?,
        false => 0,
    };
    daemon.abandon();
    std::mem::forget((side, other));
    let tally = FailingTally {
        failed: schedule.failed.load(Ordering::Relaxed),
        given_up,
        refused,
    };
    Ok((done, tally))
}

fn has_given_up(daemon: &Daemon) -> bool {
    let staged = daemon.status_values().staged;
    staged.is_some_and(|staged| staged.failure.is_some())
}

/// Each file that is open is synced, but for that in slot `not_opened`; gives how many there are.
fn none_is_promised(
    model: &mut Memory,
    side: &mut Shale,
    not_opened: Option<usize>,
) -> Checked<u64> {
    let mut refused = 0;
    for slot in (0..SLOTS).filter(|&slot| not_opened != Some(slot)) {
        let sync = Act::File(slot, FileAct::Sync);
        if model.act(&sync).is_err() {
            continue;
        }
        match side.act(&sync) {
            Err(e) if e == Errno::IO => refused += 1,
            other => {
                return Err(format!(
                    "the staging area has failed, and an fsync gives {other:?}, expected EIO"
                ));
            }
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_promised_once_the_staging_area_has_failed() {
        let (mut given_up, mut refused) = (0, 0);
        // In the last one an open fails.
        for n in (0..9).chain([5007]) {
            let case = FailingCase::numbered(n, None);
            let tried = explore_failing(&case, Path::new("/dev/shm")).expect("it runs");
            let tally = tried.unwrap_or_else(|wrong| panic!("{wrong}"));
            given_up += u32::from(tally.given_up);
            refused += tally.refused;
        }
        assert!(given_up >= 5 && refused >= 5, "{given_up}, {refused}");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_failure_that_is_forgotten_is_found() {
        let found = (0..9).find_map(|n| {
            let case = FailingCase::numbered(n, Some("staging-failure-forgotten"));
            explore_failing(&case, Path::new("/dev/shm"))
                .expect("it runs")
                .err()
        });
        assert!(found.is_some());
    }
}
