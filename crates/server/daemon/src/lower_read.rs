//! Reading blocks of tiers below NVM for clients, and what could not be read.

use crate::client::Reach;
use crate::shared::Shared;
use parking_lot::Mutex;
use serde::Serialize;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId};
use shale_volume::{LowerDeviceInfo, VolumeError};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Bad blocks that `status` names.
const NAMED_MAX: usize = 32;
/// Bad blocks that are known, so that their zones are left alone.
const BAD_MAX: usize = 64 << 10;
/// Reads that a connection is in the midst of, most.
const KEPT_MAX: usize = 8;
/// Times a run is read anew because its zone was erased meanwhile.
const READS_MAX: u32 = 8;

/// A block that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadBlock {
    /// Its tier.
    pub tier: String,
    /// Its number in the tier.
    pub block: u64,
    /// What is wrong with it.
    pub why: String,
}

/// Blocks that could not be read since the start, until they are written anew elsewhere or their files go; and what was
/// wrong with each.
#[derive(Default)]
pub(crate) struct BadBlocks {
    found: Mutex<BTreeMap<BlockAddr, String>>,
}

impl BadBlocks {
    /// The first of them.
    fn list(&self) -> Vec<BadBlock> {
        let found = self.found.lock();
        let named = found.iter().take(NAMED_MAX).map(|(&addr, why)| BadBlock {
            tier: tier_word(addr),
            block: addr.index(),
            why: why.clone(),
        });
        named.collect()
    }

    /// How many there are.
    pub(crate) fn all(&self) -> u64 {
        self.found.lock().len() as u64
    }

    /// How many of them lie in these blocks of a tier.
    pub(crate) fn count(&self, tier: TierId, blocks: Range<u64>) -> u64 {
        let ends = [blocks.start, blocks.end].map(|n| BlockAddr::new(tier, n));
        self.found.lock().range(ends[0]..ends[1]).count() as u64
    }

    /// Forgets those of which `lives` says that nobody misses them any more.
    pub(crate) fn keep(&self, lives: impl Fn(BlockAddr) -> bool) {
        self.found.lock().retain(|&addr, _| lives(addr));
    }

    /// Notes one. `false`: it was known, or there are too many.
    pub(crate) fn note(&self, addr: BlockAddr, why: &impl std::fmt::Display) -> bool {
        let mut found = self.found.lock();
        let new = found.len() < BAD_MAX && !found.contains_key(&addr);
        if new {
            if found.len() < NAMED_MAX {
                tracing::error!(tier = %tier_word(addr), block = addr.index(), "{why}");
            }
            found.insert(addr, why.to_string());
        }
        new
    }
}

fn tier_word(addr: BlockAddr) -> String {
    let tier = addr.tier().map_or("?".to_owned(), |t| format!("{t:?}"));
    tier.to_lowercase()
}

/// Blocks that were read and did not fit the message. They are the same bytes for as long as their zone
/// is not erased.
struct Kept {
    /// The first block that was not sent.
    next: BlockAddr,
    generation: u32,
    data: Vec<u8>,
    /// Bytes of `data` that were sent.
    sent: usize,
}

/// What one connection asked for and has not been sent yet: a device, a disk most of all, is asked once for what
/// takes many messages.
#[derive(Default)]
pub(crate) struct Unsent(Mutex<VecDeque<Kept>>);

impl Unsent {
    /// As [`Shared::read_lower`], at most `sent` of the blocks; the others are kept for the next call.
    pub(crate) fn read(
        &self,
        shared: &Shared,
        addr: BlockAddr,
        blocks: u64,
        sent: u64,
    ) -> Result<(u32, Vec<u8>), VolumeError> {
        let now = shared.volume.view().generation(addr)?;
        let found = {
            let mut all = self.0.lock();
            let wanted = |k: &Kept| (k.next, k.generation) == (addr, now);
            let at = all.iter().position(wanted);
            at.and_then(|at| all.remove(at))
        };
        let mut kept = match found {
            Some(kept) => kept,
            None => {
                let (generation, data) = shared.read_lower(addr, blocks)?;
                Kept {
                    next: addr,
                    generation,
                    data,
                    sent: 0,
                }
            }
        };
        let rest = &kept.data[kept.sent..];
        let data = rest[..rest.len().min(sent as usize * BLOCK_BYTES)].to_vec();
        let generation = kept.generation;
        kept.sent += data.len();
        kept.next = addr.plus((data.len() / BLOCK_BYTES) as u64);
        if kept.sent < kept.data.len() {
            let mut all = self.0.lock();
            all.truncate(KEPT_MAX - 1);
            all.push_front(kept);
        }
        Ok((generation, data))
    }
}

