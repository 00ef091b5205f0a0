//! Tiers below NVM: where their blocks lie, and reading them.
//!
//! A tier is its devices joined end to end; each device is a row of zones behind its label.
//! The tables of a tier (zones, bitmap, checksums of blocks) lie in NVM.
//!
//! A block is read with its checksum, which covers its address and how often its zone was
//! erased. So a block that was never written, was written elsewhere, or is an old one is found.
//! Address and generation together name the same bytes for ever: that is a cache's key.

use crate::error::{Result, VolumeError};
use crate::media::Media;
use shale_device::{TierDevice, mutants};
use shale_format::limits::{BLOCK_BYTES, LABEL_AREA_BYTES};
use shale_format::superblock::{DeviceEntry, LowerTables, Superblock, TierTable};
use shale_format::zone::{ZoneEntry, block_sum};
use shale_format::{BlockAddr, FormatError, TierId};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How often an entry that changes in place is read before it counts as damaged.
const READS_MAX: u32 = 2000;

/// The devices of the tiers below NVM, in the order of the superblock.
#[derive(Clone, Default)]
pub struct LowerDevices {
    /// Flash.
    pub ssd: Vec<Arc<dyn TierDevice>>,
    /// Disks.
    pub hdd: Vec<Arc<dyn TierDevice>>,
}

/// A zone, by its blocks in the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonePlace {
    /// Its number in the tier.
    pub zone: u64,
    /// First block.
    pub first: u64,
    /// Blocks.
    pub blocks: u64,
}

/// How one tier is laid out, and its devices where this process has them.
#[derive(Clone)]
pub(crate) struct LowerTier {
    blocks: u64,
    pub(crate) tables: LowerTables,
    entries: Vec<DeviceEntry>,
    devices: Vec<Arc<dyn TierDevice>>,
}

/// Where a block is on the devices, and how far its zone goes on.
struct Spot {
    device: usize,
    byte: u64,
    place: ZonePlace,
}

impl LowerTier {
    fn new(
        tier: TierId,
        table: &TierTable,
        tables: LowerTables,
        devices: &[Arc<dyn TierDevice>],
    ) -> Result<Option<LowerTier>> {
        if table.blocks == 0 {
            return Ok(None);
        }
        let entries = table.device[..table.devices as usize].to_vec();
        if !devices.is_empty() && devices.len() != entries.len() {
            return Err(VolumeError::Lower(format!(
                "{tier:?} has {} devices, not {}",
                entries.len(),
                devices.len()
            )));
        }
        for (entry, device) in entries.iter().zip(devices) {
            let expected = LABEL_AREA_BYTES + entry.blocks * BLOCK;
            if device.bytes() < expected {
                return Err(VolumeError::TierSize {
                    expected,
                    found: device.bytes(),
                });
            }
        }
        Ok(Some(LowerTier {
            blocks: table.blocks,
            tables,
            entries,
            devices: devices.to_vec(),
        }))
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn devices(&self) -> &[Arc<dyn TierDevice>] {
        &self.devices
    }

    pub(crate) fn zones(&self) -> u64 {
        self.entries.iter().map(DeviceEntry::zones).sum()
    }

    /// All zones in order.
    pub(crate) fn places(&self) -> Vec<ZonePlace> {
        let mut places = Vec::new();
        let mut at = 0;
        while let Some(spot) = self.spot(at) {
            at = spot.place.first + spot.place.blocks;
            places.push(spot.place);
        }
        places
    }

    fn spot(&self, index: u64) -> Option<Spot> {
        let (mut first, mut zones) = (0, 0);
        for (device, entry) in self.entries.iter().enumerate() {
            if index < first + entry.blocks {
                let (inside, each) = (index - first, u64::from(entry.zone_blocks));
                let zone = inside / each;
                return Some(Spot {
                    device,
                    byte: LABEL_AREA_BYTES + inside * BLOCK,
                    place: ZonePlace {
                        zone: zones + zone,
                        first: first + zone * each,
                        blocks: each,
                    },
                });
            }
            first += entry.blocks;
            zones += entry.zones();
        }
        None
    }

    /// Where in NVM a zone's entry is: block and byte.
    pub(crate) fn entry_at(&self, zone: u64) -> (BlockAddr, u64) {
        let byte = zone * ZoneEntry::BYTES as u64;
        (BlockAddr::nvm(self.tables.zone_block), byte)
    }
}

/// The tiers below NVM as a reader has them.
#[derive(Clone)]
pub(crate) struct Lower {
    media: Media,
    pub(crate) tiers: [Option<LowerTier>; 2],
}

impl Lower {
    /// `None`: the volume has NVM only.
    pub(crate) fn new(
        media: Media,
        sb: &Superblock,
        devices: &LowerDevices,
    ) -> Result<Option<Arc<Lower>>> {
        if !sb.is_tiered() {
            return Ok(None);
        }
        let tiers = [
            LowerTier::new(TierId::Ssd, &sb.tier[1], sb.lower[0], &devices.ssd)?,
            LowerTier::new(TierId::Hdd, &sb.tier[2], sb.lower[1], &devices.hdd)?,
        ];
        Ok(Some(Arc::new(Lower { media, tiers })))
    }

