//! Direct placement: large runs of new data go from the log to a lower tier, once instead of to NVM and from there
//! down: while NVM is full (Strata §3.3); always where there is none, since what is in the memory tier is written once more
//! with the next checkpoint (StageFS §3: file data goes to flash).
//!
//! NVM is full from the mark on until it is where moving down ends. A digest that gets the lock soon says
//! so to its policy; else its data goes to NVM like any other, so it never waits long for what moves.
//! Small runs go to NVM always: what is written in small pieces is written again, and each chunk with such
//! runs costs a flush.

use super::{DOWN_PERCENT, Tiering};
use crate::direct_rule::DirectPlacement;
use parking_lot::MutexGuard;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{Ino, TierId};
use shale_volume::{Result, Run};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Least bytes of such a run, unless the configuration says another number.
pub const DIRECT_PLACEMENT_MIN_BYTES: u64 = 64 << 10;
/// On a disk a chunk has at least so many times that: a flush takes as long as writing 1 MiB.
const DISK_TIMES: u64 = 16;
/// How long a digest waits for the migration lock.
const MOVER_WAIT: Duration = Duration::from_millis(20);

/// The migration lock, held by a digest that writes below NVM.
pub struct DirectWriteGuard<'a> {
    /// Which data goes there.
    pub rule: DirectPlacement,
    _guard: MutexGuard<'a, ()>,
}

impl Tiering {
    /// The migration lock to write below NVM, if new data in `logged` bytes of a log is to go there now. Before
    /// the digester's plan-commit lock, and before this thread reads.
    pub fn lock_direct_writes(&self, logged: u64) -> Option<DirectWriteGuard<'_>> {
        let small = logged < self.settings.direct_placement_min_bytes;
        let wanted = || self.settings.places_large_runs_below || self.is_full();
        if small || !self.is_tiered() || !wanted() {
            return None;
        }
        let run_blocks = self.settings.direct_placement_min_bytes / BLOCK_BYTES as u64;
        let mut rules = self
            .volume
            .lower_tiers()
            .into_iter()
            .map(|tier| DirectPlacement {
                tier,
                run_blocks,
                chunk_blocks: run_blocks * if tier == TierId::Hdd { DISK_TIMES } else { 1 },
            });
        let space = |rule: &DirectPlacement| {
            let space = self.volume.lower_space(rule.tier);
            space.is_some_and(|s| s.writable.min(s.available) >= rule.chunk_blocks)
        };
        let rule = rules.find(space)?;
        let _guard = self.mover_lock.try_lock_for(MOVER_WAIT)?;
        Some(DirectWriteGuard { rule, _guard })
    }

    /// Least logged bytes of which some could go below NVM at once.
    pub fn direct_placement_min_bytes(&self) -> u64 {
        self.settings.direct_placement_min_bytes
    }

    /// Whether NVM has been at the mark, and no space was made since.
    fn is_full(&self) -> bool {
        let full = &self.full;
        let percent = self.migrate_percent();
        if self.above(percent) > 0 {
            full.store(true, Ordering::Relaxed);
        } else if self.above(percent.saturating_sub(DOWN_PERCENT)) == 0 {
            full.store(false, Ordering::Relaxed);
        }
        full.load(Ordering::Relaxed)
    }

    /// A chunk has placed these blocks below NVM. The caller holds the migration lock.
    pub fn placed_directly(&self, below: &[(Ino, Run)]) -> Result<()> {
        assert!(
            below.is_empty() || self.mover_lock.is_locked(),
            "who places data below NVM holds the migration lock"
        );
        let mut files: BTreeMap<(TierId, u64), u64> = BTreeMap::new();
        for &(ino, run) in below {
            self.note_owner(run, ino.0)?;
            let tier = run.addr.tier().unwrap_or(TierId::Nvm);
            *files.entry((tier, ino.0)).or_default() += run.len;
        }
        for ((tier, ino), blocks) in files {
            self.accounts.add_moved(&[(ino, blocks)], tier);
            self.count_placed_directly(blocks);
        }
        Ok(())
    }
}

impl Tiering {
    fn count_placed_directly(&self, blocks: u64) {
        let bytes = blocks * BLOCK_BYTES as u64;
        self.counts
            .direct_to_tier
            .fetch_add(bytes, Ordering::Relaxed);
    }
}