impl Shared {
    /// A descriptor to read the device of a block by, for a client of another process. `None`: its reads come here. A disk has one
    /// arm, which serves better who asks for it in one place (Strata §3.5); a medium that is emulated, or has a model
    /// in front, is one through this process alone; and a device that fails is not to be read by anybody who cannot say so.
    pub(crate) fn open_lower(
        &self,
        reach: Reach,
        addr: BlockAddr,
    ) -> Result<Option<OwnedFd>, VolumeError> {
        let place = self.volume.view().zone(addr)?;
        let flash = addr.tier() == Some(TierId::Ssd) && reach == Reach::Socket;
        let infos = self.volume.lower_device_infos(TierId::Ssd);
        let info = infos
            .get(place.device)
            .filter(|info| flash && info.failing.is_none());
        let Some(reader) = info.and_then(|i| i.device.as_ref()?.reader()) else {
            return Ok(None);
        };
        let opened =
            reader.map_err(|e| tracing::warn!("clients do not read it by themselves: {e}"));
        Ok(opened.ok())
    }

    /// Takes from clients how much they have read by themselves.
    pub(crate) fn take_direct_reads(&self) {
        for client in self.clients.snapshot() {
            self.migration
                .count_direct(client.client_page.take_direct());
        }
    }

    pub(crate) fn bad_block_list(&self) -> Vec<BadBlock> {
        self.forget_bad_blocks();
        self.bad_blocks.list()
    }

    /// Forgets bad blocks that are nobody's any more: at least as often as a zone can be erased and written again.
    pub(crate) fn forget_bad_blocks(&self) {
        let in_nvm = |addr: BlockAddr| addr.tier() == Some(TierId::Nvm);
        self.bad_blocks
            .keep(|addr| in_nvm(addr) || self.volume.is_live(addr));
    }

    /// Up to `blocks` blocks from `addr` on, of one zone, up to the first that cannot be read; and
    /// how often the zone was erased.
    pub(crate) fn read_lower(
        &self,
        addr: BlockAddr,
        blocks: u64,
    ) -> Result<(u32, Vec<u8>), VolumeError> {
        let view = self.volume.view();
        let place = view.zone(addr)?;
        let blocks = blocks.min(place.first + place.blocks - addr.index());
        for _ in 0..READS_MAX {
            let before = view.generation(addr)?;
            let mut data = vec![0; blocks as usize * BLOCK_BYTES];
            let tail_blocks = self.digester.tail_blocks();
            if blocks == 1 && tail_blocks.read((addr, before), 0, &mut data) {
                self.migration.count_read(data.len());
                return Ok((before, data));
            }
            let read = view.read_at(addr, 0, &mut data);
            let data = match read {
                Ok(()) => data,
                Err(_) => self.read_singly(addr, blocks),
            };
            if view.generation(addr)? == before {
                self.migration.count_read(data.len());
                return Ok((before, data));
            }
        }
        Ok((view.generation(addr)?, Vec::new()))
    }

    /// Names a block that cannot be read. `false`: it was named before, there are too many, or its device is not there,
    /// which is named as a whole.
    pub(crate) fn note_bad_block(&self, addr: BlockAddr, why: &VolumeError) -> bool {
        let devices = addr.tier().map(|t| self.volume.lower_device_infos(t));
        let mine = |d: &LowerDeviceInfo| (d.place.first..d.place.end()).contains(&addr.index());
        let absent = { devices.iter().flatten() }.any(|d| d.is_absent() && mine(d));
        !absent && self.bad_blocks.note(addr, why)
    }

    /// Reads a block that its device does not give from where it is kept in memory, if it is.
    pub(crate) fn other_copy(&self, addr: BlockAddr, into: &mut [u8]) -> bool {
        let generation = self.volume.view().generation(addr);
        let kept = |generation| {
            self.digester
                .tail_blocks()
                .read((addr, generation), 0, into)
        };
        generation.is_ok_and(kept)
    }

    /// The blocks before the first one that cannot be read; if that is the first, it is noted.
    fn read_singly(&self, addr: BlockAddr, blocks: u64) -> Vec<u8> {
        let view = self.volume.view();
        let mut data = Vec::new();
        for n in 0..blocks {
            let mut block = [0; BLOCK_BYTES];
            match view.read_at(addr.plus(n), 0, &mut block) {
                Ok(()) => data.extend_from_slice(&block),
                Err(_) if self.other_copy(addr.plus(n), &mut block) => {
                    data.extend_from_slice(&block);
                }
                Err(e) => {
                    // Nobody misses a block that has moved away meanwhile.
                    if n == 0 && self.volume.is_live(addr) {
                        self.note_bad_block(addr, &e);
                    }
                    break;
                }
            }
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_known_and_few_are_named() {
        let bad = BadBlocks::default();
        let at = |n| BlockAddr::new(TierId::Hdd, n);
        assert!((0..500).all(|n| bad.note(at(n * 2), &"torn")));
        assert!(!bad.note(at(8), &"again"));
        assert_eq!((bad.all(), bad.list().len()), (500, NAMED_MAX));
        assert_eq!(
            (bad.list()[1].tier.as_str(), bad.list()[1].block),
            ("hdd", 2)
        );
        assert_eq!(bad.count(TierId::Hdd, 100..200), 50);
        assert_eq!(bad.count(TierId::Ssd, 0..2000), 0);
        bad.keep(|addr| addr.index() >= 900);
        assert_eq!(bad.all(), 50);
    }
}
