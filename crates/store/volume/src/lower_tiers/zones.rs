//! Zones of the lower tiers, in memory: write pointers and live blocks.
//!
//! A zone is written from its first block on. How far it is written becomes durable with the
//! batch that links what was written; a crash forgets the rest, which nothing refers to, and it
//! is written again. A zone without live blocks is erased when no reader can hold one of its
//! blocks. One empty zone of a tier is kept for cleaning. Of a device with a *spare* that much never
//! becomes live: the less of a zone is live when it is cleaned, the less is written again (StageFS
//! §5.1 gives the translation layer of a flash device 10%).
//!
//! Invariants: a live block lies below its zone's write pointer; blocks are given out, and
//! written, in order; one thread at a time allocates and writes.
//!
//! A medium that is only written in order ([`shale_block::TierDevice::zone_written`]) cannot write
//! again what a crash forgot: there a zone goes on behind what the medium has, and what lies between
//! is dead. If the medium has less than was committed, its erasure was cut short: the zone
//! counts as full, until it is erased. A zone that is worn out counts as full, too: it is never written or erased, and of
//! the tier's space only what is live in it is part.

use crate::error::{Result, VolumeError};
use parking_lot::Mutex;
use shale_allocation::{Run, WordChange};
use shale_format::zone::ZoneEntry;
use shale_format::{BlockAddr, TierId, TxId};
use shale_sys::mutants;
use std::collections::BTreeSet;

mod info;
mod state;

pub use info::{LowerSpace, WriteStream, ZoneInfo};
pub(crate) use state::FoundZone;
use state::{DeviceUse, State, Zone};

/// Zones that one transaction erases, most.
const ERASED_AT_ONCE: usize = 64;

/// The zones of one tier.
pub(crate) struct Zones {
    tier: TierId,
    state: Mutex<State>,
}

impl Zones {
    /// None yet.
    pub(crate) fn new(tier: TierId) -> Zones {
        let state = State {
            zones: Vec::new(),
            open: [None; 2],
            devices: Vec::new(),
            erased: 0,
            written: 0,
            out_of_order: 0,
        };
        Zones {
            tier,
            state: Mutex::new(state),
        }
    }

    /// Adds the zones of the tier's last device, which writes `unit` blocks at once.
    /// `used`: the tier's bitmap as last committed. Gives the device's place in the tier.
    pub(crate) fn add(
        &self,
        zones: &[FoundZone],
        unit: u64,
        used: &[u64],
        emptying: bool,
    ) -> usize {
        let mut state = self.state.lock();
        let zones = zones.iter().map(|found| Zone::new(found, used));
        state.zones.extend(zones);
        state.devices.push(DeviceUse {
            emptying,
            unit,
            ..DeviceUse::default()
        });
        state.reopen();
        state.devices.len() - 1
    }

    /// Takes the zones of a device out, which hold nothing.
    pub(crate) fn remove(&self, device: usize) {
        let mut state = self.state.lock();
        state.zones.retain(|z| z.place.device != device);
        state.devices.remove(device);
        for (n, zone) in (0..).zip(&mut state.zones) {
            zone.place.zone = n;
            zone.place.device -= usize::from(zone.place.device > device);
        }
        state.reopen();
    }

    /// Says whether a device is being emptied.
    pub(crate) fn set_emptying(&self, device: usize, emptying: bool) {
        let mut state = self.state.lock();
        state.devices[device].emptying = emptying;
        state.reopen();
    }

    /// Keeps `percent` percent of a device out of use, for cleaning.
    pub(crate) fn set_spare(&self, device: usize, percent: u32) {
        let mut state = self.state.lock();
        let zones = state.zones.iter().filter(|z| z.place.device == device);
        let blocks: u64 = zones.map(|z| z.place.blocks).sum();
        state.devices[device].spare = blocks * u64::from(percent) / 100;
    }

