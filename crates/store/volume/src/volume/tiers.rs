//! The lower tiers, as the daemon writes them.
//!
//! Order of moving blocks down, and what a power cut after each step leaves:
//! 1. blocks are given out behind a zone's write pointer, written, with their checksums in NVM;
//!    nothing refers to them: the state before;
//! 2. the device is flushed: the state before;
//! 3. one transaction links them, unmaps the old blocks, moves the write pointers: the state
//!    before, or after;
//! 4. the old blocks are given out again when no reader can hold them.
//!
//! A zone without live blocks is discarded, then its entry is reset in a transaction: a cut in
//! between leaves an empty zone that is erased once more.

use crate::error::{Result, VolumeError};
use crate::lower_tiers::lower::{Lower, from_device};
use crate::lower_tiers::zones::{LowerSpace, WriteStream, ZoneInfo, Zones};
use crate::volume::Volume;
use shale_allocation::Run;
use shale_block::TierDevice;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId, TxId};
use shale_sys::mutants;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Volume {
    pub(crate) fn below(&self) -> Result<&Arc<Lower>> {
        let lower = self.reader().lower();
        lower.ok_or_else(|| VolumeError::Lower("the volume has NVM only".to_owned()))
    }

    pub(crate) fn zones_of(&self, tier: TierId) -> Result<&Arc<Zones>> {
        let n = (tier as usize).checked_sub(1);
        let zones = n.and_then(|n| self.zones[n].as_ref());
        zones.ok_or_else(|| VolumeError::Lower(format!("the volume has no tier {tier:?}")))
    }

    /// Whether there is a lower tier now.
    pub fn is_tiered(&self) -> bool {
        !self.lower_tiers().is_empty()
    }

    /// Lower tiers that the volume has, fastest first, if their devices are there.
    pub fn lower_tiers(&self) -> Vec<TierId> {
        let Some(lower) = self.reader().lower() else {
            return Vec::new();
        };
        let layout = lower.layout();
        let tiers = [TierId::Ssd, TierId::Hdd].into_iter().zip(&layout.tiers);
        let there = layout.has_devices();
        tiers
            .filter(|(_, t)| there && !t.devices.is_empty())
            .map(|(tier, _)| tier)
            .collect()
    }

    /// Devices of a tier, in order.
    pub fn lower_devices(&self, tier: TierId) -> Vec<Arc<dyn TierDevice>> {
        let layout = self.reader().lower().map(|l| l.layout());
        let tier = layout.as_ref().and_then(|l| l.tier(tier).ok());
        tier.map_or(Vec::new(), |t| {
            t.devices.iter().filter_map(|d| d.device.clone()).collect()
        })
    }

    /// How a lower tier is used; `None`: there is none.
    pub fn lower_space(&self, tier: TierId) -> Option<LowerSpace> {
        let space = self.zones_of(tier).ok().map(|z| z.space());
        space.filter(|s| s.zones > 0)
    }

    /// The zones of a lower tier.
    pub fn lower_zones(&self, tier: TierId) -> Vec<ZoneInfo> {
        self.zones_of(tier).map_or(Vec::new(), |z| z.infos())
    }

    /// Blocks in a row on a lower tier, at most `blocks`, to be written next with
    /// [`Volume::write_lower`]. One thread at a time does both. `last`: what is kept for
    /// cleaning may be used.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_lower(
        &self,
        tier: TierId,
        stream: WriteStream,
        blocks: u64,
        last: bool,
    ) -> Result<Run> {
        self.zones_of(tier)?.allocate(stream, blocks, last)
    }

    /// Writes blocks that [`Volume::allocate_lower`] gave, and their checksums. Durable after
    /// [`Volume::flush_lower`] and the next commit of this thread.
    ///
    /// # Errors
    /// The device fails: nothing new goes to it any more. [`VolumeError::WornZone`]: nothing new goes to the zone.
    pub fn write_lower(&self, run: Run, from: &[u8]) -> Result<()> {
        assert_eq!(run.len as usize * BLOCK_BYTES, from.len());
        let tier = run.addr.tier().unwrap_or(TierId::Nvm);
        let zones = self.zones_of(tier)?;
        let written = zones
            .writing(run)
            .and_then(|generation| self.below()?.write_blocks(run.addr, generation, from));
        if let Err(e) = &written {
            zones.close(run.addr);
            match (e, self.below()?.place(run.addr)) {
                (VolumeError::WornZone(_), Ok(place)) => zones.set_worn(place.zone),
                (VolumeError::Lower(why), Ok(place)) => {
                    zones.set_failing(place.device, why.clone());
                }
                (VolumeError::LowerFull(_), Ok(place)) => {
                    zones.set_full(place.device, e.to_string());
                }
                _ => {}
            }
        }
        written
    }

    /// Keeps the zones of a run below NVM from being erased until [`Volume::unpin_zones`], though no file may have its
    /// blocks (any more).
    ///
    /// # Errors
    /// There is no such tier.
    pub fn pin_zones(&self, run: Run) -> Result<()> {
        self.zones_of(run.addr.tier().unwrap_or(TierId::Nvm))?
            .pin(run);
        Ok(())
    }

    /// Ends a pin of the same run.
    ///
    /// # Errors
    /// There is no such tier.
    pub fn unpin_zones(&self, run: Run) -> Result<()> {
        self.zones_of(run.addr.tier().unwrap_or(TierId::Nvm))?
            .unpin(run);
        Ok(())
    }

    /// Reads bytes from byte `byte` of block `addr` below NVM on, as the device has them: no file need have these blocks, and no
    /// checksum is looked at.
    ///
    /// # Errors
    /// No such blocks; the device fails, or is not there.
    pub fn read_lower_raw(&self, addr: BlockAddr, byte: u32, into: &mut [u8]) -> Result<()> {
        self.below()?.read_raw(addr, byte, into)
    }

    /// Passes over blocks that [`Volume::allocate_lower`] gave, which are to be linked as never
    /// written. Nothing goes to the device, unless it can only be written in order: then zeros do.
    ///
    /// # Errors
    /// They are not where their zone goes on; as [`Volume::write_lower`].
    pub fn skip_lower(&self, run: Run) -> Result<()> {
        if self.below()?.is_in_order(run.addr)? {
            return self.write_lower(run, &vec![0; run.len as usize * BLOCK_BYTES]);
        }
        let tier = run.addr.tier().unwrap_or(TierId::Nvm);
        self.zones_of(tier)?.passing(run)
    }

    /// Makes a block below NVM one that cannot be read, whatever its device has or comes to have again: its
    /// checksum fits nothing. Done twice it is as done once. Durable after the next commit of this thread.
    ///
    /// # Errors
    /// No such block; a memory error.
    pub fn lose_lower(&self, addr: BlockAddr) -> Result<()> {
        self.below()?.spoil_sum(addr)
    }

    /// Whether a block below NVM is in use, as last committed. Waits while there is a transaction.
    pub fn is_live(&self, addr: BlockAddr) -> bool {
        let core = self.core.lock();
        let lower = match addr.tier() {
            Some(TierId::Ssd) => &core.draft.lower[0],
            Some(TierId::Hdd) => &core.draft.lower[1],
            _ => return false,
        };
        let run = Run { addr, len: 1 };
        lower.as_ref().is_some_and(|l| {
            let (w, bit) = ((addr.index() / 64) as usize, addr.index() % 64);
            l.zones.covers(run) && l.bits.used()[w] >> bit & 1 == 1
        })
    }

    /// Makes durable what was written to a tier.
    ///
    /// # Errors
    /// A device fails, or a zone of one is worn out ([`VolumeError::WornZone`]): what was written is not to be
    /// linked.
    pub fn flush_lower(&self, tier: TierId) -> Result<()> {
        if mutants::is_on("lower-flush") {
            return Ok(());
        }
        let (lower, zones) = (self.below()?, self.zones_of(tier)?);
        let layout = lower.layout();
        let devices = &layout.tier(tier)?.devices;
        let mut result = Ok(());
        for n in zones.take_dirty() {
            let Some(device) = devices.get(n).and_then(|d| d.device.as_ref()) else {
                continue;
            };
            let trouble = || device.trouble().map(VolumeError::Lower);
            let flushed = device.flush().map_err(from_device);
            let flushed = flushed.and_then(|()| trouble().map_or(Ok(()), Err));
            if let Err(e) = flushed
                && !mutants::is_on("lower-flush-error")
            {
                match &e {
                    VolumeError::Lower(why) | VolumeError::LowerFull(why) => {
                        zones.set_failing(n, why.clone());
                    }
                    _ => layout
                        .tier(tier)?
                        .worn(n)
                        .for_each(|z| zones.set_worn(z.zone)),
                }
                result = Err(e);
            }
            zones.flushed(n);
        }
        result
    }

    /// Uses devices again that had no space below them, where there is some now as `has_space` says of their names. Whether there
    /// was such a device.
    pub fn retry_full(&self, tier: TierId, has_space: impl Fn(&str) -> bool) -> bool {
        let (Ok(zones), Ok(lower)) = (self.zones_of(tier), self.below()) else {
            return false;
        };
        let layout = lower.layout();
        let Ok(devices) = layout.tier(tier).map(|t| &t.devices) else {
            return false;
        };
        let device = |n: usize| devices.get(n).and_then(|d| d.device.as_ref());
        let full = zones.full().into_iter();
        let has_space: Vec<usize> = full
            .filter(|&n| device(n).is_some_and(|d| has_space(&d.name())))
            .collect();
        has_space.iter().for_each(|&n| zones.set_used_again(n));
        !has_space.is_empty()
    }

    /// Erases zones of a tier that hold no live block which a reader could still look at, 64 at most.
    /// Gives their number.
    ///
    /// # Errors
    /// The commit fails. A device that cannot erase fails, which is none.
    pub fn erase_zones(&self, tier: TierId) -> Result<u64> {
        let zones = self.zones_of(tier)?;
        let released = match mutants::is_on("zone-erased-early") {
            true => TxId(u64::MAX),
            false => {
                let erasable = self.erasable.load(Ordering::Acquire);
                TxId(self.released.load(Ordering::Acquire).min(erasable))
            }
        };
        let mut found = zones.erasable(released);
        let lower = self.below()?;
        found.retain(|(n, zone)| match lower.erase(tier, zone.place) {
            Ok(true) => true,
            Ok(false) => {
                zones.set_worn(*n);
                false
            }
            Err(e) => {
                zones.set_failing(zone.place.device, e.to_string());
                false
            }
        });
        if found.is_empty() {
            return Ok(0);
        }
        let mut txn = self.begin();
        for (n, _) in &found {
            txn.erase_zone(tier, *n, zones.erased_entry(*n));
        }
        txn.commit()?;
        Ok(found.len() as u64)
    }
}
