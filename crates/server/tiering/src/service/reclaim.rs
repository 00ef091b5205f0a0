//! Reclaiming space, tier by tier: what NVM lacks goes to flash, what flash lacks to disks, and zones
//! in which much is dead are cleaned before anything moves further down.

use super::Tiering;
use crate::move_request::{BATCH_BLOCKS, DISK_BATCH_BLOCKS, MoveRequest, Target, no_space};
use crate::zone_choice::{oldest, to_clean};
use shale_format::TierId;
use shale_volume::{LowerSpace, Result, VolumeError, ZoneInfo};
use std::time::Duration;

/// So many batches of which all is pinned are passed over at a time.
const TRIES: usize = 8;
/// The same of zones.
const ZONES_TRIED: usize = 32;
/// A zone that is less live than this is cleaned and not moved down, in percent: with space below, and with hardly any.
const CLEAN_LIVE_PERCENT: [u64; 2] = [75, 90];
/// What goes to a disk at once is of a tier no more than one of so many parts, or one zone.
const TIER_PARTS: u64 = 16;
/// Blocks that each tier keeps writable, if it can: what two batches need.
const READY_BLOCKS: u64 = 2 * BATCH_BLOCKS;
/// Longest wait for the grace period after which zones can be erased.
const GRACE_WAIT: Duration = Duration::from_secs(10);

/// Batches that are moved down for one request of space.
const MIGRATE_TRIES: u32 = 64;

impl Tiering {
    /// What `take` takes, after all that can reclaim `bytes` in NVM was done, as far as it had to be.
    pub fn take_after_reclaim<T>(&self, bytes: u64, take: impl Fn() -> Option<T>) -> Option<T> {
        let mut taken = None;
        if let Some(logs) = self.logs.upgrade() {
            logs.digest_until(&mut || {
                taken = take();
                taken.is_some()
            });
        }
        if taken.is_some() {
            return taken;
        }
        self.space.free_unmapped();
        if self.grace.has_freed() {
            // A client that does not move is cut off within one limit.
            self.grace.wait(None);
        }
        if let Some(taken) = take() {
            return Some(taken);
        }
        // What NVM lacks the tiers below may have.
        for _ in 0..MIGRATE_TRIES {
            if !self.is_tiered() || !self.reclaim_space(bytes) {
                break;
            }
            self.grace.wait(None);
            if let Some(taken) = take() {
                return Some(taken);
            }
        }
        let taken = take();
        if taken.is_none() && self.full_lines[0].may(self.clock.monotonic_ns()) {
            tracing::warn!(bytes, "volume full: calls that need space get ENOSPC");
        }
        taken
    }

    /// Moves about `blocks` blocks of the coldest data out of NVM. Gives how many moved. `asked`: somebody waits.
    pub(crate) fn move_down(&self, blocks: u64, asked: bool) -> Result<u64> {
        let _guard = self.lock_mover_for(asked);
        let mut moved = Ok(Some(0));
        // What is coldest may be pinned to where there is no space.
        for _ in 0..TRIES {
            moved = self.move_coldest(blocks.min(BATCH_BLOCKS * 4));
            if !matches!(moved, Ok(Some(0))) {
                break;
            }
        }
        let is_full = matches!(moved, Ok(Some(0)) | Err(VolumeError::NoSpace { .. }));
        if is_full && self.full_lines[1].may(self.clock.monotonic_ns()) {
            tracing::warn!("lower tiers full: cold data stays in NVM");
        }
        Ok(moved?.unwrap_or(0))
    }

    /// Has each lower tier keep some space that can be written at once, so that nobody who waits for
    /// space in NVM waits for a zone to be emptied too.
    pub(super) fn keep_ready(&self) -> Result<()> {
        let tiers = self.volume.lower_tiers();
        for (n, &tier) in tiers.iter().enumerate() {
            let below = tiers.get(n + 1).copied();
            // A tier that is all but full is not cleaned over and over.
            let cleanable = self.volume.lower_cleanable(tier) >= 4 * READY_BLOCKS;
            let possible = |t| self.volume.lower_possible(t, None) >= 4 * READY_BLOCKS;
            let can = cleanable || below.is_some_and(possible);
            while self.may_move() && can && self.lacks(tier) {
                let guard = self.lock_mover_for(false);
                if self.erase(tier)? > 0 {
                    continue;
                }
                match self.empty_zone(tier, below) {
                    // What is there may have to stay.
                    Ok(0) | Err(VolumeError::NoSpace { .. }) => break,
                    emptied => emptied?,
                };
                self.erase(tier)?;
                drop(guard);
                self.keep_to_limit();
            }
        }
        Ok(())
    }

