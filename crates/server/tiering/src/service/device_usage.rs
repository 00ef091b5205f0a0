//! What each device holds, and what would be lost with it.

use super::Tiering;
use serde::{Deserialize, Serialize};
use shale_format::device_table::DevicePlace;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId};
use shale_volume::{Result, ZoneInfo};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Files with blocks on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// `nvm`, `ssd` or `hdd`.
    pub tier: String,
    /// Its place among the devices of the tier.
    pub device: usize,
    /// Files that have blocks on it.
    pub files: u64,
    /// Bytes of them that are there.
    pub bytes: u64,
}

/// Name of a tier.
pub fn tier_name(tier: TierId) -> String {
    format!("{tier:?}").to_lowercase()
}

/// Blocks of one device of a tier: where they begin and end in it.
pub struct Span {
    /// First block.
    pub first: u64,
    /// Behind the last.
    pub end: u64,
}

impl Span {
    /// Those of the device at a place of the device table.
    pub fn of(place: &DevicePlace) -> Self {
        Self {
            first: place.first,
            end: place.first + place.blocks,
        }
    }

    /// Zones of the device.
    pub fn zones<'z>(&self, zones: &'z [ZoneInfo]) -> impl Iterator<Item = &'z ZoneInfo> {
        let (first, end) = (self.first, self.end);
        zones
            .iter()
            .filter(move |z| (first..end).contains(&z.place.first))
    }
}

impl Tiering {
    /// Where the devices of a tier lie in it; NVM counts as one.
    pub(crate) fn device_spans(&self, tier: TierId) -> Vec<Span> {
        if tier == TierId::Nvm {
            return vec![Span {
                first: 0,
                end: u64::MAX,
            }];
        }
        let devices = self.volume.lower_device_infos(tier).into_iter();
        devices.map(|d| Span::of(&d.place)).collect()
    }

    /// Files and their bytes, for each device. All inodes are scanned.
    pub fn holdings(&self) -> Result<Vec<DeviceUsage>> {
        let mut all = Vec::new();
        let tiers = [TierId::Nvm].into_iter().chain(self.volume.lower_tiers());
        for tier in tiers {
            let spans = self.device_spans(tier).into_iter().enumerate();
            all.extend(spans.map(|(device, span)| (tier, device, span, DeviceUsage::default(), 0)));
        }
        self.each_lying(None, &mut |inode, lies| {
            let e = &lies.extent;
            let addr = BlockAddr::from_raw(e.addr);
            let (start, end) = (addr.index(), addr.index() + u64::from(e.len));
            let mine = all.iter_mut().filter(|of| addr.tier() == Some(of.0));
            for (_, _, span, held, last) in mine {
                let (from, to) = (start.max(span.first), end.min(span.end));
                if from < to {
                    held.bytes += (to - from) * BLOCK;
                    held.files += u64::from(*last != inode.ino);
                    *last = inode.ino;
                }
            }
        })?;
        let named = all
            .into_iter()
            .map(|(tier, device, _, held, _)| DeviceUsage {
                tier: tier_name(tier),
                device,
                ..held
            });
        Ok(named.collect())
    }
}
