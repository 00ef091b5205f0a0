//! What `status` tells of the lower tiers.

use super::Observer;
use super::flash::FlashUse;
use crate::tiering::MigrationCounts;
use crate::tiering::{Span, tier_name};
use serde::Serialize;
use shale_format::TierId;
use shale_format::limits::BLOCK_BYTES;
use shale_pool::DeviceKind;
use shale_volume::ZoneInfo;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// One lower tier.
#[derive(Clone, Debug, Serialize)]
pub struct TierStatus {
    /// `ssd` or `hdd`.
    pub tier: String,
    /// Bytes in zones.
    pub total_bytes: u64,
    /// Bytes in use: what would be lost if all of the tier were.
    pub live_bytes: u64,
    /// Of these, inodes.
    pub inode_bytes: u64,
    /// Of these, leaves of directories.
    pub directory_bytes: u64,
    /// Of these, leaves of files' extents.
    pub extent_bytes: u64,
    /// Bytes written and not in use any more, until their zones are cleaned.
    pub dead_bytes: u64,
    /// Bytes that could be written now.
    pub writable_bytes: u64,
    /// Bytes of the zone that is kept for cleaning.
    pub reserved_bytes: u64,
    /// Zones.
    pub zones: u64,
    /// Of these, empty.
    pub empty_zones: u64,
    /// Zones erased since the start.
    pub zones_erased: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Bytes of batches and checkpoints written since the start to the area of a volume without NVM that lies on one of its
    /// devices, behind the zones.
    pub area_written_bytes: u64,
    /// Bytes written to zones and area for each byte of data that programs wrote and that was digested since the start; none: there was none.
    pub write_amplification: Option<f64>,
    /// Writes that did not continue their zone; 0.
    pub out_of_order: u64,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
}

/// One device of a lower tier.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceStatus {
    /// Where it is.
    pub path: String,
    /// How it is accessed.
    pub access: &'static str,
    /// The model of a slower medium in front of it, if there is one.
    pub model: Option<&'static str>,
    /// Nanoseconds that requests waited for the model, over all threads.
    pub model_delayed_ns: u64,
    /// Bytes in zones.
    pub total_bytes: u64,
    /// Bytes in use: what would be lost if it were.
    pub live_bytes: u64,
    /// Bytes written and not in use any more.
    pub dead_bytes: u64,
    /// Its empty zones.
    pub empty_zones: u64,
    /// Zones of the tier, by number, that are on it and worn out: nothing new goes to them.
    pub worn_zones: Vec<u64>,
    /// It is being emptied.
    pub evacuating: bool,
    /// Nothing new goes to it: why.
    pub failing: Option<String>,
    /// Bytes read since the start.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// What it is: `conventional`, `host-managed`, `open-channel`.
    pub kind: &'static str,
    /// What its flash did, where it is emulated.
    pub flash: Option<FlashUse>,
}

/// What moves between tiers.
#[derive(Clone, Debug, Serialize)]
pub struct MigrationStatus {
    /// Percentage of NVM at which it begins.
    pub at_percent: u32,
    /// Whether it is paused.
    pub paused: bool,
    /// Bytes a second that it may move; 0: no limit.
    pub limit_bytes_per_s: u64,
    /// Bytes a second moved since the start, on average.
    pub rate_bytes_per_s: u64,
    /// Bytes a second moved in the last ten seconds.
    pub recent_bytes_per_s: u64,
    /// Bytes moved since the start: down, up, and to clean zones.
    pub moved_bytes: u64,
    /// Counts since the start.
    #[serde(flatten)]
    pub counts: MigrationCounts,
    /// The last error, if there was one.
    pub last_error: Option<String>,
}