    /// Erases zones in which nothing is live any more, unless somebody moves something: their space is the
    /// host's or the flash's again, and who needs space finds it.
    pub(super) fn erase_dead(&self) -> Result<()> {
        self.bad_blocks.forget_dead(&self.volume);
        let Some(_guard) = self.mover_lock.try_lock() else {
            return Ok(());
        };
        for tier in self.volume.lower_tiers() {
            if self.may_move() {
                self.volume.erase_zones(tier)?;
            }
        }
        Ok(())
    }

    fn lacks(&self, tier: TierId) -> bool {
        let space = self.volume.lower_space(tier);
        space.is_some_and(|s| s.writable < READY_BLOCKS)
    }

    /// Moves the coldest data; `None`: there is none.
    fn move_coldest(&self, blocks: u64) -> Result<Option<u64>> {
        let tiers = self.volume.lower_tiers();
        if tiers.is_empty() {
            return Ok(None);
        }
        let wanted = self.coldest(blocks)?;
        let all: u64 = wanted.iter().map(|w| w.blocks).sum();
        if all == 0 {
            return Ok(None);
        }
        let mut full = no_space(all);
        // What is pinned to a slower tier goes there at once.
        let pinned = wanted.iter().filter(|w| w.pin == Some(TierId::Hdd));
        let pinned: Vec<MoveRequest> = pinned.copied().collect();
        if !pinned.is_empty() && tiers.contains(&TierId::Hdd) {
            let moved = self.move_to(&pinned, TierId::Hdd)?;
            if moved > 0 {
                return Ok(Some(moved));
            }
        }
        for (n, &tier) in tiers.iter().enumerate() {
            let wanted: Vec<MoveRequest> =
                wanted.iter().filter(|w| w.may_go(tier)).copied().collect();
            if let Err(e) = self.reclaim_on(tier, tiers.get(n + 1).copied(), all) {
                tracing::debug!(?tier, "no space is freed: {e}");
                full = e;
            }
            let last = false;
            let moved = self.move_blocks(&wanted, Target { tier, last })?;
            if moved > 0 {
                return Ok(Some(moved));
            }
        }
        match full {
            VolumeError::NoSpace { .. } => Ok(Some(0)),
            other => Err(other),
        }
    }

    /// Moves blocks to one tier, where space is freed for them. Gives the blocks moved. The caller holds
    /// the migration lock.
    pub fn move_to(&self, wanted: &[MoveRequest], tier: TierId) -> Result<u64> {
        if tier == TierId::Nvm {
            return self.move_up(wanted);
        }
        let tiers = self.volume.lower_tiers();
        let below = tiers.iter().copied().find(|t| *t > tier);
        let all: u64 = wanted.iter().map(|w| w.blocks).sum();
        if let Err(e) = self.reclaim_on(tier, below, all.min(BATCH_BLOCKS)) {
            tracing::debug!(?tier, "no space is freed: {e}");
        }
        let last = false;
        self.move_blocks(wanted, Target { tier, last })
    }

    /// Has `blocks` blocks of a lower tier writable, if that can be. `below`: the next tier.
    pub(super) fn reclaim_on(
        &self,
        tier: TierId,
        below: Option<TierId>,
        blocks: u64,
    ) -> Result<()> {
        let mut last = None;
        loop {
            let Some(space) = self.volume.lower_space(tier) else {
                return Err(no_space(blocks));
            };
            // More than its spare leaves is not made by cleaning.
            let cleaned = space.writable >= blocks.min(space.available);
            if cleaned && space.available >= blocks {
                return Ok(());
            }
            if !cleaned && space.dead > 0 && self.erase(tier)? > 0 {
                continue;
            }
            let emptied = match cleaned {
                true => self.move_oldest(tier, below)?,
                false => self.empty_zone(tier, below)?,
            };
            self.erase(tier)?;
            let now = self
                .volume
                .lower_space(tier)
                .map(|s| (s.writable, s.available));
            if emptied == 0 || now == last {
                return Err(no_space(blocks));
            }
            last = now;
        }
    }

    /// Erases zones in which nothing is live, once nobody can hold one of their blocks.
    fn erase(&self, tier: TierId) -> Result<u64> {
        match self.volume.erase_zones(tier)? {
            0 => {
                self.grace.wait(Some(GRACE_WAIT));
                self.volume.erase_zones(tier)
            }
            erased => Ok(erased),
        }
    }

