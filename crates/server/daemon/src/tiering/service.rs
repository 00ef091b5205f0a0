//! The service: what it knows and owns. Its methods stand below, by what they do.

mod background;
mod coldest;
mod copy;
mod device_usage;
mod direct_placement;
mod evacuation;
mod inodes;
mod leaves;
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
pub(crate) use device_usage::{Span, tier_name};
pub(crate) use direct_placement::{DIRECT_PLACEMENT_MIN_BYTES, DirectWriteGuard};
pub(crate) use lower_read::Unsent;
pub use pin::PinReport;

use super::bad_blocks::BadBlocks;
use super::counts::{Counts, MigrationCounts};
use super::inode_blocks::InodeBlocks;
use super::leaf_state::Leaves;
use super::rate_limit::{Debt, Speed};
use super::read_regions::Promotions;
use super::recency::{HeatRegion, Recency};
use super::stuck_devices::StuckDevices;
use super::wakeup::Wakeup;
use super::zone_owners::Owners;
use crate::coherence::lease_manager::LeaseManager;
use crate::coherence::reclaimer::Reclaimer;
use crate::connections::clients::Clients;
use crate::connections::direct_mappings::Mappings;
use crate::connections::write_accounting::WriteAccounting;
use crate::space::SpaceCredits;
use parking_lot::Mutex;
use shale_digest::Digester;
use shale_sys::Clock;
use shale_volume::Volume;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

/// Percentage of NVM at which migration begins, unless the volume file says another.
pub const MIGRATE_AT_PERCENT: u32 = 95;
/// Percentage points below the mark at which it ends.
const DOWN_PERCENT: u32 = 5;

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
    wakeup: Wakeup,
    speed: Mutex<Speed>,
    pub(super) debt: Debt,
    pub(super) counts: Counts,
    coldest: Mutex<VecDeque<HeatRegion>>,
    pub(crate) recency: Recency,
    pub(super) owners: Owners,
    inodes: InodeBlocks,
    leaves: Leaves,
    promotions: Mutex<Promotions>,
    last_error: Mutex<Option<String>>,
    stuck: StuckDevices,
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
        self.wakeup.wake();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.wakeup.stop();
    }

    fn stopped(&self) -> bool {
        self.wakeup.stopped()
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
    pub(crate) fn counts(&self) -> MigrationCounts {
        self.counts.snapshot()
    }

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

    fn may_move(&self) -> bool {
        !self.stopped() && !self.speed().paused
    }

    pub(crate) fn migration_failed(&self, error: &dyn std::error::Error) {
        tracing::warn!("migration: {error}");
        *self.last_error.lock() = Some(error.to_string());
    }
}
