//! What a transaction marks and frees in a lower tier.

use crate::bitmap::Bits;
use crate::error::Result;
use crate::lower_tiers::lower::{Lower, LowerTier};
use crate::lower_tiers::zones::{FoundZone, Zones};
use crate::media::NvmRegion;
use shale_allocation::Run;
use shale_format::bitmap::{self, BITS_PER_BLOCK};
use shale_format::device_table::{DevicePlace, device_state};
use std::sync::Arc;

/// What a transaction changes in a lower tier.
pub(crate) struct LowerTxn {
    pub(crate) bits: Bits,
    pub(crate) zones: Arc<Zones>,
}

/// The tables of a device, read and found right.
pub(crate) struct LoadedDevice {
    /// Block of the tier's bitmap at which its bits begin.
    at: u64,
    bits: Bits,
    zones: Vec<FoundZone>,
    /// Blocks that it writes at once.
    unit: u64,
    closed: bool,
    /// What is wrong with it as a whole.
    trouble: Option<String>,
}

impl LoadedDevice {
    /// Reads the tables of a device of the tier.
    pub(crate) fn load(
        media: &NvmRegion,
        lower: &Lower,
        tier: &LowerTier,
        device: usize,
    ) -> Result<LoadedDevice> {
        let d = &tier.devices[device];
        let tables = &d.tables;
        let blocks = tables.sums_block - tables.bitmap_block;
        let bits = Bits::load(media, tables.bitmap_block, blocks)?;
        let mut zones = Vec::new();
        for (_, place) in tier.zones().filter(|(_, z)| z.device == device) {
            let entry_byte = d.entry_byte(place.first);
            zones.push(FoundZone {
                place,
                entry_byte,
                entry: lower.entry(entry_byte, place.zone)?,
                on_medium: d.zone_written(&place),
                worn: d.zone_worn(&place),
            });
        }
        Ok(LoadedDevice {
            at: d.place.first / BITS_PER_BLOCK,
            bits,
            zones,
            unit: d.write_unit(),
            closed: d.place.state != device_state::IN_USE,
            trouble: d.trouble(),
        })
    }
}

impl LowerTxn {
    /// Takes in a device of the tier, behind those that are there.
    pub(crate) fn add(&mut self, device: LoadedDevice) {
        self.bits.append(device.at, device.bits);
        let used = self.bits.used();
        let zones = &self.zones;
        let at = zones.add(&device.zones, device.unit, used, device.closed);
        if let Some(why) = device.trouble {
            zones.set_failing(at, why);
        }
    }

    /// Forgets a device, which holds nothing.
    pub(crate) fn remove(&mut self, place: &DevicePlace, device: usize) {
        let first = place.first / BITS_PER_BLOCK;
        let blocks = bitmap::blocks_for(place.blocks);
        self.bits.drop_blocks(first..first + blocks);
        self.zones.remove(device);
    }

    /// Checks that a run lies in the tier.
    pub(crate) fn check(&self, run: Run) -> Result<()> {
        match self.zones.covers(run) {
            true => Ok(()),
            false => Err(run.bad("outside its tier").into()),
        }
    }
}
