//! Devices of the lower tiers come and go while the volume is used.
//!
//! Adding, and what a power cut after each step leaves:
//! 1. space for the tables is taken in NVM, and they are written there: nothing refers to them;
//! 2. one transaction marks their blocks used and names the device in the device table: the device is
//!    not part of the volume, or it is, empty.
//!
//! Emptying: one transaction says so in the device table; from then on, over restarts, nothing new goes
//! to the device. Removing: one transaction takes it out of the table and frees its tables, which
//! readers may look at until they have passed that batch.
//!
//! The caller sees to it that nothing is allocated or written below NVM meanwhile.

use crate::error::{Result, VolumeError};
use crate::lower_tiers::lower::{Layout, LowerDevice};
use crate::lower_tiers::txn_lower::LoadedDevice;
use crate::mkfs::{TABLES_PART, write_tables};
use crate::transaction::txn::Committed;
use crate::volume::Volume;
use shale_allocation::Run;
use shale_block::TierDevice;
use shale_format::TierId;
use shale_format::device_table::{DevicePlace, DeviceTable, device_state};
use shale_format::superblock::DeviceEntry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One device of a lower tier, as it is used.
#[derive(Clone)]
pub struct LowerDeviceInfo {
    /// Identity, size, blocks, state.
    pub place: DevicePlace,
    /// The device, where this process has it.
    pub device: Option<Arc<dyn TierDevice>>,
    /// Blocks in use.
    pub live: u64,
    /// Of these, those in zones that are worn out.
    pub live_worn: u64,
    /// Nothing new goes to it until the next start: why.
    pub failing: Option<String>,
    /// That it fails has been met: nothing is tried any more.
    pub closed: bool,
}

impl LowerDeviceInfo {
    /// Whether it is being emptied.
    pub fn is_emptying(&self) -> bool {
        self.place.state == device_state::EMPTYING
    }

    /// Whether it was not there when the volume was opened.
    pub fn is_absent(&self) -> bool {
        self.place.absent != 0
    }
}

fn below_of(tier: TierId) -> Result<usize> {
    let n = (tier as usize).checked_sub(1);
    n.ok_or_else(|| VolumeError::Lower("NVM is no tier below NVM".to_owned()))
}

impl Volume {
    /// The devices of a lower tier, in order.
    pub fn lower_device_infos(&self, tier: TierId) -> Vec<LowerDeviceInfo> {
        let (Ok(lower), Ok(zones)) = (self.below(), self.zones_of(tier)) else {
            return Vec::new();
        };
        let layout = lower.layout();
        let devices = layout.tier(tier).map_or(&[][..], |t| &t.devices);
        let all = devices.iter().enumerate();
        all.map(|(n, d)| {
            let (live, live_worn) = zones.live_on(n);
            LowerDeviceInfo {
                place: d.place,
                device: d.device.clone(),
                live,
                live_worn,
                failing: zones.failing(n).or(d.trouble()),
                closed: zones.failing(n).is_some(),
            }
        })
        .collect()
    }

    /// Keeps `percent` percent of a device of a lower tier out of use, so that its zones are emptier when they are
    /// cleaned. Holds until the volume is closed; what is in use already stays.
    ///
    /// # Errors
    /// The volume has no such tier.
    pub fn set_spare(&self, tier: TierId, device: usize, percent: u32) -> Result<()> {
        self.zones_of(tier)?.set_spare(device, percent);
        Ok(())
    }

    /// Nothing new goes to the zones of a device that begin at block `from` of its tier or behind, until the next start, and what they hold
    /// moves elsewhere: as if they were worn out. Not while somebody allocates or writes there.
    ///
    /// # Errors
    /// The volume has no such tier.
    pub fn close_zones(&self, tier: TierId, device: usize, from: u64) -> Result<()> {
        let zones = self.zones_of(tier)?;
        let all = zones.infos().into_iter().map(|zone| zone.place);
        all.filter(|place| place.device == device && place.first >= from)
            .for_each(|place| zones.set_worn(place.zone));
        Ok(())
    }

