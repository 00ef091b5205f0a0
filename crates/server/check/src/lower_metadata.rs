//! Blocks of the inode file and leaves of trees that lie below NVM, as a check reads them: from the devices, each with its
//! checksum. Devices are opened only where there are such blocks.

use super::lower_tiers::zone_entry;
use super::media::{Block, Media};
use shale_block::TierDevice;
use shale_format::bitmap::{self, BITS_PER_BLOCK, WORDS_PER_BLOCK};
use shale_format::device_table::{DevicePlace, DeviceTable};
use shale_format::extent::root_kind;
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::RootBlock;
use shale_format::zone::{ZoneEntry, block_sum};
use shale_format::{BlockAddr, TierId};
use shale_pool::device_probe;
use shale_pool::devices::label_uuid;
use shale_pool::volume_file::{DeviceFile, VolumeFile};
use std::fmt;
use std::sync::Arc;

/// Blocks that are read at once where inodes are looked for.
const RUN_BLOCKS: u64 = 256;

/// Devices of the lower tiers that a check may read.
#[derive(Clone, Default)]
pub struct Below {
    /// By tier, ssd and hdd.
    files: [Vec<DeviceFile>; 2],
    open: Vec<([u8; 16], Arc<dyn TierDevice>)>,
    /// What is missing is given up.
    given_up: bool,
}

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open: Vec<String> = self.open.iter().map(|(_, d)| d.name()).collect();
        f.debug_struct("Below")
            .field("files", &self.files)
            .field("open", &open)
            .finish()
    }
}

impl Below {
    /// Those that a volume file names; they are opened when one is needed.
    pub fn named(file: &VolumeFile) -> Below {
        Below {
            files: [file.ssd.clone(), file.hdd.clone()],
            ..Below::default()
        }
    }

    /// The same; a repair takes the structure on devices that are missing for lost, and does not refuse.
    #[must_use]
    pub fn without_missing(self) -> Below {
        Below {
            given_up: true,
            ..self
        }
    }

    /// Devices that are open, with their identities.
    pub fn open(devices: Vec<([u8; 16], Arc<dyn TierDevice>)>) -> Below {
        Below {
            open: devices,
            ..Below::default()
        }
    }

    /// Why devices of the volume cannot be opened, where a volume file names some and they are not given up.
    pub(super) fn absent(&self, table: &DeviceTable) -> Vec<String> {
        let places = |n: usize| table.of(n).iter().map(move |p| self.device(n, p).err());
        let named = self.files.iter().any(|files| !files.is_empty()) && !self.given_up;
        let tiers = (0..2).filter(|_| named);
        tiers.flat_map(places).flatten().collect()
    }

    fn device(&self, n: usize, place: &DevicePlace) -> Result<Arc<dyn TierDevice>, String> {
        let known = self.open.iter().find(|(uuid, _)| *uuid == place.uuid);
        if let Some((_, device)) = known {
            return Ok(device.clone());
        }
        let mine = |file: &&DeviceFile| {
            let device = device_probe::open_label(file);
            device.and_then(|d| label_uuid(&*d)) == Some(place.uuid)
        };
        let Some(file) = self.files[n].iter().find(mine) else {
            let named: Vec<String> = self.files[n]
                .iter()
                .map(|f| f.path.display().to_string())
                .collect();
            return Err(format!(
                "a device of {} is missing or is not readable; named are: {}",
                ["ssd", "hdd"][n],
                named.join(", ")
            ));
        };
        device_probe::open(file, place).map_err(|e| e.to_string())
    }
}

/// A device and its place; or why it cannot be read.
type Opened = (DevicePlace, Result<Arc<dyn TierDevice>, String>);

/// The devices of a volume that has structure below NVM.
#[derive(Default)]
pub(super) struct Devices {
    tiers: [Vec<Opened>; 2],
    /// What is missing is given up.
    given_up: bool,
}

impl Devices {
    /// Opens those of the tiers in which the inode file has blocks or trees have leaves; of all tiers
    /// if it is not known.
    pub(super) fn of(root: Option<&RootBlock>, table: &DeviceTable, below: &Below) -> Devices {
        let tiers = [0, 1].map(|n| {
            let inodes = |r: &RootBlock| r.inode_file.root[n + 1].kind != root_kind::EMPTY;
            let leaves = |r: &RootBlock| r.leaves_below[n] + r.extent_leaves_below[n] > 0;
            let needed = root.is_none_or(|r| inodes(r) || leaves(r));
            let places = table.of(n).iter().filter(|_| needed);
            places.map(|p| (*p, below.device(n, p))).collect()
        });
        Devices {
            tiers,
            given_up: below.given_up,
        }
    }

    /// Why a device is not there that is not given up, if one is not.
    pub(super) fn missing(&self) -> Option<&str> {
        let all = self.tiers.iter().flatten().filter(|_| !self.given_up);
        all.filter_map(|(_, d)| d.as_ref().err())
            .map(String::as_str)
            .next()
    }