impl Observer<'_> {
    pub(crate) fn tier_statuses(&self) -> Vec<TierStatus> {
        let tiers = [TierId::Ssd, TierId::Hdd].into_iter();
        tiers.filter_map(|t| self.tier_status(t)).collect()
    }

    fn tier_status(&self, tier: TierId) -> Option<TierStatus> {
        let space = self.of.volume.lower_space(tier)?;
        let devices = self.of.volume.lower_device_infos(tier).into_iter();
        let zones = self.of.volume.lower_zones(tier);
        let staged = (tier == TierId::Ssd).then(|| self.of.digests.staged_status());
        let staged = staged.flatten();
        let area_written = staged.map_or(0, |s| s.commit_bytes + s.checkpoint_pages * BLOCK);
        let payload = self.of.digests.totals().stats.lock().payload_bytes;
        let written = (space.written * BLOCK + area_written) as f64;
        Some(TierStatus {
            area_written_bytes: area_written,
            write_amplification: (payload > 0).then(|| written / payload as f64),
            tier: tier_name(tier),
            total_bytes: space.total * BLOCK,
            live_bytes: space.live * BLOCK,
            inode_bytes: self.of.tiering.inode_blocks_in(tier) * BLOCK,
            directory_bytes: self.of.volume.leaves_below(tier) * BLOCK,
            extent_bytes: self.of.volume.extent_leaves_below(tier) * BLOCK,
            dead_bytes: space.dead * BLOCK,
            writable_bytes: space.writable * BLOCK,
            reserved_bytes: space.reserved * BLOCK,
            zones: space.zones,
            empty_zones: space.empty_zones,
            zones_erased: space.erased,
            written_bytes: space.written * BLOCK,
            out_of_order: space.out_of_order,
            devices: devices
                .filter_map(|info| {
                    let (d, span) = (info.device.as_ref()?, Span::of(&info.place));
                    let counts = d.counts();
                    let sum = |of: fn(&ZoneInfo) -> u64| span.zones(&zones).map(of).sum::<u64>();
                    let worn = span.zones(&zones).filter(|z| z.worn);
                    Some(DeviceStatus {
                        worn_zones: worn.map(|z| z.place.zone).collect(),
                        evacuating: info.is_emptying(),
                        failing: info.failing.clone(),
                        path: d.name(),
                        access: d.access(),
                        model: d.model().map(|m| m.name),
                        model_delayed_ns: d.model().map_or(0, |m| m.delayed_ns),
                        total_bytes: (span.end - span.first) * BLOCK,
                        live_bytes: sum(|z| z.live) * BLOCK,
                        dead_bytes: sum(|z| z.written.saturating_sub(z.live)) * BLOCK,
                        empty_zones: sum(|z| u64::from(z.written == 0)),
                        read_bytes: counts.read_bytes,
                        written_bytes: counts.written_bytes,
                        flushes: counts.flushes,
                        discarded_bytes: counts.discarded_bytes,
                        errors: counts.errors,
                        kind: DeviceKind::of(info.place.kind).map_or("", DeviceKind::name),
                        flash: FlashUse::of(&**d),
                    })
                })
                .collect(),
        })
    }

    pub(crate) fn migration_status(&self) -> Option<MigrationStatus> {
        if self.of.clients.is_closing() || !self.of.tiering.is_tiered() {
            return None;
        }
        self.of.tiering.take_direct_reads();
        let counts = MigrationCounts {
            tail_cache_hits: self.of.digester.tail_blocks().reads(),
            ..self.of.tiering.counts()
        };
        let speed = self.of.tiering.speed();
        let ns = (self.of.clock.monotonic_ns() - self.of.started_ns).max(1);
        let moved = counts.moved_bytes();
        let rate = u128::from(moved) * 1_000_000_000 / u128::from(ns);
        Some(MigrationStatus {
            at_percent: self.of.tiering.migrate_percent(),
            paused: speed.paused,
            limit_bytes_per_s: speed.limit,
            rate_bytes_per_s: rate as u64,
            recent_bytes_per_s: self.rate_status().moved_bytes_per_s,
            moved_bytes: moved,
            counts,
            last_error: self.of.tiering.last_error(),
        })
    }
}
