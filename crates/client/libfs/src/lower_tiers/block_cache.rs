//! Blocks of lower tiers, of files, inodes and trees: a cache of 4 KiB blocks, filled from flash or by asking the daemon (DESIGN §8).
//!
//! A block is known by its address and how often its zone was erased: together they name the same
//! bytes for ever, so nothing here ever goes stale. A call that lacks blocks leaves the read section and
//! locks, gets them, and restarts; with what the volume then says it looks again. What the
//! daemon could not read is remembered until the call that wanted it has come back and heard so.

use crate::client::session::{Session, final_errno};
use crate::errno::{Errno, Result, Stop, volume};
use crate::inodes::node::Node;
use parking_lot::Mutex;
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES};
use shale_format::{BlockAddr, Ino};
use shale_proto::{Reply, Request};
use shale_volume::{FoundInode, Given, Lru, VolumeError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are kept: 64 MiB.
const CACHE_BLOCKS: usize = 16 << 10;
/// Blocks that a sequential reader gets ahead: 256 KiB.
const AHEAD_BLOCKS: u64 = 64;
/// Blocks of inodes, and leaves of a tree, that a call gets at once: a listing asks for the next ones.
const AHEAD_OF_STRUCTURE: u64 = 16;
/// One call reads at most this much under one run where the volume has lower tiers, so that all
/// of it fits the cache.
pub(crate) const RUN_BYTES: usize = 1 << 20;

type Key = (BlockAddr, u32);

enum CacheEntry {
    Data(Arc<[u8; BLOCK_BYTES]>),
    /// It cannot be read.
    Bad,
}

#[derive(Default)]
struct State(Lru<Key, CacheEntry>);

/// The cache of one session.
#[derive(Default)]
pub(crate) struct BlockCache {
    state: Mutex<State>,
}

impl State {
    fn put(&mut self, key: Key, held: CacheEntry) {
        self.0.put(key, held);
        while self.0.len() > CACHE_BLOCKS {
            self.0.pop();
        }
    }

    fn get(&mut self, key: Key) -> Option<Result<Arc<[u8; BLOCK_BYTES]>>> {
        let found = match self.0.get(key)? {
            CacheEntry::Data(data) => Ok(Arc::clone(data)),
            CacheEntry::Bad => Err(Errno::IO),
        };
        match found {
            Ok(_) => self.0.used(key),
            // The next caller tries again.
            Err(_) => drop(self.0.take(key)),
        }
        Some(found)
    }
}

/// Blocks that a call lacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingBlocks {
    addr: BlockAddr,
    generation: u32,
    blocks: u64,
}

impl Given for BlockCache {
    fn block(
        &self,
        addr: BlockAddr,
        generation: u32,
    ) -> Option<shale_volume::Result<Arc<[u8; BLOCK_BYTES]>>> {
        let found = self.state.lock().get((addr, generation))?;
        Some(found.map_err(|_| VolumeError::Lower(format!("{addr:?} cannot be read"))))
    }
}

/// What a call stops for that met an error of the volume.
pub(crate) fn stop(e: &VolumeError) -> Stop {
    match *e {
        VolumeError::Lacking {
            addr,
            generation,
            blocks,
        } => Stop::Blocks(MissingBlocks {
            addr,
            generation,
            blocks: blocks.min(AHEAD_OF_STRUCTURE),
        }),
        _ => Stop::Errno(volume(e)),
    }
}

impl Session {
    /// The inode as the volume has it, wherever it lies. Inside the read section.
    pub(crate) fn inode(&self, ino: u64) -> std::result::Result<Option<Inode>, Stop> {
        let (addr, len) = match self.view.find_inode(Ino(ino))? {
            FoundInode::None => return Ok(None),
            FoundInode::Here(inode) => return Ok(Some(inode)),
            FoundInode::Below { addr, len } => (addr, len),
        };
        let generation = self.view.generation(addr)?;
        let found = self.lower.state.lock().get((addr, generation));
        let Some(block) = found else {
            return Err(Stop::Blocks(MissingBlocks {
                addr,
                generation,
                blocks: len.min(AHEAD_OF_STRUCTURE),
            }));
        };
        self.note_inode(Ino(ino));
        let at = slot_of(Ino(ino)).1;
        let slot = &block?[at..at + INODE_BYTES];
        let inode = Inode::decode(slot, Ino(ino)).map_err(VolumeError::from)?;
        Ok((!inode.is_free()).then_some(inode))
    }

