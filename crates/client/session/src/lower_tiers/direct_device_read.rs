//! Reading flash in the program's own process (Strata §3.5: protected direct reads of the SSD).
//!
//! The daemon hands out a descriptor for each device of flash that can do nothing but read. A block that a call lacks is
//! read by it, outside of the read section and locks, and counts only if its checksum fits its address and the number of
//! erasures that the call knew: so it needs no lock, and nobody's word. What does not fit, or cannot be read, the
//! daemon is asked for: it names what is bad, and may have another copy.

use crate::daemon_link::DaemonLink;
use parking_lot::Mutex;
use shale_block::BlockReader;
use shale_format::limits::BLOCK_BYTES;
use shale_format::{BlockAddr, TierId};
use shale_nvm::Map;
use shale_proto::shared_pages::client_page;
use shale_proto::{Reply, Request};
use shale_volume::View;
use smallvec::SmallVec;
use std::sync::Arc;

/// Bytes that are read at once: 256 KiB.
const AT_ONCE: u64 = 64;

/// A device by its first block, and how it is read; `None`: by the daemon.
type Known = (u64, Option<Arc<BlockReader>>);

/// The devices of flash that this process has asked for.
pub(crate) struct FlashDevices {
    known: Mutex<SmallVec<[Known; 4]>>,
    daemon: DaemonLink,
    /// The client page, where what was read is counted.
    counters: Arc<Map>,
}

impl FlashDevices {
    pub(crate) fn new(daemon: DaemonLink, counters: Arc<Map>) -> Self {
        Self {
            known: Mutex::default(),
            daemon,
            counters,
        }
    }

    /// Reads blocks from `addr` on, of one zone that was erased `generation` times, from their device, and gives each to `put`.
    /// Gives how many; what is missing the daemon has to be asked for.
    pub(crate) fn read(
        &self,
        view: &View,
        (addr, generation): (BlockAddr, u32),
        blocks: u64,
        mut put: impl FnMut(BlockAddr, &[u8; BLOCK_BYTES]),
    ) -> u64 {
        let (mut done, mut reads) = (0, 0);
        while done < blocks {
            let (at, wanted) = (addr.plus(done), (blocks - done).min(AT_ONCE));
            let read = self.read_once(view, (at, generation), wanted, &mut put);
            done += read.unwrap_or(0);
            reads += 1;
            if read != Some(wanted) {
                break;
            }
        }
        if done > 0 {
            self.counters
                .fetch_add_u64(client_page::DIRECT_BLOCKS, done);
            self.counters
                .fetch_add_u64(client_page::DIRECT_READS, reads);
        }
        done
    }

    /// `None`: not from here.
    fn read_once(
        &self,
        view: &View,
        (addr, generation): (BlockAddr, u32),
        blocks: u64,
        put: &mut impl FnMut(BlockAddr, &[u8; BLOCK_BYTES]),
    ) -> Option<u64> {
        let place = view.device_block(addr).ok()?;
        let reader = self.device(addr, place.device)?;
        let blocks = blocks.min(place.zone_left);
        let mut read = reader
            .read(place.byte, blocks as usize * BLOCK_BYTES)
            .ok()?;
        let bytes = read.bytes();
        let fits = view.fitting_blocks(addr, generation, bytes).ok()?;
        let (all, _) = bytes.as_chunks::<BLOCK_BYTES>();
        for (n, block) in (0..).zip(&all[..fits]) {
            put(addr.plus(n), block);
        }
        Some(fits as u64)
    }

    /// How the device of a block is read, which begins at block `first` of its tier.
    fn device(&self, addr: BlockAddr, first: u64) -> Option<Arc<BlockReader>> {
        if addr.tier() != Some(TierId::Ssd) {
            return None;
        }
        let known = |all: &[Known]| {
            let found = all.iter().find(|(device, _)| *device == first)?;
            Some(found.1.clone())
        };
        if let Some(found) = known(&self.known.lock()) {
            return found;
        }
        let request = Request::OpenLower { addr: addr.raw() };
        let (reply, fds) = self.daemon.call(request).ok()?;
        if reply != Reply::Device {
            return None;
        }
        let reader = fds
            .into_iter()
            .next()
            .map(|fd| Arc::new(BlockReader::new(fd)));
        let mut all = self.known.lock();
        // Another thread may have been faster.
        known(&all).unwrap_or_else(|| {
            all.push((first, reader.clone()));
            reader
        })
    }
}
