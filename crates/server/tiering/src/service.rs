//! The service: what it knows and owns. Its methods stand below, by what they do.

mod background;
mod coldest;
mod copy;
mod device_usage;
mod direct_placement;
mod evacuation;
mod inodes;
mod leaves;
mod log_pace;
mod lower_read;
mod metadata_promotions;
mod mover;
mod mover_lock;
mod pin;
mod promoted_space;
mod promotion;
mod reclaim;
mod structure_blocks;
mod zone_contents;

pub use device_usage::DeviceUsage;
pub use device_usage::{Span, tier_name};
pub use direct_placement::{DIRECT_PLACEMENT_MIN_BYTES, DirectWriteGuard};
pub use lower_read::Unsent;
pub use mover_lock::MoverGuard;
pub use pin::PinReport;

use self::log_pace::LogPace;
use super::bad_blocks::BadBlocks;
use super::counts::{Counts, MigrationCounts};
use super::host::{Accounts, Clients, GracePeriods, Leases, NvmSpace};
use super::inode_blocks::InodeBlocks;
use super::leaf_state::Leaves;
use super::rate_limit::{Debt, Speed};
use super::read_regions::Promotions;
use super::recency::{HeatRegion, Recency};
use super::stuck_devices::StuckDevices;
use super::wakeup::Wakeup;
use super::zone_owners::ZoneOwners;
use parking_lot::Mutex;
use shale_digest::Digester;
use shale_format::TierId;
use shale_sys::Clock;
use shale_volume::Volume;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Percentage of NVM at which migration begins, unless the volume file says another.
pub const MIGRATE_AT_PERCENT: u32 = 95;
/// The same of a memory tier that is staged, for data: what is freed there has to wait for a checkpoint, so space for what comes next
/// is made before anybody needs it. Structure moves only above what migration leaves elsewhere, 90%.
pub const MIGRATE_STAGED_AT_PERCENT: u32 = 50;
/// No percentage is asked for.
const USUAL: u32 = u32::MAX;
/// Percentage points below the mark at which it ends.
const DOWN_PERCENT: u32 = 5;

/// The digester of logs, as far as tiering asks for it.
pub trait LogDigester: Send + Sync {
    /// Digests every log as far as it is published when this begins.
    fn digest_all(&self);
    /// Digests logs, as far as they are published when this begins, chunk by chunk until `enough` is true. It is asked
    /// at the end, too.
    fn digest_until(&self, enough: &mut dyn FnMut() -> bool);
}

/// What the volume file and the daemon's configuration say.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Percentage of NVM at which migration begins.
    pub migrate_at_percent: Option<u32>,
    /// What is NVM elsewhere is a memory tier that is staged.
    pub is_staged: bool,
    /// Bytes of a run of new data from which on it may be placed directly on a lower tier.
    pub direct_placement_min_bytes: u64,
    /// It always is; else only while NVM is full.
    pub places_large_runs_below: bool,
}

/// What [`Tiering`] is made of.
pub struct Parts {
    /// The volume.
    pub volume: Arc<Volume>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The attached clients.
    pub clients: Arc<dyn Clients>,
    /// When what was freed is free.
    pub grace: Arc<dyn GracePeriods>,
    /// Who may change what.
    pub leases: Arc<dyn Leases>,
    /// What digests; its last blocks of files.
    pub digester: Arc<Digester>,
    /// Space of NVM.
    pub space: Arc<dyn NvmSpace>,
    /// Whose bytes went where.
    pub accounts: Arc<dyn Accounts>,
    /// Has logs digested.
    pub logs: Weak<dyn LogDigester>,
    /// What was configured.
    pub settings: Settings,
    /// How fast it may be.
    pub speed: Speed,
}

/// What lies in which tier: moves data between them, cleans zones, makes space in NVM.
pub struct Tiering {
    volume: Arc<Volume>,
    clock: Arc<dyn Clock>,
    clients: Arc<dyn Clients>,
    grace: Arc<dyn GracePeriods>,
    leases: Arc<dyn Leases>,
    digester: Arc<Digester>,
    space: Arc<dyn NvmSpace>,
    accounts: Arc<dyn Accounts>,
    /// Gone once the daemon is.
    logs: Weak<dyn LogDigester>,
    settings: Settings,
    /// Percentage of NVM at which migration begins; [`USUAL`]: the usual one.
    migrate_at_percent: AtomicU32,
    /// Blocks that could not be read.
    pub bad_blocks: BadBlocks,
    mover_lock: Mutex<()>,
    wakeup: Wakeup,
    speed: Mutex<Speed>,
    debt: Debt,
    pub(super) counts: Counts,
    coldest: Mutex<VecDeque<HeatRegion>>,
    /// When pieces of files were used.
    pub recency: Recency,
    owners: ZoneOwners,
    inodes: InodeBlocks,
    leaves: Leaves,
    promotions: Mutex<Promotions>,
    last_error: Mutex<Option<String>>,
    stuck: StuckDevices,
    /// NVM was at the mark and is not where moving down ends yet.
    full: AtomicBool,
    /// Lines that the volume is full, and that the lower tiers are.
    full_lines: [LogPace; 2],
}