    /// Gets what loading an inode outside of a run lacked, so that it may be tried once more. Outside
    /// of the read section.
    pub(crate) fn get_lacking(&self, stop: Stop) -> Result<()> {
        match stop {
            Stop::Blocks(lacking) => self.get_blocks(lacking),
            other => Err(final_errno(other)),
        }
    }

    /// Copies bytes of blocks below NVM that begin `skip` bytes behind the start of block `addr`.
    /// `offset`: where in the file. `known`: blocks of the file from `addr` on that follow.
    pub(crate) fn load_lower(
        &self,
        node: &Node,
        (addr, skip, known): (BlockAddr, u64, u64),
        offset: u64,
        into: &mut [u8],
    ) -> std::result::Result<(), Stop> {
        let (mut at, mut skip, mut done) = (addr.plus(skip / BLOCK), (skip % BLOCK) as usize, 0);
        while done < into.len() {
            let n = (BLOCK_BYTES - skip).min(into.len() - done);
            let generation = self.view.generation(at)?;
            let found = self.lower.state.lock().get((at, generation));
            let Some(block) = found else {
                let rest = ((skip + into.len() - done) as u64).div_ceil(BLOCK);
                let last = node.read_to.load(Ordering::Relaxed);
                let sequential = offset == 0 || offset == last;
                let ahead = if sequential { AHEAD_BLOCKS } else { 0 };
                let left = known.saturating_sub(at.index() - addr.index());
                return Err(Stop::Blocks(MissingBlocks {
                    addr: at,
                    generation,
                    blocks: rest.max(ahead).min(left.max(1)),
                }));
            };
            into[done..done + n].copy_from_slice(&block?[skip..skip + n]);
            (done, skip, at) = (done + n, 0, at.plus(1));
        }
        node.read_to
            .store(offset + into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Gets blocks from their device, or from the daemon. Outside of the read section and locks.
    pub(crate) fn get_blocks(&self, lacking: MissingBlocks) -> Result<()> {
        let generation = lacking.generation;
        let from = (lacking.addr, generation);
        let read = self.read_flash(from, lacking.blocks, |addr, block| {
            let held = CacheEntry::Data(Arc::new(*block));
            self.lower.state.lock().put((addr, generation), held);
        });
        if read > 0 {
            // The rest was a guess, or is asked for when the call has come there.
            return Ok(());
        }
        let mut done = 0;
        while done < lacking.blocks {
            let addr = lacking.addr.plus(done);
            let reply = self.ask(Request::ReadLower {
                addr: addr.raw(),
                blocks: (lacking.blocks - done).min(u32::MAX.into()) as u32,
            })?;
            let Reply::Lower {
                generation, data, ..
            } = reply
            else {
                return Err(Errno::PROTO);
            };
            let mut state = self.lower.state.lock();
            let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
            for (n, block) in (0..).zip(blocks) {
                state.put(
                    (addr.plus(n), generation),
                    CacheEntry::Data(Arc::new(*block)),
                );
            }
            if blocks.is_empty() {
                // Only what was asked for first has to be known: the rest was a guess.
                if done == 0 {
                    state.put((addr, generation), CacheEntry::Bad);
                }
                return Ok(());
            }
            let same = generation == lacking.generation;
            done += blocks.len() as u64;
            if !same {
                // The blocks are others by now: the call looks again.
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TierId;

    #[test]
    fn the_cache_forgets_the_oldest_and_tells_of_bad_blocks_once() {
        let mut state = State::default();
        let key = |n| (BlockAddr::new(TierId::Ssd, n), 1);
        for n in 0..CACHE_BLOCKS as u64 + 10 {
            state.put(key(n), CacheEntry::Data(Arc::new([n as u8; BLOCK_BYTES])));
            assert!(state.get(key(0)).is_some());
        }
        assert!(state.get(key(1)).is_none());
        assert_eq!(state.0.len(), CACHE_BLOCKS);
        state.put(key(7), CacheEntry::Bad);
        assert!(state.get(key(7)).unwrap().is_err());
        assert!(state.get(key(7)).is_none());
    }
}
