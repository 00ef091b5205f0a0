//! Migration: demotes cold data, cleans zones, promotes what is read often (DESIGN §11, §32, Strata §3.3).
//!
//! | Module | What it owns |
//! | --- | --- |
//! | `policy` | which regions are cold, which zones to clean |
//! | `backrefs` | which inodes have blocks in a zone |
//! | `mover`, `copy` | moving data in batches, each as safe as a digest; reading and writing their blocks |
//! | `inodes`, `leaves`, `blocks` | demoting and promoting blocks of inodes, leaves of trees; what both share |
//! | `metadata_promotions`, `promotion_hysteresis` | metadata that a batch of data would promote; what was promoted for a lease stays a while |
//! | `promotion` | promotion of what clients read often |
//! | `evacuation`, `pin` | evacuating devices; files that stay in a tier |
//! | `reclaim` | making space in a tier for calls that wait for it |
//! | `direct_placement` | new data that a digest writes directly to a lower tier |
//! | `lower_read`, `bad_blocks` | reads of lower tiers for clients; blocks that cannot be read |
//! | `rate_limit`, `device_usage` | the rate limit; bytes on each device |
//!
//! Demotion begins when NVM is 95% full (a setting) and ends at 5 points less. A call that waits for space has it
//! reclaimed at once, whatever the rate limit. Called by its own thread, by `reservations` (space), `connections` (reads,
//! pins, leases on demoted metadata) and `digest_scheduler` (direct placement); it has logs digested through
//! `LogDigester`.
//!
//! One batch moves at a time, under `mover_lock`. Lock order: `mover_lock`, then the digester's commit barrier, then the volume's
//! transaction. While a batch is copied the daemon counts as one of its readers, so none of its blocks is reused; what
//! changed meanwhile is not moved. A power cut before a batch's transaction leaves copies that nothing refers to; after
//! it, the blocks are in their new place.

mod backrefs;
mod bad_blocks;
mod blocks;
mod copy;
mod device_usage;
mod direct_placement;
mod evacuation;
mod inodes;
mod leaves;
mod lower_read;
mod metadata_promotions;
mod mover;
mod pin;
mod policy;
mod promotion;
mod promotion_hysteresis;
mod rate_limit;
mod reclaim;
#[cfg(test)]
mod tests;

pub(crate) use direct_placement::{DIRECT_PLACEMENT_MIN_BYTES, DirectPlacement};
pub use pin::PinReport;
pub(crate) use policy::Recency;
pub(crate) use promotion_hysteresis::SPACE_WAIT;
pub use rate_limit::Speed;

use crate::coherence::lease_manager::LeaseManager;
use crate::coherence::reclaimer::Reclaimer;
use crate::connections::clients::Clients;
use crate::connections::direct_mappings::Mappings;
use crate::connections::write_accounting::WriteAccounting;
use crate::space::SpaceCredits;
pub use bad_blocks::BadBlock;
use bad_blocks::BadBlocks;
pub use device_usage::DeviceUsage;
pub(crate) use device_usage::{Span, tier_name};
use evacuation::Stuck;
pub(crate) use leaves::Of;
pub(crate) use lower_read::Unsent;
use parking_lot::{Condvar, Mutex};
use policy::HeatRegion;
use serde::{Deserialize, Serialize};
use shale_digest::Digester;
use shale_format::TierId;
use shale_pool::devices::LOWER;
use shale_pool::host_space::HostSpace;
use shale_sys::Clock;
use shale_volume::Volume;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Percentage of NVM at which migration begins, unless the volume file says another.
pub const MIGRATE_AT_PERCENT: u32 = 95;
/// Percentage points below the mark at which it ends.
const DOWN_PERCENT: u32 = 5;
/// How often the file systems of images that found no space are looked at, in nanoseconds.
const FULL_RETRY_NS: u64 = 10_000_000_000;
/// Bytes that such a file system has to have for its image to be used again.
const FULL_RETRY_BYTES: u64 = 16 << 20;
/// How often the mark is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The same while there is nowhere to move to: the first device below NVM wakes the thread.
const IDLE: Duration = Duration::from_secs(3600);
/// Wait after an error before the next try.
const ERROR_WAIT: Duration = Duration::from_secs(2);

