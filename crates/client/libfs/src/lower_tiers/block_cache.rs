//! Blocks of lower tiers, of files, inodes and trees: a cache of 4 KiB blocks (DESIGN §8).
//!
//! A block is known by its address and how often its zone was erased: together they name the same
//! bytes for ever, so nothing here ever goes stale.

use crate::errno::{Errno, Result};
use parking_lot::Mutex;
use shale_format::BlockAddr;
use shale_format::limits::BLOCK_BYTES;
use shale_volume::{Given, Lru, VolumeError};
use std::sync::Arc;

/// Blocks that are kept: 64 MiB.
const CACHE_BLOCKS: usize = 16 << 10;

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

impl BlockCache {
    /// The block, if it is here; `EIO`: it was tried to read it, and could not be.
    pub(crate) fn get(
        &self,
        addr: BlockAddr,
        generation: u32,
    ) -> Option<Result<Arc<[u8; BLOCK_BYTES]>>> {
        self.state.lock().get((addr, generation))
    }

    /// Keeps blocks that follow one another from `addr` on.
    pub(crate) fn put(&self, addr: BlockAddr, generation: u32, blocks: &[[u8; BLOCK_BYTES]]) {
        let mut state = self.state.lock();
        for (n, block) in (0..).zip(blocks) {
            let held = CacheEntry::Data(Arc::new(*block));
            state.put((addr.plus(n), generation), held);
        }
    }

    /// Remembers that a block cannot be read, until the call that wanted it has come back and heard so.
    pub(crate) fn put_bad(&self, addr: BlockAddr, generation: u32) {
        self.state.lock().put((addr, generation), CacheEntry::Bad);
    }
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

impl Given for BlockCache {
    fn block(
        &self,
        addr: BlockAddr,
        generation: u32,
    ) -> Option<shale_volume::Result<Arc<[u8; BLOCK_BYTES]>>> {
        let found = self.get(addr, generation)?;
        Some(found.map_err(|_| VolumeError::Lower(format!("{addr:?} cannot be read"))))
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
