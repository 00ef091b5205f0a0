//! Blocks of the inode file that lie below NVM, as a check reads them: from the devices, each with its
//! checksum. Devices are opened only where there are such blocks.

use super::Checker;
use super::lower::zone_entry;
use super::media::{Block, Media};
use super::report::Object;
use super::slots::{Slot, state};
use crate::devices::label_uuid;
use crate::medium;
use crate::volume_file::{DeviceFile, VolumeFile};
use shale_device::TierDevice;
use shale_format::device_table::{DevicePlace, DeviceTable};
use shale_format::extent::root_kind;
use shale_format::inode::Inode;
use shale_format::limits::{BLOCK_BYTES, INODES_PER_BLOCK, LABEL_AREA_BYTES};
use shale_format::zone::block_sum;
use shale_format::{BlockAddr, TierId};
use std::fmt;
use std::sync::Arc;

/// Devices of the tiers below NVM that a check may read.
#[derive(Clone, Default)]
pub struct Below {
    /// By tier, ssd and hdd.
    files: [Vec<DeviceFile>; 2],
    open: Vec<([u8; 16], Arc<dyn TierDevice>)>,
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
            open: Vec::new(),
        }
    }

    /// Devices that are open, with their identities.
    pub fn open(devices: Vec<([u8; 16], Arc<dyn TierDevice>)>) -> Below {
        Below {
            open: devices,
            ..Below::default()
        }
    }

    fn device(&self, n: usize, place: &DevicePlace) -> Result<Arc<dyn TierDevice>, String> {
        let known = self.open.iter().find(|(uuid, _)| *uuid == place.uuid);
        if let Some((_, device)) = known {
            return Ok(device.clone());
        }
        let mine = |file: &&DeviceFile| {
            let device = medium::open_label(file);
            device.and_then(|d| label_uuid(&*d)) == Some(place.uuid)
        };
        let Some(file) = self.files[n].iter().find(mine) else {
            let tier = ["ssd", "hdd"][n];
            return Err(format!("a device of {tier} is missing or is not readable"));
        };
        medium::open(file, &place.entry()).map_err(|e| e.to_string())
    }
}

/// A device and its place; or why it cannot be read.
type Opened = (DevicePlace, Result<Arc<dyn TierDevice>, String>);

/// The devices of a volume that has inodes below NVM.
#[derive(Default)]
pub(super) struct Devices {
    tiers: [Vec<Opened>; 2],
}

impl Devices {
    /// Opens them, where the inode file has blocks there.
    pub(super) fn of(file: &Inode, table: &DeviceTable, below: &Below) -> Devices {
        let tiers = [0, 1].map(|n| {
            let needed = file.root[n + 1].kind != root_kind::EMPTY;
            let places = table.of(n).iter().filter(|_| needed);
            places.map(|p| (*p, below.device(n, p))).collect()
        });
        Devices { tiers }
    }

    /// Why a device is not there, if one is not.
    pub(super) fn missing(&self) -> Option<&str> {
        let all = self.tiers.iter().flatten();
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
        let n = match addr.tier() {
            Some(TierId::Ssd) => 0,
            Some(TierId::Hdd) => 1,
            _ => return Err("no such tier".to_owned()),
        };
        let at = addr.index();
        let mine = |(p, _): &&Opened| (p.first..p.end()).contains(&at);
        let found = self.tiers[n].iter().find(mine);
        let (place, device) = found.ok_or("outside of its tier")?;
        let device = device.as_ref().map_err(String::clone)?;
        let entry = zone_entry(media, place, at).ok_or("the entry of its zone is damaged")?;
        let sum = (place.tables().sums_block * BLOCK_BYTES as u64) + (at - place.first) * 4;
        let mut bytes = [0; BLOCK_BYTES];
        if !media.load(sum / BLOCK_BYTES as u64, &mut bytes) {
            return Err("its checksum is outside of NVM".to_owned());
        }
        let sum = &bytes[(sum % BLOCK_BYTES as u64) as usize..][..4];
        let byte = LABEL_AREA_BYTES + (at - place.first) * BLOCK_BYTES as u64;
        device.read(byte, into).map_err(|e| e.to_string())?;
        match block_sum(addr, entry.generation, into).to_le_bytes() == *sum {
            true => Ok(()),
            false => Err(format!("its checksum on {} does not fit", device.name())),
        }
    }
}

impl Checker<'_> {
    /// Names the inodes in blocks below NVM that cannot be read.
    pub(super) fn check_below(&mut self) {
        let mut block = [0; BLOCK_BYTES];
        for rank in 0..self.slots.blocks() {
            let Some((first, at)) = self.slots.block(rank) else {
                continue;
            };
            let addr = BlockAddr::from_raw(at);
            if addr.tier() == Some(TierId::Nvm) {
                continue;
            }
            if let Err(why) = self.media.read_below(addr, &mut block) {
                let last = first.0 + INODES_PER_BLOCK - 1;
                let what = "inodes that cannot be read";
                let found = format!("{} to {last}, in {addr:?}: {why}", first.0);
                self.findings
                    .error(Object::Part("inode file"), None, what, ("", found));
                self.totals.damaged_inodes += INODES_PER_BLOCK;
                self.slots_unread = true;
                for n in 0..INODES_PER_BLOCK {
                    let slot = Slot((rank * INODES_PER_BLOCK + n) as u32);
                    self.slots.state[slot.0 as usize] = state::DAMAGED;
                }
            }
        }
    }
}