/// What migration did since the start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MigrationCounts {
    /// Bytes moved to a slower tier.
    pub down_bytes: u64,
    /// Bytes of new data that went from logs directly to a lower tier.
    pub direct_to_tier_bytes: u64,
    /// Bytes moved to a faster tier.
    pub up_bytes: u64,
    /// Bytes moved to empty zones for good ones.
    pub cleaned_bytes: u64,
    /// Batches committed.
    pub batches: u64,
    /// Bytes copied and dropped: the blocks changed meanwhile.
    pub aborted_bytes: u64,
    /// Times somebody waited for space.
    pub space_waits: u64,
    /// The longest that a call waited for space in NVM, in ns: digest, moving, and what was freed given out.
    pub space_wait_max_ns: u64,
    /// Times a client lacked blocks below NVM and asked for them.
    pub client_reads: u64,
    /// Bytes that clients were given so.
    pub client_read_bytes: u64,
    /// Times a client read blocks from a device of flash by itself.
    pub direct_reads: u64,
    /// Bytes that clients read so, by their own account.
    pub direct_read_bytes: u64,
    /// Times the last block of a file was wanted from below NVM, by a client or by a digest, and was still in memory.
    pub tail_cache_hits: u64,
    /// Blocks that could not be read, and so not moved; each try counts.
    pub unreadable_blocks: u64,
    /// Times all inodes were scanned to find what lies in zones.
    pub inode_scans: u64,
    /// Of these, because not all owners of the blocks were known.
    pub backref_misses: u64,
}

/// How far moving data down by command is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateProgress {
    /// Moved.
    pub done: u64,
    /// Of so many.
    pub of: u64,
}

impl MigrationCounts {
    /// Bytes moved: down, up, and to clean zones.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.down_bytes + self.up_bytes + self.cleaned_bytes
    }
}

#[derive(Default)]
struct Wakeup {
    requested: bool,
    stop: bool,
}

/// Counters behind [`MigrationCounts`].
#[derive(Default)]
pub(crate) struct Counts {
    down: AtomicU64,
    direct_to_tier: AtomicU64,
    up: AtomicU64,
    cleaned: AtomicU64,
    batches: AtomicU64,
    aborted: AtomicU64,
    space_waits: AtomicU64,
    space_wait_max: AtomicU64,
    client_reads: AtomicU64,
    client_read_bytes: AtomicU64,
    direct_reads: AtomicU64,
    direct_blocks: AtomicU64,
    unreadable: AtomicU64,
    inode_scans: AtomicU64,
    backref_misses: AtomicU64,
}

/// State of migration.
/// The digester of logs, as far as tiering asks for it.
pub(crate) trait LogDigester: Send + Sync {
    /// Digests every log as far as it is published when this begins.
    fn digest_all(&self);
    /// Digests logs, as far as they are published when this begins, chunk by chunk until `enough` is true. It is asked
    /// at the end, too.
    fn digest_until(&self, enough: &mut dyn FnMut() -> bool);
}

/// What the volume file and the daemon's configuration say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Percentage of NVM at which migration begins.
    pub(crate) migrate_at_percent: Option<u32>,
    /// Bytes of a run of new data from which on it is placed directly on a lower tier while NVM is full.
    pub(crate) direct_placement_min_bytes: u64,
}

/// What [`Tiering`] is made of.
pub(crate) struct Parts {
    pub(crate) volume: Arc<Volume>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) leases: Arc<LeaseManager>,
    pub(crate) digester: Arc<Digester>,
    pub(crate) credits: Arc<SpaceCredits>,
    pub(crate) accounts: Arc<WriteAccounting>,
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) logs: Weak<dyn LogDigester>,
    pub(crate) settings: Settings,
    pub(crate) speed: Speed,
}