    /// Nothing new goes to a device any more, because it fails. The first reason stays.
    pub(crate) fn set_failing(&self, device: usize, why: String) {
        if self.stop_writing(device, &why) {
            tracing::error!(tier = ?self.tier, device, "device failed, nothing new goes to it: {why}");
        }
    }

    /// The same, until [`Zones::set_used_again`].
    pub(crate) fn set_full(&self, device: usize, why: String) {
        if self.stop_writing(device, &why) {
            tracing::warn!(tier = ?self.tier, device, "device full, nothing new goes to it: {why}");
        }
        if let Some(one) = self.state.lock().devices.get_mut(device) {
            one.full = one.failing.as_ref() == Some(&why);
        }
    }

    /// Nothing new goes to a device. Whether something did before.
    fn stop_writing(&self, device: usize, why: &str) -> bool {
        let mut state = self.state.lock();
        let mut was_open = false;
        if let Some(one) = state.devices.get_mut(device)
            && one.failing.is_none()
        {
            one.failing = Some(why.to_owned());
            // What was written to it with the one that failed is linked by nobody.
            one.dirty = false;
            was_open = true;
        }
        state.reopen();
        was_open
    }

    /// Devices that get nothing new only because there is no space below them.
    pub(crate) fn full(&self) -> Vec<usize> {
        let state = self.state.lock();
        let devices = state.devices.iter().enumerate();
        devices.filter(|(_, d)| d.full).map(|(n, _)| n).collect()
    }

    /// Has a device that had no space below it tried again.
    pub(crate) fn set_used_again(&self, device: usize) {
        let mut state = self.state.lock();
        if let Some(one) = state.devices.get_mut(device)
            && std::mem::take(&mut one.full)
        {
            one.failing = None;
            state.reopen();
            drop(state);
            tracing::info!(tier = ?self.tier, device, "device has space again");
        }
    }

    /// Why nothing new goes to a device, if it fails.
    pub(crate) fn failing(&self, device: usize) -> Option<String> {
        let state = self.state.lock();
        state.devices.get(device)?.failing.clone()
    }

    /// Devices that were written to since they were asked for last.
    pub(crate) fn take_dirty(&self) -> Vec<usize> {
        let mut state = self.state.lock();
        let all = state.devices.iter_mut().enumerate();
        all.filter_map(|(n, d)| std::mem::take(&mut d.dirty).then_some(n))
            .collect()
    }

    /// A device was flushed: where it writes several blocks at once, its zones go on at the next of
    /// these units. The rest of the one that was begun is dead.
    pub(crate) fn flushed(&self, device: usize) {
        let mut state = self.state.lock();
        let unit = state.devices.get(device).map_or(1, |d| d.unit);
        let zones = state
            .zones
            .iter_mut()
            .filter(|z| unit > 1 && z.place.device == device);
        for zone in zones {
            zone.reached = zone.reached.next_multiple_of(unit);
            zone.given = zone.given.max(zone.reached);
        }
    }

    /// Blocks in use on a device, and how many of these are in zones that are worn out.
    pub(crate) fn live_on(&self, device: usize) -> (u64, u64) {
        let state = self.state.lock();
        let zones = state.zones.iter().filter(|z| z.place.device == device);
        zones.fold((0, 0), |(live, worn), z| {
            (live + z.live, worn + u64::from(z.worn) * z.live)
        })
    }

    /// Blocks that could come into use, were everything cleaned, on devices that are written to; their
    /// spare is kept, one zone at least. `without` this device.
    pub(crate) fn possible(&self, without: Option<usize>) -> u64 {
        let state = self.state.lock();
        let (unused, largest) = state.unused(without);
        unused.saturating_sub(largest.max(state.spare(without)))
    }

    /// Blocks that could be written, were everything cleaned; one zone is kept.
    pub(crate) fn cleanable(&self) -> u64 {
        let (unused, largest) = self.state.lock().unused(None);
        unused.saturating_sub(largest)
    }

