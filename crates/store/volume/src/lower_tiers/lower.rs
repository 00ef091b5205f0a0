//! Lower tiers: where their blocks lie, and reading them.
//!
//! A device is a row of zones behind its label and where its place in the device table says, and has a range of its tier's blocks. Its tables
//! (zones, bitmap, checksums of blocks) lie in NVM, wherever there was space when it was added.
//!
//! A block is read with its checksum, which covers its address and how often its zone was
//! erased. So a block that was never written, was written elsewhere, or is an old one is found.
//! Address and generation together name the same bytes for ever: that is a cache's key.

use crate::error::{Result, VolumeError};
use crate::lower_tiers::leaf_cache::LeafCache;
use crate::media::{Block, NvmRegion};
use crate::reading::patience::Patience;
use parking_lot::RwLock;
use shale_block::TierDevice;
use shale_format::device_table::{DEVICE_TABLE_COPIES, DevicePlace, DeviceTable};
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::{LowerTables, Superblock};
use shale_format::zone::{ZoneEntry, block_sum};
use shale_format::{BlockAddr, TierId};
use shale_sys::mutants;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How often an entry that changes in place is read before it counts as damaged.
const READS_MAX: u32 = 2000;

/// The devices of the lower tiers, in the order of the device table.
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
    /// The device that it is on, by its place in the tier.
    pub device: usize,
    /// First block.
    pub first: u64,
    /// Blocks.
    pub blocks: u64,
}

/// Where a block below NVM is on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBlock {
    /// First block of the device in its tier: no other device ever has it.
    pub device: u64,
    /// Byte of the device.
    pub byte: u64,
    /// Blocks from this one to the end of its zone.
    pub zone_left: u64,
}

/// One device, and its tables.
#[derive(Clone)]
pub(crate) struct LowerDevice {
    pub(crate) place: DevicePlace,
    pub(crate) tables: LowerTables,
    /// Where this process has it.
    pub(crate) device: Option<Arc<dyn TierDevice>>,
}

/// How one tier is laid out, and its devices where this process has them.
#[derive(Clone, Default)]
pub(crate) struct LowerTier {
    /// In the order of their blocks.
    pub(crate) devices: Vec<LowerDevice>,
}

/// The tiers as one device table has them.
#[derive(Clone, Default)]
pub(crate) struct Layout {
    pub(crate) tiers: [LowerTier; 2],
}

/// Where a block is on the devices, and its zone.
struct Spot<'l> {
    device: &'l LowerDevice,
    byte: u64,
    place: ZonePlace,
}

impl LowerDevice {
    pub(crate) fn new(
        place: &DevicePlace,
        device: Option<&Arc<dyn TierDevice>>,
    ) -> Result<LowerDevice> {
        if let Some(device) = device {
            let expected = place.device_bytes();
            if device.bytes() < expected {
                return Err(VolumeError::TierSize {
                    expected,
                    found: device.bytes(),
                });
            }
        }
        Ok(LowerDevice {
            place: *place,
            tables: place.tables(),
            device: device.cloned(),
        })
    }

    /// What is wrong with the device as a whole, if anything is.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.device.as_ref().and_then(|d| d.trouble())
    }

    /// Byte of the device at which block `index` of the tier is.
    fn byte(&self, index: u64) -> u64 {
        self.place.byte_of(index)
    }

    /// Blocks of a zone that are written as the medium has it, where it is only written in order.
    pub(crate) fn zone_written(&self, zone: &ZonePlace) -> Option<u64> {
        let device = self.device.as_ref()?;
        let written = device.zone_written(self.byte(zone.first), zone.blocks * BLOCK);
        written.map(|bytes| bytes.div_ceil(BLOCK))
    }

    /// Whether its medium never lets a zone be written again.
    pub(crate) fn zone_worn(&self, zone: &ZonePlace) -> bool {
        let (at, bytes) = (self.byte(zone.first), zone.blocks * BLOCK);
        self.device.as_ref().is_some_and(|d| d.zone_worn(at, bytes))
    }

    /// Blocks that it writes at once.
    pub(crate) fn write_unit(&self) -> u64 {
        let unit = self.device.as_ref().map_or(BLOCK, |d| d.write_unit());
        unit.div_ceil(BLOCK)
    }

    /// Byte of NVM at which the entry of the zone with block `index` of the tier is.
    pub(crate) fn entry_byte(&self, index: u64) -> u64 {
        let zone = (index - self.place.first) / u64::from(self.place.zone_blocks);
        BlockAddr::nvm(self.tables.zone_block).byte() + zone * ZoneEntry::BYTES as u64
    }

    /// Byte of NVM at which the checksum of block `index` of the tier is.
    fn sum_byte(&self, index: u64) -> u64 {
        BlockAddr::nvm(self.tables.sums_block).byte() + (index - self.place.first) * 4
    }
}