/// What lies in which tier: moves data between them, cleans zones, makes space in NVM.
pub(crate) struct Tiering {
    volume: Arc<Volume>,
    clock: Arc<dyn Clock>,
    clients: Arc<Clients>,
    reclaimer: Arc<Reclaimer>,
    leases: Arc<LeaseManager>,
    digester: Arc<Digester>,
    credits: Arc<SpaceCredits>,
    accounts: Arc<WriteAccounting>,
    mappings: Arc<Mappings>,
    /// Gone once the daemon is.
    logs: Weak<dyn LogDigester>,
    settings: Settings,
    pub(crate) bad_blocks: BadBlocks,
    mover_lock: Mutex<()>,
    wakeup: Mutex<Wakeup>,
    woken: Condvar,
    speed: Mutex<Speed>,
    debt: rate_limit::Debt,
    counts: Counts,
    coldest: Mutex<VecDeque<HeatRegion>>,
    pub(crate) recency: Recency,
    owners: backrefs::Owners,
    inodes: inodes::InodeBlocks,
    leaves: leaves::Leaves,
    promotions: Mutex<promotion::Promotions>,
    last_error: Mutex<Option<String>>,
    stuck: Mutex<Vec<Stuck>>,
    /// NVM was at the mark and is not where moving down ends yet.
    full: AtomicBool,
}