    /// Blocks that a tier could write if everything in it were cleaned: more than may come into use where its devices
    /// have a spare.
    pub fn lower_cleanable(&self, tier: TierId) -> u64 {
        self.zones_of(tier).map_or(0, |z| z.cleanable())
    }

    /// Blocks that a tier could take if everything in it were cleaned, `without` one of its
    /// devices. Those that are being emptied or fail take nothing.
    pub fn lower_possible(&self, tier: TierId, without: Option<usize>) -> u64 {
        self.zones_of(tier).map_or(0, |z| z.possible(without))
    }

    /// Blocks of NVM that the tables of a device need.
    pub fn table_blocks(entry: &DeviceEntry) -> u64 {
        DevicePlace::new(entry, 0, 0).tables().end_block
    }

    /// Takes space for the tables of a device, for [`Volume::add_device_at`].
    ///
    /// # Errors
    /// Devices cannot change, or there is no space.
    pub fn take_tables(&self, entry: &DeviceEntry) -> Result<Run> {
        let wanted = Self::table_blocks(entry);
        self.check_tables(&self.changeable()?, wanted)?;
        Ok(self.space.allocate_whole(wanted)?)
    }

    /// Makes a device part of the volume: empty, behind all others of its tier, with the block of the device where its zones begin (as in
    /// [`DevicePlace`]; 0: behind the label area), and with its tables in `run`, which stays the caller's after an error.
    ///
    /// # Errors
    /// There are as many devices as there can be, or the commit fails: it is not part of the volume
    /// now. Whether it is after the next start says [`Volume::may_have_device`].
    pub fn add_device_at(
        &self,
        tier: TierId,
        (entry, start): (&DeviceEntry, u32),
        device: &Arc<dyn TierDevice>,
        run: Run,
    ) -> Result<Committed> {
        let (n, lower) = (below_of(tier)?, self.below()?);
        let media = self.reader().media();
        let mut table = self.changeable()?;
        let place = table.add(n, entry, (start, run.addr.index()));
        let place = place
            .ok_or_else(|| VolumeError::Lower(format!("{tier:?} has as many devices as it can")))?;
        let mut layout = Layout::clone(&lower.layout());
        let devices = &mut layout.tiers[n].devices;
        devices.push(LowerDevice::new(&place, Some(device))?);
        let last = devices.len() - 1;
        write_tables(media, &place)?;
        // Before the commit: nothing may fail after it.
        let loaded = LoadedDevice::load(media, lower, &layout.tiers[n], last)?;
        if start != 0 {
            // An older program would look for its zones elsewhere.
            self.let_zones_start()?;
        }
        let mut txn = self.begin();
        txn.mark_used(run.addr, run.len)?;
        txn.set_devices(table);
        let committed = txn.commit()?;
        let mut core = self.core.lock();
        if let Some(draft) = &mut core.draft.lower[n] {
            draft.add(loaded);
        }
        lower.set_layout(layout);
        Ok(committed)
    }

    /// Whether the next start may find a device in the device table. `false` is certain.
    pub fn may_have_device(&self, uuid: &[u8; 16]) -> bool {
        let has = |table: DeviceTable| {
            let mut all = table.of(0).iter().chain(table.of(1));
            all.any(|d| d.uuid == *uuid)
        };
        self.broken.load(Ordering::Acquire) || self.reader().device_table().map_or(true, has)
    }

    /// Says whether a device is used or being emptied.
    ///
    /// # Errors
    /// There is no such device, or the commit fails: then nothing has changed.
    pub fn set_device_state(&self, tier: TierId, uuid: &[u8; 16], state: u32) -> Result<Committed> {
        let (at, committed) = self.change_device(tier, uuid, |place| place.state = state)?;
        self.zones_of(tier)?
            .set_emptying(at, state != device_state::IN_USE);
        Ok(committed)
    }