    /// Zones that are worth emptying: to clean what takes nothing new frees no space, nor does one with a block
    /// that cannot be read, which is not erased.
    fn cleaned_zones(&self, tier: TierId) -> Vec<ZoneInfo> {
        let devices = self.volume.lower_device_infos(tier);
        let closed = |n: usize| devices.get(n).is_some_and(|d| d.closed || d.is_emptying());
        let mut zones = self.volume.lower_zones(tier);
        let bad = |z: &ZoneInfo| {
            let blocks = z.place.first..z.place.first + z.place.blocks;
            self.bad_blocks.count(tier, blocks)
        };
        zones.retain(|z| !z.worn && !closed(z.place.device) && bad(z) == 0);
        zones
    }

    /// Empties a zone of a tier: cleans where that pays, else moves the oldest down. Gives
    /// the blocks moved.
    fn empty_zone(&self, tier: TierId, below: Option<TierId>) -> Result<u64> {
        let zones = self.cleaned_zones(tier);
        let newest = self.volume.txid().0;
        let percent = worth_cleaning(below.and_then(|tier| self.volume.lower_space(tier)));
        let pays = |z: &ZoneInfo| z.live * 100 < z.place.blocks * percent;
        // All of it has to fit the one zone that is kept for this, or what is left where that one has been begun.
        let fits = match self.volume.lower_space(tier) {
            Some(space) if space.empty_zones == 0 => space.begun,
            _ => zones.iter().map(|z| z.place.blocks).min().unwrap_or(0),
        };
        if let Some(victim) = to_clean(&zones, newest, |z| pays(z) && z.live <= fits) {
            let wanted = self.in_zones(tier, &[victim])?;
            tracing::debug!(
                ?tier,
                live = victim.live,
                blocks = victim.place.blocks,
                "a zone is cleaned"
            );
            return self.move_blocks(&wanted, Target { tier, last: true });
        }
        self.move_oldest(tier, below)
    }

    /// Blocks that move from a tier to the one below at once, of several zones: to a disk what fills a batch, if it has
    /// space for that, but no large part of the tier.
    fn zones_at_once(&self, tier: TierId, below: TierId) -> u64 {
        let all = self.volume.lower_space(tier).map_or(0, |space| space.total);
        match below {
            TierId::Hdd => self
                .at_once(DISK_BATCH_BLOCKS)
                .min(self.volume.lower_possible(below, None))
                .min(all / TIER_PARTS),
            _ => 0,
        }
    }

    /// Moves what is oldest in a tier down. Gives the blocks moved.
    fn move_oldest(&self, tier: TierId, below: Option<TierId>) -> Result<u64> {
        let Some(below) = below else {
            return Ok(0);
        };
        let zones = self.cleaned_zones(tier);
        let most = self.zones_at_once(tier, below);
        let (mut wanted, mut live) = (Vec::new(), 0);
        for victim in oldest(&zones, ZONES_TRIED) {
            if live > 0 && live + victim.live > most {
                break;
            }
            let mut there = self.in_zones(tier, &[victim])?;
            // All that is there may be pinned.
            there.retain(|w| w.may_go(below));
            live += there.iter().map(|w| w.blocks).sum::<u64>();
            wanted.append(&mut there);
        }
        if live == 0 {
            return Ok(0);
        }
        self.reclaim_on(below, None, live)?;
        let last = false;
        self.move_blocks(&wanted, Target { tier: below, last })
    }
}

/// A zone that is less live than this, in percent, is rather cleaned than moved to the tier below, if there is one: one
/// that is nearly full has zones cleaned for it, which are as live as all of it.
fn worth_cleaning(below: Option<LowerSpace>) -> u64 {
    let [least, most] = CLEAN_LIVE_PERCENT;
    let used = |space: LowerSpace| space.live * 100 / space.total.max(1);
    below.map_or(100, |space| used(space).clamp(least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_the_tier_below_the_more_is_cleaned() {
        let below = |live| LowerSpace {
            total: 200,
            live,
            ..LowerSpace::default()
        };
        assert_eq!(worth_cleaning(None), 100, "nothing can move down");
        let percent = [0, 100, 160, 200].map(|live| worth_cleaning(Some(below(live))));
        assert_eq!(percent, [75, 75, 80, 90]);
    }
}
