//! Volumes without NVM on which more is written than the memory tier holds: what it lacks moves below, or goes there when it is
//! digested. After a power cut the image of the last checkpoint and the batches since then have to fit it again, though nothing
//! moves below while they are replayed.

use std::path::Path;

use shale_bench::Result;
use shale_bench::chance::Chance;
use shale_format::Durability;
use shale_libfs::OFlags;
use shale_model::{Act, FileAct, Fill, Memory, Side};
use shale_record::{BlockReplay, BlockRules, Choice};

use super::stage::{Recorded, Stage, restore, side_of};
use super::{Done, judge, promises, walk};
use crate::workloads::campaign::Switched;
use crate::wrong::Checked;

/// Bytes of the device: zones for twice what is written.
const DEVICE_BYTES: u64 = 256 << 20;
/// Files; some are written over, some removed and made again.
const FILES: u64 = 50;
const FILE_BYTES: u64 = 1 << 20;

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct FullCase {
    /// Chooses operations and cuts.
    pub seed: u64,
    /// What is promised.
    pub policy: Durability,
    /// Operations.
    pub acts: usize,
    /// Cuts.
    pub cuts: usize,
    /// A deliberate mistake that is switched on while operations run and volumes are restored.
    pub mutant: Option<&'static str>,
}

impl FullCase {
    /// Case `number` of a campaign.
    pub fn numbered(number: u64, mutant: Option<&'static str>) -> FullCase {
        FullCase {
            seed: number,
            policy: [Durability::Buffered, Durability::Strict][(number % 2) as usize],
            acts: 60,
            cuts: 12,
            mutant,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullTally {
    /// Cuts that were recovered.
    pub cuts: u64,
    /// Bytes below the memory tier when the operations had ended.
    pub below_bytes: u64,
    /// Batches that restores digested.
    pub batches: u64,
}

fn next_act(chance: &mut Chance, file: u64) -> [Act; 2] {
    let name = format!("file-{file}").into_bytes();
    if chance.below(8) == 0 {
        return [Act::Unlink(name), Act::File(0, FileAct::Sync)];
    }
    let fill = Fill {
        seed: chance.below(256) as u8,
        len: (FILE_BYTES / 2 + chance.below(FILE_BYTES / 2)) as usize,
    };
    [
        Act::Open(0, name, OFlags::CREATE | OFlags::RDWR, 0o644),
        Act::File(0, FileAct::Write(0, fill)),
    ]
}

/// Tries a case in `dir`.
///
/// # Errors
/// The outer error: it could not run. The inner one: what is wrong, and at which cut.
pub fn explore_full(case: &FullCase, dir: &Path) -> Result<Checked<FullTally>> {
    let (mut stage, contents) = Stage::new(dir, case.policy, DEVICE_BYTES)?;
    // What the digests of half of them place below, while the memory tier is full, has to fit it after a cut.
    if (case.seed / 2).is_multiple_of(2) {
        stage.fill_memory_first();
    }
    let _switched = Switched::on(case.mutant, false);
    let recorded = Recorded::new(contents.clone());
    let performed = perform(case, &stage, &recorded);
    stage.lose(0);
    let tried = performed.and_then(|(done, below_bytes)| {
        let mut tally = FullTally {
            below_bytes,
            ..FullTally::default()
        };
        let noted = std::mem::take(&mut *recorded.noted.lock());
        let mut chance = Chance::new(case.seed ^ 0xf011);
        let mut at = vec![noted.len()];
        at.extend((1..case.cuts).map(|_| chance.below(noted.len() as u64) as usize));
        at.sort_unstable();
        let mut replay = BlockReplay::new(&noted, vec![contents], BlockRules::default());
        for steps in at {
            while replay.at() < steps && replay.step() {}
            let image = { replay.images(512, &Choice::Seed(case.seed)) }.pop();
            let (tree, _, batches) = restore(&stage, 1, image.expect("one device"))
                .map_err(|wrong| format!("cut after {steps} of {} steps: {wrong}", noted.len()))?;
            judge(&done, steps, &tree)?;
            tally.cuts += 1;
            tally.batches += batches;
        }
        Ok(tally)
    });
    Ok(tried.map_err(|wrong| format!("{case:?}: {wrong}")))
}

/// Does the operations. Gives what each left, and the bytes below the memory tier.
fn perform(case: &FullCase, stage: &Stage, recorded: &Recorded) -> Checked<(Vec<Done>, u64)> {
    let daemon = stage.start(recorded)?;
    let mut side = side_of(&daemon)?;
    let mut model = Memory::new(0o755);
    let mut chance = Chance::new(case.seed ^ 0xf111);
    let mut done = vec![Done::before_any(&mut model)?];
    for n in 0..case.acts {
        // First each file, then any of them.
        let file = match n as u64 {
            n if n < FILES => n,
            _ => chance.below(FILES),
        };
        for act in next_act(&mut chance, file) {
            let begun = recorded.steps();
            let (should, did) = (model.act(&act), side.act(&act));
            if should != did {
                return Err(format!("{act:?}: expected {should:?}, found {did:?}"));
            }
            done.push(Done {
                begun,
                returned: recorded.steps(),
                promised: did.is_ok() && promises(case.policy, &act),
                of_all: false,
                tree: walk(&mut model)?,
            });
        }
        // Now and then nobody writes for a moment.
        if chance.below(16) == 0 {
            daemon.quiesce();
        }
    }
    let below_bytes = { daemon.status_values().tiers }
        .iter()
        .map(|t| t.live_bytes)
        .sum();
    daemon.abandon();
    std::mem::forget(side);
    Ok((done, below_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_the_memory_tier_holds_is_restored() {
        let mut all = FullTally::default();
        for number in 1..3 {
            let case = FullCase::numbered(number, None);
            let tried = explore_full(&case, Path::new("/dev/shm")).expect("it runs");
            let tally = tried.unwrap_or_else(|wrong| panic!("{wrong}"));
            all.below_bytes += tally.below_bytes;
            all.batches += tally.batches;
        }
        assert!(all.below_bytes > 8 << 20 && all.batches > 0, "{all:?}");
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn space_that_is_given_away_early_is_found() {
        let found = (0..8).find_map(|n| {
            let case = FullCase::numbered(n, Some("checkpoint-space"));
            let tried = explore_full(&case, Path::new("/dev/shm")).expect("it runs");
            tried.err()
        });
        assert!(found.is_some());
    }
}
