//! Blocks of lower tiers for the calls that want them: from the cache, from flash, or from the daemon.
//!
//! A call that lacks blocks leaves the read section and locks, gets them, and restarts; with what the volume then
//! says it looks again.

use crate::daemon_link::DaemonLink;
use crate::errno::{Errno, MissingBlocks, Result, Stop};
use crate::lower_tiers::block_cache::BlockCache;
use crate::lower_tiers::direct_device_read::FlashDevices;
use shale_format::BlockAddr;
use shale_format::limits::BLOCK_BYTES;
use shale_proto::{Reply, Request};
use shale_volume::View;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that a sequential reader gets ahead: 256 KiB.
const AHEAD_BLOCKS: u64 = 64;
/// One call reads at most this much under one run where the volume has lower tiers, so that all
/// of it fits the cache.
pub const RUN_BYTES: usize = 1 << 20;

/// See the module.
pub(crate) struct LowerBlocks {
    cache: Arc<BlockCache>,
    flash: FlashDevices,
    daemon: DaemonLink,
}

impl LowerBlocks {
    pub(crate) fn new(cache: Arc<BlockCache>, flash: FlashDevices, daemon: DaemonLink) -> Self {
        Self {
            cache,
            flash,
            daemon,
        }
    }

    /// The block, if it is at hand.
    pub fn find(&self, addr: BlockAddr, generation: u32) -> Option<Result<Arc<[u8; BLOCK_BYTES]>>> {
        self.cache.get(addr, generation)
    }

    /// Copies bytes of blocks below NVM that begin `skip` bytes behind the start of block `addr`.
    /// `offset`: where in the file. `known`: blocks of the file from `addr` on that follow. `read_to`: where the last read of
    /// the file ended.
    pub fn load(
        &self,
        view: &View,
        (addr, skip, known): (BlockAddr, u64, u64),
        offset: u64,
        read_to: &AtomicU64,
        into: &mut [u8],
    ) -> std::result::Result<(), Stop> {
        let (mut at, mut skip, mut done) = (addr.plus(skip / BLOCK), (skip % BLOCK) as usize, 0);
        while done < into.len() {
            let n = (BLOCK_BYTES - skip).min(into.len() - done);
            let generation = view.generation(at)?;
            let Some(block) = self.find(at, generation) else {
                let rest = ((skip + into.len() - done) as u64).div_ceil(BLOCK);
                let last = read_to.load(Ordering::Relaxed);
                let sequential = offset == 0 || offset == last;
                let ahead = if sequential { AHEAD_BLOCKS } else { 0 };
                let left = known.saturating_sub(at.index() - addr.index());
                let blocks = rest.max(ahead).min(left.max(1));
                return Err(MissingBlocks::new(at, generation, blocks).into());
            };
            into[done..done + n].copy_from_slice(&block?[skip..skip + n]);
            (done, skip, at) = (done + n, 0, at.plus(1));
        }
        read_to.store(offset + into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Gets blocks from their device, or from the daemon. Outside of the read section and locks.
    pub fn get(&self, view: &View, missing: MissingBlocks) -> Result<()> {
        let from = (missing.addr, missing.generation);
        let read = self.flash.read(view, from, missing.blocks, |addr, block| {
            self.cache
                .put(addr, missing.generation, std::slice::from_ref(block));
        });
        if read > 0 {
            // The rest was a guess, or is asked for when the call has come there.
            return Ok(());
        }
        let mut done = 0;
        while done < missing.blocks {
            let addr = missing.addr.plus(done);
            let reply = self.daemon.ask(Request::ReadLower {
                addr: addr.raw(),
                blocks: (missing.blocks - done).min(u32::MAX.into()) as u32,
            })?;
            let Reply::Lower {
                generation, data, ..
            } = reply
            else {
                return Err(Errno::PROTO);
            };
            let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
            self.cache.put(addr, generation, blocks);
            if blocks.is_empty() {
                // Only what was asked for first has to be known: the rest was a guess.
                if done == 0 {
                    self.cache.put_bad(addr, generation);
                }
                return Ok(());
            }
            done += blocks.len() as u64;
            if generation != missing.generation {
                // The blocks are others by now: the call looks again.
                return Ok(());
            }
        }
        Ok(())
    }
}
