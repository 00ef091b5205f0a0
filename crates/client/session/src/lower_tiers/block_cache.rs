//! Blocks of lower tiers, of files, inodes and trees: a cache of 4 KiB blocks (DESIGN §8).
//!
//! A block is known by its address and how often its zone was erased: together they name the same
//! bytes for ever, so nothing here ever goes stale.

use crate::errno::{Errno, Result};
use lru::LruCache;
use parking_lot::Mutex;
use shale_format::BlockAddr;
use shale_format::limits::BLOCK_BYTES;
use shale_volume::{BlockSource, VolumeError};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Blocks that are kept: 64 MiB.
const CACHE_BLOCKS: NonZeroUsize = NonZeroUsize::new(16 << 10).unwrap();

type Key = (BlockAddr, u32);

enum CacheEntry {
    Data(Arc<[u8; BLOCK_BYTES]>),
    /// It cannot be read.
    Bad,
}

/// The cache of one session.
pub(crate) struct BlockCache {
    blocks: Mutex<LruCache<Key, CacheEntry>>,
}

impl Default for BlockCache {
    fn default() -> Self {
        Self {
            blocks: Mutex::new(LruCache::sparse(CACHE_BLOCKS)),
        }
    }
}

impl BlockCache {
    /// The block, if it is here; `EIO`: it was tried to read it, and could not be.
    pub(crate) fn get(
        &self,
        addr: BlockAddr,
        generation: u32,
    ) -> Option<Result<Arc<[u8; BLOCK_BYTES]>>> {
        let key = (addr, generation);
        let mut blocks = self.blocks.lock();
        match blocks.get(&key)? {
            CacheEntry::Data(data) => Some(Ok(Arc::clone(data))),
            CacheEntry::Bad => {
                // The next caller tries again.
                blocks.pop(&key);
                Some(Err(Errno::IO))
            }
        }
    }

    /// Keeps blocks that follow one another from `addr` on.
    pub(crate) fn put(&self, addr: BlockAddr, generation: u32, new: &[[u8; BLOCK_BYTES]]) {
        let mut blocks = self.blocks.lock();
        for (n, block) in (0..).zip(new) {
            let entry = CacheEntry::Data(Arc::new(*block));
            blocks.put((addr.plus(n), generation), entry);
        }
    }

    /// Remembers that a block cannot be read, until the call that wanted it has come back and heard so.
    pub(crate) fn put_bad(&self, addr: BlockAddr, generation: u32) {
        self.blocks.lock().put((addr, generation), CacheEntry::Bad);
    }
}

impl BlockSource for BlockCache {
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
        let cache = BlockCache::default();
        let at = |n| BlockAddr::new(TierId::Ssd, n);
        for n in 0..CACHE_BLOCKS.get() as u64 + 10 {
            cache.put(at(n), 1, &[[n as u8; BLOCK_BYTES]]);
            assert!(cache.get(at(0), 1).is_some());
        }
        assert!(cache.get(at(1), 1).is_none());
        assert_eq!(cache.blocks.lock().len(), CACHE_BLOCKS.get());
        cache.put_bad(at(7), 1);
        assert!(cache.get(at(7), 1).unwrap().is_err());
        assert!(cache.get(at(7), 1).is_none());
    }
}