    /// Reads a block.
    pub(super) fn read(
        &self,
        media: &Media,
        addr: BlockAddr,
        into: &mut Block,
    ) -> Result<(), String> {
        let (place, device) = self.find(addr)?;
        let entry = zone_entry(media, place, addr.index());
        let entry = entry.ok_or("the entry of its zone is damaged")?;
        device
            .read(byte_of(place, addr.index()), into)
            .map_err(|e| e.to_string())?;
        match is_whole(media, place, (addr, entry.generation), into) {
            true => Ok(()),
            false => Err(format!("its checksum on {} does not fit", device.name())),
        }
    }

    /// Reads a block, whatever its checksum says.
    pub(super) fn read_unsure(&self, addr: BlockAddr, into: &mut Block) -> Result<(), String> {
        let (place, device) = self.find(addr)?;
        let read = device.read(byte_of(place, addr.index()), into);
        read.map_err(|e| e.to_string())
    }

    fn find(&self, addr: BlockAddr) -> Result<(&DevicePlace, &Arc<dyn TierDevice>), String> {
        let n = match addr.tier() {
            Some(TierId::Ssd) => 0,
            Some(TierId::Hdd) => 1,
            _ => return Err("no such tier".to_owned()),
        };
        let mine = |(p, _): &&Opened| (p.first..p.end()).contains(&addr.index());
        let found = self.tiers[n].iter().find(mine);
        let (place, device) = found.ok_or("outside of its tier")?;
        Ok((place, device.as_ref().map_err(String::clone)?))
    }

    /// Reads every block in use, in order, on devices that are open, and gives those whose checksums fit.
    /// One whose zone has lost its entry has no checksum any more: what is in it has to tell by itself.
    pub(super) fn each_in_use(&self, media: &Media, f: &mut dyn FnMut(BlockAddr, &Block)) {
        for (tier, opened) in [TierId::Ssd, TierId::Hdd].into_iter().zip(&self.tiers) {
            for (place, device) in opened {
                let Ok(device) = device else { continue };
                each_run_in_use(media, place, &mut |first, len| {
                    let mut bytes = vec![0; len as usize * BLOCK_BYTES];
                    // One by one where not all of them can be read.
                    let whole = device.read(byte_of(place, first), &mut bytes).is_ok();
                    for (at, block) in (first..).zip(bytes.as_chunks_mut().0) {
                        if !whole && device.read(byte_of(place, at), block).is_err() {
                            continue;
                        }
                        let addr = BlockAddr::new(tier, at);
                        let entry = zone_entry(media, place, at);
                        let fits =
                            |e: ZoneEntry| is_whole(media, place, (addr, e.generation), block);
                        if entry.is_none_or(fits) {
                            f(addr, block);
                        }
                    }
                });
            }
        }
    }
}

/// Where on its device block `at` of the tier lies.
fn byte_of(place: &DevicePlace, at: u64) -> u64 {
    place.byte_of(at)
}

/// Whether a block is what its checksum says.
fn is_whole(
    media: &Media,
    place: &DevicePlace,
    (addr, generation): (BlockAddr, u32),
    block: &Block,
) -> bool {
    let sum = place.tables().sums_block * BLOCK_BYTES as u64 + (addr.index() - place.first) * 4;
    let mut bytes = [0; BLOCK_BYTES];
    let there = media.load_nvm(sum / BLOCK_BYTES as u64, &mut bytes);
    let sum = &bytes[(sum % BLOCK_BYTES as u64) as usize..][..4];
    there && block_sum(addr, generation, block).to_le_bytes() == *sum
}

/// Runs of blocks of a device that are marked used, [`RUN_BLOCKS`] long at most. Where the bitmap cannot
/// be read all of them are.
fn each_run_in_use(media: &Media, place: &DevicePlace, f: &mut dyn FnMut(u64, u64)) {
    let tables = place.tables();
    let mut run = 0..0;
    for n in 0..tables.sums_block - tables.bitmap_block {
        let addr = BlockAddr::nvm(tables.bitmap_block + n);
        let mut bytes = [0; BLOCK_BYTES];
        let there = media.load_nvm(addr.index(), &mut bytes);
        let words = bitmap::decode(&bytes, addr).ok().filter(|_| there);
        let first = place.first + n * BITS_PER_BLOCK;
        for bit in 0..BITS_PER_BLOCK.min(place.end().saturating_sub(first)) {
            let used = |w: &[u64; WORDS_PER_BLOCK]| w[(bit / 64) as usize] >> (bit % 64) & 1 == 1;
            if !words.as_deref().is_none_or(used) {
                continue;
            }
            let at = first + bit;
            if run.end != at || run.end - run.start == RUN_BLOCKS {
                if !run.is_empty() {
                    f(run.start, run.end - run.start);
                }
                run = at..at;
            }
            run.end += 1;
        }
    }
    if !run.is_empty() {
        f(run.start, run.end - run.start);
    }
}