    /// Notes with which count of starts a device was there last ([`DevicePlace::absent`]); 0: it is there.
    ///
    /// # Errors
    /// As [`Volume::set_device_state`].
    pub fn set_device_absent(&self, tier: TierId, uuid: &[u8; 16], since: u64) -> Result<()> {
        self.change_device(tier, uuid, |place| place.absent = since)
            .map(drop)
    }

    /// Changes what the device table says of a device. Gives its place in the tier.
    fn change_device(
        &self,
        tier: TierId,
        uuid: &[u8; 16],
        change: impl Fn(&mut DevicePlace),
    ) -> Result<(usize, Committed)> {
        let (n, lower) = (below_of(tier)?, self.below()?);
        let mut table = self.changeable()?;
        let at = position(&table, n, uuid)?;
        if let Some(place) = table.find_mut(uuid) {
            change(place);
        }
        let mut txn = self.begin();
        txn.set_devices(table);
        let committed = txn.commit()?;
        let mut layout = Layout::clone(&lower.layout());
        change(&mut layout.tiers[n].devices[at].place);
        lower.set_layout(layout);
        Ok((at, committed))
    }

    /// Takes an empty device out of the volume.
    ///
    /// # Errors
    /// There is no such device, it holds something, or the commit fails: then nothing has changed.
    pub fn remove_device(&self, tier: TierId, uuid: &[u8; 16]) -> Result<Committed> {
        let (n, lower) = (below_of(tier)?, self.below()?);
        let mut table = self.changeable()?;
        let at = position(&table, n, uuid)?;
        let place = table.of(n)[at];
        let tables = place.tables();
        let mut txn = self.begin();
        let (live, _) = self.zones_of(tier)?.live_on(at);
        if live > 0 {
            return Err(VolumeError::Lower(format!("it holds {live} blocks")));
        }
        // Those that mkfs made lie before the data and stay where they are.
        if tables.zone_block >= self.superblock().data_block {
            let len = tables.end_block - tables.zone_block;
            txn.free_blocks(Run::nvm(tables.zone_block, len).addr, len)?;
        }
        table.remove(n, uuid);
        txn.set_devices(table);
        let committed = txn.commit()?;
        let mut layout = Layout::clone(&lower.layout());
        layout.tiers[n].devices.remove(at);
        let mut core = self.core.lock();
        if let Some(draft) = &mut core.draft.lower[n] {
            draft.remove(&place, at);
        }
        lower.set_layout(layout);
        Ok(committed)
    }

    /// The device table, if devices can change.
    fn changeable(&self) -> Result<DeviceTable> {
        if !self.superblock().has_device_table() {
            let why = "the volume was made without a device table: its devices stay as they are";
            return Err(VolumeError::Lower(why.to_owned()));
        }
        self.reader().device_table()
    }

    /// Refuses tables that would leave less than half of NVM.
    fn check_tables(&self, table: &DeviceTable, wanted: u64) -> Result<()> {
        let sb = self.superblock();
        let all = table.of(0).iter().chain(table.of(1));
        let added = all.map(DevicePlace::tables);
        let added = added.filter(|t| t.zone_block >= sb.data_block);
        let there: u64 = added.map(|t| t.end_block - t.zone_block).sum();
        let most = sb.tier[0].blocks / TABLES_PART;
        match sb.data_block + there + wanted > most {
            true => Err(VolumeError::Lower(format!(
                "its tables need {wanted} blocks of NVM: with those of the other devices that is more \
                 than half of it"
            ))),
            false => Ok(()),
        }
    }
}

fn position(table: &DeviceTable, n: usize, uuid: &[u8; 16]) -> Result<usize> {
    let found = table.of(n).iter().position(|d| d.uuid == *uuid);
    found.ok_or_else(|| VolumeError::Lower("the volume has no such device".to_owned()))
}