impl Tiering {
    /// Nothing has moved yet.
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            volume: parts.volume,
            clock: parts.clock,
            clients: parts.clients,
            reclaimer: parts.reclaimer,
            leases: parts.leases,
            digester: parts.digester,
            credits: parts.credits,
            accounts: parts.accounts,
            mappings: parts.mappings,
            logs: parts.logs,
            settings: parts.settings,
            bad_blocks: BadBlocks::default(),
            mover_lock: Mutex::default(),
            wakeup: Mutex::default(),
            woken: Condvar::new(),
            speed: Mutex::new(parts.speed),
            debt: Default::default(),
            counts: Counts::default(),
            coldest: Mutex::default(),
            recency: Recency::default(),
            owners: Default::default(),
            inodes: Default::default(),
            leaves: Default::default(),
            promotions: Mutex::default(),
            last_error: Mutex::default(),
            stuck: Mutex::default(),
            full: AtomicBool::new(false),
        }
    }

    fn digest_all_logs(&self) {
        if let Some(logs) = self.logs.upgrade() {
            logs.digest_all();
        }
    }

    /// Waits until it is free; whether there was anything to wait for.
    fn wait_for_mover(&self) -> bool {
        self.mover_lock.try_lock().is_none() && {
            drop(self.mover_lock.lock());
            true
        }
    }

    /// The mark may have been passed.
    pub(crate) fn wake(&self) {
        self.wakeup.lock().requested = true;
        self.woken.notify_all();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.wakeup.lock().stop = true;
        self.woken.notify_all();
    }

    fn stopped(&self) -> bool {
        self.wakeup.lock().stop
    }

    /// Waits for a wakeup; `false`: stop.
    fn wait(&self, time: Duration) -> bool {
        let mut wakeup = self.wakeup.lock();
        self.woken
            .wait_while_for(&mut wakeup, |b| !b.requested && !b.stop, time);
        wakeup.requested = false;
        !wakeup.stop
    }

    /// Sleeps, woken or not; `false`: stop.
    fn sleep(&self, time: Duration) -> bool {
        let mut wakeup = self.wakeup.lock();
        self.woken.wait_while_for(&mut wakeup, |b| !b.stop, time);
        !wakeup.stop
    }

    pub(crate) fn speed(&self) -> Speed {
        *self.speed.lock()
    }

    pub(crate) fn set_speed(&self, speed: Speed) {
        *self.speed.lock() = speed;
        self.wake();
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// A client was given bytes from below NVM.
    pub(crate) fn count_read(&self, bytes: usize) {
        let counts = &self.counts;
        counts.client_reads.fetch_add(1, Ordering::Relaxed);
        counts
            .client_read_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A client has read so many blocks from devices by itself, in so many reads: it says so, and nothing depends on it.
    pub(crate) fn count_direct(&self, (blocks, reads): (u64, u64)) {
        let counts = &self.counts;
        counts.direct_blocks.fetch_add(blocks, Ordering::Relaxed);
        counts.direct_reads.fetch_add(reads, Ordering::Relaxed);
    }

    /// A call has waited so long for space in NVM.
    fn count_wait(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts.space_wait_max.fetch_max(ns, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> MigrationCounts {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.counts;
        MigrationCounts {
            down_bytes: of(&c.down),
            direct_to_tier_bytes: of(&c.direct_to_tier),
            up_bytes: of(&c.up),
            cleaned_bytes: of(&c.cleaned),
            batches: of(&c.batches),
            aborted_bytes: of(&c.aborted),
            space_waits: of(&c.space_waits),
            space_wait_max_ns: of(&c.space_wait_max),
            client_reads: of(&c.client_reads),
            client_read_bytes: of(&c.client_read_bytes),
            direct_reads: of(&c.direct_reads),
            direct_read_bytes: of(&c.direct_blocks).saturating_mul(mover::BLOCK),
            tail_cache_hits: 0,
            unreadable_blocks: of(&c.unreadable),
            inode_scans: of(&c.inode_scans),
            backref_misses: of(&c.backref_misses),
        }
    }
}

impl Tiering {
    /// Whether the volume has tiers to move to.
    pub(crate) fn is_tiered(&self) -> bool {
        self.volume.is_tiered()
    }

    pub(crate) fn migrate_percent(&self) -> u32 {
        let asked = self.settings.migrate_at_percent;
        asked.unwrap_or(MIGRATE_AT_PERCENT)
    }

    /// Blocks of NVM in use, and `percent` of what files can have.
    fn used_and_mark(&self, percent: u32) -> (u64, u64) {
        let space = self.volume.space();
        let capacity = space.total.saturating_sub(space.reserved_fixed);
        let mark = capacity / 100 * u64::from(percent);
        (space.used + space.taken, mark)
    }

    /// Blocks of NVM in use above `percent` of what files can have.
    fn above(&self, percent: u32) -> u64 {
        let (used, mark) = self.used_and_mark(percent);
        used.saturating_sub(mark)
    }

    /// The thread that moves data in the background.
    pub(crate) fn run(&self) {
        let every = |tiered| if tiered { LOOK_EVERY } else { IDLE };
        let mut retried_ns = self.clock.monotonic_ns();
        while self.wait(every(self.is_tiered())) {
            let now = self.clock.monotonic_ns();
            if now.saturating_sub(retried_ns) >= FULL_RETRY_NS {
                retried_ns = now;
                self.retry_full();
            }
            self.take_reports();
            // What waits for space gets the lock in between.
            if self.may_move() && self.empty_devices() > 0 {
                self.wake();
            }
            let moved = self.demote().and_then(|()| self.promote());
            let moved = moved.and_then(|()| self.keep_ready());
            let moved = moved.and_then(|()| self.erase_dead());
            if let Err(e) = moved {
                self.migration_failed(&e);
                std::thread::sleep(ERROR_WAIT.min(LOOK_EVERY * 5));
            }
        }
    }

    /// Uses devices again whose images found no space, when their file system has some.
    fn retry_full(&self) {
        let has_space = |path: &str| {
            let space = HostSpace::of(Path::new(path));
            space.is_ok_and(|s| s.free_bytes >= FULL_RETRY_BYTES)
        };
        for tier in LOWER {
            if self.volume.retry_full(tier, has_space) {
                *self.last_error.lock() = None;
            }
        }
    }

    fn may_move(&self) -> bool {
        !self.stopped() && !self.speed().paused
    }

    /// Moves the coldest data down if NVM is too full, and where there is none extents, inodes and directories.
    fn demote(&self) -> shale_volume::Result<()> {
        let percent = self.migrate_percent();
        if self.above(percent) == 0 {
            return Ok(());
        }
        let low = percent.saturating_sub(DOWN_PERCENT);
        while self.may_move() {
            let above = self.above(low);
            if above == 0 {
                break;
            }
            // Who waits for space gets the lock after each batch.
            if self.move_down_all(above.min(self.at_once(mover::BATCH_BLOCKS)), false)? == 0 {
                break;
            }
            self.keep_to_limit();
        }
        Ok(())
    }

    /// Moves data down, and where that frees no space leaves of extents, then inodes, then directories. Gives the
    /// blocks. `asked`: somebody waits.
    fn move_down_all(&self, blocks: u64, asked: bool) -> shale_volume::Result<u64> {
        let moved = match self.move_down(blocks, asked)? {
            0 => self.demote_leaves(Of::Files, blocks, asked)?,
            moved => moved,
        };
        let moved = match moved {
            0 => self.demote_inodes(blocks, asked)?,
            moved => moved,
        };
        match moved {
            0 => self.demote_leaves(Of::Directories, blocks, asked),
            moved => Ok(moved),
        }
    }

    pub(crate) fn migration_failed(&self, error: &dyn std::error::Error) {
        tracing::warn!("migration: {error}");
        *self.last_error.lock() = Some(error.to_string());
    }

    /// Reclaims space in NVM for somebody who waits: at least `bytes`, if there is that much to
    /// move and space below. Whether anything moved, or others made the space meanwhile.
    pub(crate) fn reclaim_space(&self, bytes: u64) -> bool {
        self.counts.space_waits.fetch_add(1, Ordering::Relaxed);
        if self.wait_for_mover() && self.available_now() >= bytes {
            return true;
        }
        match self.move_down_all(bytes / mover::BLOCK + mover::BATCH_BLOCKS, true) {
            Ok(blocks) => blocks > 0,
            Err(e) => {
                self.migration_failed(&e);
                false
            }
        }
    }

    /// Moves as much down as NVM holds when this begins, or `bytes` of it: `shale migrate`. What clients write
    /// meanwhile does not keep it from ending. Gives the bytes. `progress` can end it.
    ///
    /// # Errors
    /// A device fails.
    pub(crate) fn migrate_now(
        &self,
        bytes: Option<u64>,
        progress: &mut dyn FnMut(MigrateProgress) -> ControlFlow<()>,
    ) -> Result<u64, shale_volume::VolumeError> {
        if !self.is_tiered() {
            return Ok(0);
        }
        self.digest_all_logs();
        let asked = bytes.map_or(u64::MAX, |b| b.div_ceil(mover::BLOCK));
        let wanted = asked.min(self.movable_blocks()?);
        let mut moved = 0;
        let mut goes_on = |moved: u64| {
            let (done, of) = (moved * mover::BLOCK, wanted * mover::BLOCK);
            progress(MigrateProgress { done, of }).is_continue() && !self.stopped()
        };
        while moved < wanted && goes_on(moved) {
            match self.move_down((wanted - moved).min(mover::BATCH_BLOCKS), true)? {
                0 => break,
                blocks => moved += blocks,
            }
        }
        Ok(moved * mover::BLOCK)
    }

    /// Blocks of files' data in NVM that may move down.
    fn movable_blocks(&self) -> shale_volume::Result<u64> {
        let mut blocks = 0;
        self.each_lying(Some(TierId::Nvm), &mut |inode, lies| {
            if inode.pin() != Some(TierId::Nvm) {
                blocks += u64::from(lies.extent.len);
            }
        })?;
        Ok(blocks)
    }
}