impl LowerTier {
    fn new(
        tier: TierId,
        places: &[DevicePlace],
        devices: &[Arc<dyn TierDevice>],
    ) -> Result<LowerTier> {
        if !devices.is_empty() && devices.len() != places.len() {
            return Err(VolumeError::Lower(format!(
                "{tier:?} has {} devices, not {}",
                places.len(),
                devices.len()
            )));
        }
        let all = places.iter().enumerate();
        let all = all.map(|(n, place)| LowerDevice::new(place, devices.get(n)));
        Ok(LowerTier {
            devices: all.collect::<Result<_>>()?,
        })
    }

    /// All zones in order, each with its device.
    pub(crate) fn zones(&self) -> impl Iterator<Item = (&LowerDevice, ZonePlace)> {
        let all = self.devices.iter().enumerate().flat_map(|(n, d)| {
            let blocks = u64::from(d.place.zone_blocks);
            (0..d.place.zones()).map(move |z| (n, d, d.place.first + z * blocks, blocks))
        });
        (0..).zip(all).map(|(zone, (device, d, first, blocks))| {
            let place = ZonePlace {
                zone,
                device,
                first,
                blocks,
            };
            (d, place)
        })
    }

    /// Zones of a device that are worn out as its medium has it.
    pub(crate) fn worn(&self, device: usize) -> impl Iterator<Item = ZonePlace> {
        let mine = self.zones().filter(move |(_, z)| z.device == device);
        mine.filter(|(d, z)| d.zone_worn(z)).map(|(_, z)| z)
    }

    fn spot(&self, index: u64) -> Option<Spot<'_>> {
        let mut zones = 0;
        for (n, d) in self.devices.iter().enumerate() {
            if (d.place.first..d.place.end()).contains(&index) {
                let (inside, each) = (index - d.place.first, u64::from(d.place.zone_blocks));
                return Some(Spot {
                    device: d,
                    byte: d.byte(index),
                    place: ZonePlace {
                        zone: zones + inside / each,
                        device: n,
                        first: d.place.first + inside / each * each,
                        blocks: each,
                    },
                });
            }
            zones += d.place.zones();
        }
        None
    }
}

impl Layout {
    fn new(table: &DeviceTable, devices: &LowerDevices) -> Result<Layout> {
        let tier = |n: usize, t, devices: &[_]| LowerTier::new(t, table.of(n), devices);
        Ok(Layout {
            tiers: [
                tier(0, TierId::Ssd, &devices.ssd)?,
                tier(1, TierId::Hdd, &devices.hdd)?,
            ],
        })
    }

    pub(crate) fn tier(&self, tier: TierId) -> Result<&LowerTier> {
        let found = (tier as usize).checked_sub(1).map(|n| &self.tiers[n]);
        found.ok_or_else(|| VolumeError::Lower(format!("{tier:?} is no tier below NVM")))
    }

    fn spot(&self, addr: BlockAddr) -> Result<Spot<'_>> {
        let outside = || VolumeError::BadRun {
            first: addr.raw(),
            last: addr.raw().saturating_add(1),
            why: "outside its tier",
        };
        let tier = self.tier(addr.tier().ok_or_else(outside)?)?;
        tier.spot(addr.index()).ok_or_else(outside)
    }
}

/// Reads the device table of a volume; of one that has none, what its superblock says.
///
/// # Errors
/// Both copies are damaged.
pub(crate) fn device_table(media: &NvmRegion, sb: &Superblock) -> Result<DeviceTable> {
    if !sb.has_device_table() {
        return Ok(sb.fixed_devices());
    }
    let mut error = None;
    for n in 0..READS_MAX {
        for copy in 0..DEVICE_TABLE_COPIES {
            let at = sb.device_table_block() + copy;
            let mut bytes = [0; DeviceTable::BYTES];
            media.load(BlockAddr::nvm(at), 0, &mut bytes)?;
            match DeviceTable::decode(&bytes, at, sb) {
                Ok(table) => return Ok(table),
                Err(e) => error = Some(e),
            }
        }
        // Its writer may be between two stores.
        if n > 50 {
            std::thread::yield_now();
        }
    }
    Err(error.map_or_else(
        || VolumeError::Lower("no device table".to_owned()),
        VolumeError::from,
    ))
}

/// The lower tiers as a reader has them.
pub(crate) struct Lower {
    media: NvmRegion,
    superblock: Superblock,
    /// The devices change here, so the layout is never behind the device table.
    owner: bool,
    layout: RwLock<Arc<Layout>>,
    leaves: LeafCache,
    /// How long an entry of a zone that changes in place is waited for.
    patience: Patience,
}