    /// Whether this process has the devices.
    pub(crate) fn has_devices(&self) -> bool {
        self.tiers.iter().flatten().all(|t| !t.devices.is_empty())
    }

    pub(crate) fn tier(&self, tier: TierId) -> Result<&LowerTier> {
        let found = (tier as usize)
            .checked_sub(1)
            .and_then(|n| self.tiers[n].as_ref());
        found.ok_or_else(|| VolumeError::Lower(format!("the volume has no tier {tier:?}")))
    }

    fn spot(&self, addr: BlockAddr) -> Result<(&LowerTier, Spot)> {
        let outside = || VolumeError::BadRun {
            first: addr.raw(),
            last: addr.raw().saturating_add(1),
            why: "outside its tier",
        };
        let tier = self.tier(addr.tier().ok_or_else(outside)?)?;
        let spot = tier.spot(addr.index()).ok_or_else(outside)?;
        Ok((tier, spot))
    }

    pub(crate) fn place(&self, addr: BlockAddr) -> Result<ZonePlace> {
        Ok(self.spot(addr)?.1.place)
    }

    /// A zone's entry as last committed.
    pub(crate) fn entry(&self, tier: &LowerTier, zone: u64) -> Result<ZoneEntry> {
        let (addr, byte) = tier.entry_at(zone);
        let mut bytes = [0; ZoneEntry::BYTES];
        for n in 0..READS_MAX {
            self.media.load(addr, byte, &mut bytes)?;
            match ZoneEntry::decode(&bytes, zone) {
                Ok(entry) => return Ok(entry),
                // It changes in place: its writer may be between two stores.
                Err(FormatError::Checksum { .. } | FormatError::Magic { .. }) if n > 50 => {
                    std::thread::yield_now();
                }
                Err(FormatError::Checksum { .. } | FormatError::Magic { .. }) => {
                    std::hint::spin_loop();
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(ZoneEntry::decode(&bytes, zone)?)
    }

    /// How often the zone of a block was erased.
    pub(crate) fn generation(&self, addr: BlockAddr) -> Result<u32> {
        let (tier, spot) = self.spot(addr)?;
        Ok(self.entry(tier, spot.place.zone)?.generation)
    }

    fn sums(&self, tier: &LowerTier, index: u64, blocks: usize) -> Result<Vec<u32>> {
        let mut bytes = vec![0; blocks * 4];
        let first = BlockAddr::nvm(tier.tables.sums_block);
        self.media.load(first, index * 4, &mut bytes)?;
        Ok(bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
            .collect())
    }

    /// Reads whole blocks from `addr` on, of any zones.
    pub(crate) fn read_blocks(&self, addr: BlockAddr, into: &mut [u8]) -> Result<()> {
        let mut at = addr;
        let mut rest = into;
        while !rest.is_empty() {
            let (tier, spot) = self.spot(at)?;
            let left = (spot.place.first + spot.place.blocks - at.index()) * BLOCK;
            let n = (rest.len() as u64).min(left) as usize;
            let (part, later) = rest.split_at_mut(n);
            self.read_zone(tier, &spot, at, part)?;
            at = at.plus(n as u64 / BLOCK);
            rest = later;
        }
        Ok(())
    }

    fn read_zone(
        &self,
        tier: &LowerTier,
        spot: &Spot,
        addr: BlockAddr,
        into: &mut [u8],
    ) -> Result<()> {
        let device = tier.devices.get(spot.device).ok_or_else(|| {
            VolumeError::Lower("this process has no devices of lower tiers".to_owned())
        })?;
        let generation = self.entry(tier, spot.place.zone)?.generation;
        device.read(spot.byte, into).map_err(lower)?;
        let sums = self.sums(tier, addr.index(), into.len() / BLOCK_BYTES)?;
        for ((n, block), sum) in (0..).zip(into.chunks(BLOCK_BYTES)).zip(sums) {
            let at = addr.plus(n);
            let fits = block_sum(at, generation, block) == sum;
            if !fits && !mutants::is_on("lower-checksum") {
                return Err(VolumeError::BadBlock {
                    addr: at.raw(),
                    device: device.name(),
                });
            }
        }
        Ok(())
    }

    /// Reads bytes from byte `byte` behind the start of block `addr`.
    pub(crate) fn read_at(&self, addr: BlockAddr, byte: u64, into: &mut [u8]) -> Result<()> {
        let addr = addr.plus(byte / BLOCK);
        let skip = (byte % BLOCK) as usize;
        if skip == 0 && into.len().is_multiple_of(BLOCK_BYTES) {
            return self.read_blocks(addr, into);
        }
        let mut whole = vec![0; (skip + into.len()).next_multiple_of(BLOCK_BYTES)];
        self.read_blocks(addr, &mut whole)?;
        into.copy_from_slice(&whole[skip..skip + into.len()]);
        Ok(())
    }

    /// Writes whole blocks of one zone, and their checksums. Durable after a flush of the tier
    /// and a fence of this thread.
    pub(crate) fn write_blocks(&self, addr: BlockAddr, generation: u32, from: &[u8]) -> Result<()> {
        let (tier, spot) = self.spot(addr)?;
        let device = tier
            .devices
            .get(spot.device)
            .ok_or_else(|| VolumeError::Lower("no devices".to_owned()))?;
        device.write(spot.byte, from).map_err(lower)?;
        let mut sums = Vec::with_capacity(from.len() / 1024);
        for (n, block) in (0..).zip(from.chunks(BLOCK_BYTES)) {
            let sum = block_sum(addr.plus(n), generation, block);
            sums.extend_from_slice(&sum.to_le_bytes());
        }
        let table = BlockAddr::nvm(tier.tables.sums_block);
        self.media.write(table, addr.index() * 4, &sums)
    }

    /// Tells the device that a zone holds nothing.
    pub(crate) fn discard(&self, tier: TierId, place: ZonePlace) -> Result<()> {
        let (tier, spot) = self.spot(BlockAddr::new(tier, place.first))?;
        let device = tier.devices.get(spot.device);
        device.map_or(Ok(()), |d| {
            d.discard(spot.byte, place.blocks * BLOCK).map_err(lower)
        })
    }

    /// Makes durable what was written to a tier.
    pub(crate) fn flush(&self, tier: TierId) -> Result<()> {
        for device in self.tier(tier)?.devices() {
            device.flush().map_err(lower)?;
        }
        Ok(())
    }
}

fn lower(e: shale_device::DeviceError) -> VolumeError {
    VolumeError::Lower(e.to_string())
}