impl Tiering {
    /// Nothing has moved yet.
    pub fn new(parts: Parts) -> Self {
        Self {
            volume: parts.volume,
            clock: parts.clock,
            clients: parts.clients,
            grace: parts.grace,
            leases: parts.leases,
            digester: parts.digester,
            space: parts.space,
            accounts: parts.accounts,
            logs: parts.logs,
            migrate_at_percent: AtomicU32::new(parts.settings.migrate_at_percent.unwrap_or(USUAL)),
            settings: parts.settings,
            bad_blocks: BadBlocks::default(),
            mover_lock: Mutex::default(),
            wakeup: Wakeup::default(),
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
            stuck: StuckDevices::default(),
            full: AtomicBool::new(false),
            full_lines: Default::default(),
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
    pub fn wake(&self) {
        self.wakeup.wake();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.wakeup.stop();
    }

    fn stopped(&self) -> bool {
        self.wakeup.stopped()
    }

    /// How fast migration may be.
    pub fn speed(&self) -> Speed {
        *self.speed.lock()
    }

    /// Sets how fast migration may be.
    pub fn set_speed(&self, speed: Speed) {
        *self.speed.lock() = speed;
        self.wake();
    }

    /// What went wrong last.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
    /// What migration did since the start.
    pub fn counts(&self) -> MigrationCounts {
        self.counts.snapshot()
    }

    /// Whether the volume has tiers to move to.
    pub fn is_tiered(&self) -> bool {
        self.volume.is_tiered()
    }

    /// Percentage of NVM at which migration begins.
    pub fn migrate_percent(&self) -> u32 {
        self.asked_percent()
            .unwrap_or(match self.settings.is_staged {
                true => MIGRATE_STAGED_AT_PERCENT,
                false => MIGRATE_AT_PERCENT,
            })
    }

    /// Percentage at which it takes structure, too, where there is no data to move; it ends [`DOWN_PERCENT`] below.
    fn structure_percent(&self) -> u32 {
        self.asked_percent().unwrap_or(MIGRATE_AT_PERCENT)
    }

    fn asked_percent(&self) -> Option<u32> {
        match self.migrate_at_percent.load(Ordering::Relaxed) {
            USUAL => None,
            percent => Some(percent),
        }
    }

    /// Has migration begin at another percentage of NVM, at the usual one if none is given.
    pub fn set_migrate_percent(&self, percent: Option<u32>) {
        let percent = percent.unwrap_or(USUAL);
        self.migrate_at_percent.store(percent, Ordering::Relaxed);
        self.wake();
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

    fn may_move(&self) -> bool {
        !self.stopped() && !self.speed().paused
    }

    /// Something could not be moved: it is shown in `status`.
    pub fn migration_failed(&self, error: &dyn std::error::Error) {
        tracing::warn!("migration: {error}");
        *self.last_error.lock() = Some(error.to_string());
    }

    /// For tests of the rate limit: as if so many bytes had moved down and to clean zones each.
    #[doc(hidden)]
    pub fn pretend_moved(&self, bytes: u64) {
        self.counts.down.fetch_add(bytes, Ordering::Relaxed);
        self.counts.cleaned.fetch_add(bytes, Ordering::Relaxed);
    }

    /// For tests of the rate limit: how long what is owed takes at a limit.
    #[doc(hidden)]
    pub fn owed(&self, limit: u64) -> Duration {
        self.debt.add(0, limit)
    }

    /// For tests: notes an owner of a zone that it has erased `generation` times.
    #[doc(hidden)]
    pub fn note_owner_of(&self, zone: (TierId, u64), ino: u64, generation: u32) {
        let noted = self.owners.note(zone, ino, || Ok(generation));
        noted.expect("the generation is given");
    }
}