impl Lower {
    /// `None`: the volume can have NVM only.
    pub(crate) fn new(
        media: NvmRegion,
        sb: &Superblock,
        devices: &LowerDevices,
        owner: bool,
    ) -> Result<Option<Arc<Lower>>> {
        if !sb.can_have_tiers() {
            return Ok(None);
        }
        let layout = Layout::new(&device_table(&media, sb)?, devices)?;
        Ok(Some(Arc::new(Lower {
            media,
            superblock: *sb,
            owner,
            layout: RwLock::new(Arc::new(layout)),
            leaves: LeafCache::default(),
            patience: Patience::default(),
        })))
    }

    pub(crate) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.layout.read())
    }

    /// The owner of the volume has changed it.
    pub(crate) fn set_layout(&self, layout: Layout) {
        *self.layout.write() = Arc::new(layout);
    }

    /// Where a block is. A reader that has no devices may have missed that one was added.
    fn with_spot<T>(&self, addr: BlockAddr, f: impl Fn(&Spot<'_>) -> Result<T>) -> Result<T> {
        let layout = self.layout();
        match layout.spot(addr) {
            Ok(spot) => f(&spot),
            Err(_) if !self.owner && layout.is_blind() => {
                let table = device_table(&self.media, &self.superblock)?;
                self.set_layout(Layout::new(&table, &LowerDevices::default())?);
                f(&self.layout().spot(addr)?)
            }
            Err(e) => Err(e),
        }
    }

    pub(crate) fn place(&self, addr: BlockAddr) -> Result<ZonePlace> {
        self.with_spot(addr, |spot| Ok(spot.place))
    }

    /// A zone's entry as last committed, at byte `at` of NVM.
    pub(crate) fn entry(&self, at: u64, zone: u64) -> Result<ZoneEntry> {
        let mut bytes = [0; ZoneEntry::BYTES];
        let (addr, byte) = split(at);
        self.patience.until_whole(|| {
            self.media.load(addr, byte, &mut bytes)?;
            Ok(ZoneEntry::decode(&bytes, zone)?)
        })
    }

    fn entry_of(&self, spot: &Spot<'_>) -> Result<ZoneEntry> {
        let at = spot.device.entry_byte(spot.place.first);
        self.entry(at, spot.place.zone)
    }

    /// How often the zone of a block was erased.
    pub(crate) fn generation(&self, addr: BlockAddr) -> Result<u32> {
        self.with_spot(addr, |spot| Ok(self.entry_of(spot)?.generation))
    }

    /// Where a block is on its device.
    pub(crate) fn device_place(&self, addr: BlockAddr) -> Result<DeviceBlock> {
        self.with_spot(addr, |spot| {
            Ok(DeviceBlock {
                device: spot.device.place.first,
                byte: spot.byte,
                zone_left: spot.place.first + spot.place.blocks - addr.index(),
            })
        })
    }

    /// How many of the blocks in `bytes` are what was written from `addr` on, in one zone, when it had been erased
    /// `generation` times: the number of those before the first that is not.
    pub(crate) fn fitting(&self, addr: BlockAddr, generation: u32, bytes: &[u8]) -> Result<usize> {
        let blocks = bytes.chunks(BLOCK_BYTES);
        let sums = self.with_spot(addr, |spot| {
            self.sums(spot.device, addr.index(), blocks.len())
        })?;
        let all = (0..).zip(blocks).zip(sums);
        let fits =
            all.take_while(|((n, block), sum)| block_sum(addr.plus(*n), generation, block) == *sum);
        Ok(fits.count())
    }

    fn sums(&self, device: &LowerDevice, index: u64, blocks: usize) -> Result<Vec<u32>> {
        let mut bytes = vec![0; blocks * 4];
        let (addr, byte) = split(device.sum_byte(index));
        self.media.load(addr, byte, &mut bytes)?;
        Ok(bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| u32::from_le_bytes(*b))
            .collect())
    }

    /// Reads whole blocks from `addr` on, of any zones.
    pub(crate) fn read_blocks(&self, addr: BlockAddr, into: &mut [u8]) -> Result<()> {
        self.for_each_zone(addr, into, |spot, at, part| self.read_zone(spot, at, part))
    }

    /// Reads bytes from byte `byte` of block `addr` on as the devices have them.
    pub(crate) fn read_raw(&self, addr: BlockAddr, byte: u32, into: &mut [u8]) -> Result<()> {
        let skip = byte as usize;
        let mut whole = vec![0; (skip + into.len()).next_multiple_of(BLOCK_BYTES)];
        self.for_each_zone(addr, &mut whole, |spot, _, part| {
            spot.there()?.read(spot.byte, part).map_err(from_device)
        })?;
        into.copy_from_slice(&whole[skip..skip + into.len()]);
        Ok(())
    }

    /// Has whole blocks from `addr` on read zone by zone.
    fn for_each_zone(
        &self,
        addr: BlockAddr,
        into: &mut [u8],
        read: impl Fn(&Spot<'_>, BlockAddr, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let layout = self.layout();
        let mut at = addr;
        let mut rest = into;
        while !rest.is_empty() {
            let spot = layout.spot(at)?;
            let left = (spot.place.first + spot.place.blocks - at.index()) * BLOCK;
            let n = (rest.len() as u64).min(left) as usize;
            let (part, later) = rest.split_at_mut(n);
            read(&spot, at, part)?;
            at = at.plus(n as u64 / BLOCK);
            rest = later;
        }
        Ok(())
    }

    fn read_zone(&self, spot: &Spot<'_>, addr: BlockAddr, into: &mut [u8]) -> Result<()> {
        let device = spot.there()?;
        let generation = self.entry_of(spot)?.generation;
        device.read(spot.byte, into).map_err(from_device)?;
        let sums = self.sums(spot.device, addr.index(), into.len() / BLOCK_BYTES)?;
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

    /// Reads a block that should be a leaf, if it was not read recently.
    pub(crate) fn read_leaf(&self, addr: BlockAddr, into: &mut Block) -> Result<()> {
        let key = (addr, self.generation(addr)?);
        if let Some(block) = self.leaves.get(key) {
            *into = *block;
            return Ok(());
        }
        self.read_blocks(addr, into)?;
        self.leaves.put(key, into);
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
        let layout = self.layout();
        let spot = layout.spot(addr)?;
        let device = spot.there()?;
        if let Some(why) = device.trouble() {
            return Err(VolumeError::Lower(why));
        }
        device.write(spot.byte, from).map_err(from_device)?;
        let mut sums = Vec::with_capacity(from.len() / 1024);
        for (n, block) in (0..).zip(from.chunks(BLOCK_BYTES)) {
            let sum = block_sum(addr.plus(n), generation, block);
            sums.extend_from_slice(&sum.to_le_bytes());
        }
        let (table, byte) = split(spot.device.sum_byte(addr.index()));
        if mutants::is_on("lower-sums") {
            let at = table.byte() + byte;
            self.media.map().store(at as usize, &sums);
            return Ok(());
        }
        self.media.write(table, byte, &sums)
    }

    /// Makes the checksum of a block one that hardly any bytes fit, always the same one.
    pub(crate) fn spoil_sum(&self, addr: BlockAddr) -> Result<()> {
        let generation = self.generation(addr)?;
        let sum = !block_sum(addr, generation, &[0; BLOCK_BYTES]);
        let (table, byte) = split(self.layout().spot(addr)?.device.sum_byte(addr.index()));
        self.media.write(table, byte, &sum.to_le_bytes())
    }

    /// Whether the medium of a block can only be written in order.
    pub(crate) fn is_in_order(&self, addr: BlockAddr) -> Result<bool> {
        let layout = self.layout();
        let spot = layout.spot(addr)?;
        Ok(spot.device.zone_written(&spot.place).is_some())
    }

    /// Tells the device that a zone holds nothing. An error is one of a device that cannot write
    /// the zone again before it has erased it; to others a discard is advice: what is still there does
    /// not fit the zone's next generation, and one that fails is found out by the next write to it.
    /// `false`: the zone is worn out, and its medium has left it as it is.
    pub(crate) fn erase(&self, tier: TierId, place: ZonePlace) -> Result<bool> {
        let layout = self.layout();
        let spot = layout.spot(BlockAddr::new(tier, place.first))?;
        let device = spot.there()?;
        let discarded = device.discard(spot.byte, place.blocks * BLOCK);
        if spot.device.zone_written(&place).is_some() {
            discarded.map_err(from_device)?;
        }
        Ok(!spot.device.zone_worn(&place))
    }
}

impl Spot<'_> {
    fn there(&self) -> Result<&Arc<dyn TierDevice>> {
        self.device.device.as_ref().ok_or_else(|| {
            VolumeError::Lower("this process has no devices of lower tiers".to_owned())
        })
    }
}

impl Layout {
    fn all(&self) -> impl Iterator<Item = &LowerDevice> {
        self.tiers.iter().flat_map(|t| &t.devices)
    }

    /// Whether this process has no device.
    fn is_blind(&self) -> bool {
        self.all().all(|d| d.device.is_none())
    }

    /// Whether this process has the devices.
    pub(crate) fn has_devices(&self) -> bool {
        self.all().all(|d| d.device.is_some())
    }
}

/// A byte of NVM as block and byte.
fn split(at: u64) -> (BlockAddr, u64) {
    (BlockAddr::nvm(at / BLOCK), at % BLOCK)
}

pub(crate) fn from_device(e: shale_block::BlockError) -> VolumeError {
    match e.is_worn_out() {
        true => VolumeError::WornZone(e.to_string()),
        false if e.is_full() => VolumeError::LowerFull(e.to_string()),
        false => VolumeError::Lower(e.to_string()),
    }
}
