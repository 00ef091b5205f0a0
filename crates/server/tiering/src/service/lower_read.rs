//! Reading blocks of lower tiers for clients.

use super::Tiering;
use parking_lot::Mutex;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId};
use shale_volume::VolumeError;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Reads that a connection is in the midst of, most.
const KEPT_MAX: usize = 8;
/// Times a run is read again because its zone was erased meanwhile.
const READS_MAX: u32 = 8;

/// Blocks that were read and did not fit the message. They are the same bytes for as long as their zone
/// is not erased.
struct UnsentRead {
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
pub struct Unsent(Mutex<VecDeque<UnsentRead>>);

impl Unsent {
    /// As [`Tiering::read_lower`], at most `sent` of the blocks; the others are kept for the next call.
    pub fn read(
        &self,
        tiering: &Tiering,
        addr: BlockAddr,
        blocks: u64,
        sent: u64,
    ) -> Result<(u32, Vec<u8>), VolumeError> {
        let now = tiering.volume.view().generation(addr)?;
        let found = {
            let mut all = self.0.lock();
            let wanted = |k: &UnsentRead| (k.next, k.generation) == (addr, now);
            let at = all.iter().position(wanted);
            at.and_then(|at| all.remove(at))
        };
        let mut kept = match found {
            Some(kept) => kept,
            None => {
                let (generation, data) = tiering.read_lower(addr, blocks)?;
                UnsentRead {
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

impl Tiering {
    /// A descriptor to read the device of a block by, for a client of another process. `None`: its reads come here. A disk has one
    /// arm, which serves better who asks for it in one place (Strata §3.5); a medium that is emulated, or has a model
    /// in front, is one through this process alone; and a device that fails is not to be read by anybody who cannot say so.
    pub fn open_lower(
        &self,
        by_another_process: bool,
        addr: BlockAddr,
    ) -> Result<Option<OwnedFd>, VolumeError> {
        let place = self.volume.view().zone(addr)?;
        let flash = addr.tier() == Some(TierId::Ssd) && by_another_process;
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
    pub fn take_direct_reads(&self) {
        for client in self.clients.all() {
            self.counts.direct(client.take_direct());
        }
    }

    /// Up to `blocks` blocks from `addr` on, of one zone, up to the first that cannot be read; and
    /// how often the zone was erased.
    pub fn read_lower(&self, addr: BlockAddr, blocks: u64) -> Result<(u32, Vec<u8>), VolumeError> {
        let view = self.volume.view();
        let place = view.zone(addr)?;
        let blocks = blocks.min(place.first + place.blocks - addr.index());
        for _ in 0..READS_MAX {
            let before = view.generation(addr)?;
            let mut data = vec![0; blocks as usize * BLOCK_BYTES];
            let tail_blocks = self.digester.tail_blocks();
            if blocks == 1 && tail_blocks.read((addr, before), 0, &mut data) {
                self.counts.read(data.len());
                return Ok((before, data));
            }
            let read = view.read_at(addr, 0, &mut data);
            let data = match read {
                Ok(()) => data,
                Err(_) => self.read_singly(addr, blocks),
            };
            if view.generation(addr)? == before {
                self.counts.read(data.len());
                return Ok((before, data));
            }
        }
        Ok((view.generation(addr)?, Vec::new()))
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
                        self.bad_blocks.note_of(&self.volume, addr, &e);
                    }
                    break;
                }
            }
        }
        data
    }
}