    /// Whether a run lies on one device.
    pub(crate) fn covers(&self, run: Run) -> bool {
        let state = self.state.lock();
        let end = run.addr.index().checked_add(run.len);
        let Some(last) = end.filter(|_| run.len > 0).map(|end| end - 1) else {
            return false;
        };
        let of = |index| {
            let zone = state.zones.get(state.zone_of(index));
            zone.filter(|z| z.place.first <= index)
                .map(|z| z.place.device)
        };
        of(run.addr.index()).is_some_and(|device| of(last) == Some(device))
    }

    /// Blocks in a row for up to `blocks` blocks, in the order in which they are to be written.
    /// `last`: what is kept for cleaning may be used too.
    pub(crate) fn allocate(&self, stream: WriteStream, blocks: u64, last: bool) -> Result<Run> {
        let mut state = self.state.lock();
        let state = &mut *state;
        // With no zone in reserve what is begun is for cleaning, or there will never be one again.
        let most = match last {
            true => blocks,
            false if state.has_reserve() => state.available(),
            false => 0,
        };
        if most == 0 {
            return Err(VolumeError::NoSpace {
                wanted: blocks,
                free: 0,
            });
        }
        let at = match state.open[stream as usize].filter(|&n| state.zones[n].left() > 0) {
            Some(open) => open,
            None => {
                state.open[stream as usize] = None;
                let fresh = state.fresh(last);
                let other = 1 - stream as usize;
                let shared = state.open[other].filter(|&n| state.zones[n].left() > 0);
                // Where zones are short, hot and cold share one.
                let found = fresh.or(shared).ok_or(VolumeError::NoSpace {
                    wanted: blocks,
                    free: 0,
                })?;
                if fresh.is_some() {
                    state.zones[found].entry.stream = stream as u8;
                    state.open[stream as usize] = Some(found);
                }
                found
            }
        };
        let zone = &mut state.zones[at];
        let len = blocks.min(most).min(zone.left());
        let skipped = match mutants::is_on("zone-order") {
            true => zone.left() - len,
            false => zone.given,
        };
        let first = zone.place.first + skipped;
        zone.given += len;
        Ok(Run {
            addr: BlockAddr::new(self.tier, first),
            len,
        })
    }

    /// Generation of the zone of a run that is about to be written.
    pub(crate) fn writing(&self, run: Run) -> Result<u32> {
        let mut state = self.state.lock();
        let index = state.go_on(run)?;
        let zone = &state.zones[index];
        let (generation, device) = (zone.entry.generation, zone.place.device);
        state.devices[device].dirty = true;
        state.written += run.len;
        Ok(generation)
    }

    /// Passes over a run that is to be linked as never written.
    pub(crate) fn passing(&self, run: Run) -> Result<()> {
        self.state.lock().go_on(run).map(drop)
    }

    /// Entries of the zones in which the changes link blocks, as they are to be.
    /// With the byte of NVM at which each is.
    pub(crate) fn linked(&self, txid: TxId, changes: &[WordChange]) -> Vec<(u64, ZoneEntry)> {
        let mut state = self.state.lock();
        let mut touched = BTreeSet::new();
        for c in changes.iter().filter(|c| c.now & !c.base != 0) {
            touched.insert(state.zone_of(c.word as u64 * 64));
        }
        let mut entries = Vec::new();
        for n in touched {
            let zone = &mut state.zones[n];
            zone.entry.written = zone.reached.max(zone.entry.written.into()) as u32;
            zone.entry.txid = txid.0;
            entries.push((zone.entry_byte, zone.entry));
        }
        entries
    }

    /// Whether blocks may be linked: they were written.
    pub(crate) fn is_written(&self, run: Run) -> bool {
        let state = self.state.lock();
        let (mut at, end) = (run.addr.index(), run.addr.index() + run.len);
        while at < end {
            let zone = &state.zones[state.zone_of(at)];
            let to = end.min(zone.end());
            if to > zone.place.first + zone.reached {
                return false;
            }
            at = to;
        }
        true
    }

