//! Where a file's blocks are.

use crate::error::Result;
use serde::{Deserialize, Serialize};
use shale_coherence::reclaimer::Reclaimer;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Volume, WriteStream};
use std::ops::ControlFlow;

/// Parts of a file that one answer tells of.
pub const PARTS_MAX: usize = 100;

/// Part of a file that lies in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementPart {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// `nvm` (without NVM `memory`), `ssd`, `hdd`.
    pub tier: String,
    /// First block in the tier.
    pub block: u64,
    /// Zone of the tier; NVM has none.
    pub zone: Option<u64>,
    /// The zone is one of hot data; NVM: always.
    pub hot: bool,
    /// Path of the device; NVM has none.
    pub device: Option<String>,
    /// The tier that the file is pinned to.
    pub pinned: Option<String>,
}

/// As [`crate::Daemon::where_is`].
pub(crate) fn where_is(
    volume: &Volume,
    reclaimer: &Reclaimer,
    (ino, from): (u64, u64),
    is_staged: bool,
) -> Result<Vec<PlacementPart>> {
    let name_of = |tier: TierId| match tier {
        TierId::Nvm if is_staged => "memory".to_owned(),
        tier => format!("{tier:?}").to_lowercase(),
    };
    let _reader = reclaimer.read();
    let view = volume.view();
    let mut parts = Vec::new();
    let Some(inode) = view.inode(Ino(ino))?.filter(|i| i.has_content()) else {
        return Ok(parts);
    };
    let mut extents = Vec::new();
    view.extents(&inode, FileBlock::containing(from), &mut |e| {
        extents.push(e);
        match extents.len() < PARTS_MAX {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    let zones = [TierId::Ssd, TierId::Hdd].map(|t| volume.lower_zones(t));
    let devices = [TierId::Ssd, TierId::Hdd].map(|t| volume.lower_devices(t));
    for e in extents {
        let (mut done, all) = (0, u64::from(e.len));
        while done < all && parts.len() < PARTS_MAX {
            let addr = BlockAddr::from_raw(e.addr).plus(done);
            let tier = addr.tier().unwrap_or(TierId::Nvm);
            let (zone, left) = match tier {
                TierId::Nvm => (None, all - done),
                _ => {
                    let place = view.zone(addr)?;
                    (Some(place.zone), place.first + place.blocks - addr.index())
                }
            };
            let info = zone.and_then(|z| zones[tier as usize - 1].get(z as usize));
            let blocks = left.min(all - done);
            parts.push(PlacementPart {
                offset: (e.file_block + done) * BLOCK_BYTES as u64,
                bytes: blocks * BLOCK_BYTES as u64,
                tier: name_of(tier),
                block: addr.index(),
                zone,
                hot: info.is_none_or(|z| z.stream == WriteStream::Hot),
                device: info.and_then(|z| {
                    let all = &devices[tier as usize - 1];
                    all.get(z.place.device).map(|d| d.name())
                }),
                pinned: inode.pin().map(name_of),
            });
            done += blocks;
        }
    }
    Ok(parts)
}