    /// Takes over what a commit did.
    pub(crate) fn apply_committed(&self, txid: TxId, changes: &[WordChange]) {
        let mut state = self.state.lock();
        for c in changes {
            let index = state.zone_of(c.word as u64 * 64);
            let zone = &mut state.zones[index];
            zone.live += u64::from((c.now & !c.base).count_ones());
            let gone = u64::from((c.base & !c.now).count_ones());
            zone.live -= gone;
            if gone > 0 {
                zone.freed = txid;
            }
        }
    }

    /// Zones that can be erased: written, without live blocks, and no reader holds one of
    /// their blocks if batches up to `released` are. [`ERASED_AT_ONCE`] at most.
    pub(crate) fn erasable(&self, released: TxId) -> Vec<(u64, ZoneInfo)> {
        let state = self.state.lock();
        let free =
            |z: &Zone| z.given > 0 && z.live == 0 && z.freed <= released && !z.worn && z.pins == 0;
        // An open zone that is not full goes on.
        let goes_on = |n: usize, z: &Zone| state.open.contains(&Some(n)) && z.left() > 0;
        // Nothing more is asked of a device that fails.
        let fails = |z: &Zone| {
            let device = &state.devices[z.place.device];
            // Erasing gives space back to what is full.
            device.failing.is_some() && !device.full
        };
        let zones = state.zones.iter().enumerate();
        zones
            .filter(|(n, z)| free(z) && !goes_on(*n, z) && !fails(z))
            .take(ERASED_AT_ONCE)
            .map(|(n, _)| (n as u64, state.info(n)))
            .collect()
    }

    /// Keeps the zones of a run from being erased, also if nothing in them is live, until [`Zones::unpin`].
    pub(crate) fn pin(&self, run: Run) {
        self.state.lock().of(run).for_each(|zone| zone.pins += 1);
    }

    /// Ends a pin of the same run.
    pub(crate) fn unpin(&self, run: Run) {
        for zone in self.state.lock().of(run) {
            let pins = zone.pins.checked_sub(1);
            zone.pins = pins.expect("what is unpinned was pinned");
        }
    }

    /// What a zone's entry is after it was erased.
    pub(crate) fn erased_entry(&self, zone: u64) -> ZoneEntry {
        let entry = self.state.lock().zones[zone as usize].entry;
        let generation = match mutants::is_on("zone-generation") {
            true => entry.generation,
            false => entry.generation.wrapping_add(1).max(1),
        };
        ZoneEntry {
            written: 0,
            generation,
            ..entry
        }
    }

    /// Byte of NVM at which a zone's entry is.
    pub(crate) fn entry_byte(&self, zone: u64) -> u64 {
        self.state.lock().zones[zone as usize].entry_byte
    }

    /// The erasure is committed.
    pub(crate) fn erased(&self, zone: u64, entry: ZoneEntry) {
        let mut state = self.state.lock();
        let n = zone as usize;
        assert_eq!(state.zones[n].live, 0, "a zone with live blocks is erased");
        for open in &mut state.open {
            *open = open.filter(|&o| o != n);
        }
        let z = &mut state.zones[n];
        (z.entry, z.given, z.reached) = (entry, 0, 0);
        state.erased += 1;
    }

    /// A zone is worn out: it is closed for good.
    pub(crate) fn set_worn(&self, zone: u64) {
        let mut state = self.state.lock();
        state.close(zone as usize);
        state.zones[zone as usize].worn = true;
    }

    pub(crate) fn infos(&self) -> Vec<ZoneInfo> {
        let state = self.state.lock();
        (0..state.zones.len()).map(|n| state.info(n)).collect()
    }

    /// Written blocks that were never linked are given up with their zone: a failed write
    /// leaves a gap, so nothing more is written there.
    pub(crate) fn close(&self, addr: BlockAddr) {
        let mut state = self.state.lock();
        let n = state.zone_of(addr.index());
        state.close(n);
    }
}

#[cfg(test)]
mod tests;
