//! Leaves below NVM that were read recently: a process that has the devices walks a tree from the top for each block, and
//! would read a leaf as often as it has extents.
//!
//! A block is known by its address and how often its zone was erased, so nothing here goes stale.

use crate::media::Block;
use lru::LruCache;
use parking_lot::Mutex;
use shale_format::BlockAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Leaves that are kept: 1 MiB.
const LEAVES_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();

type Key = (BlockAddr, u32);

/// The leaves that were used last.
pub(crate) struct LeafCache(Mutex<LruCache<Key, Arc<Block>>>);

impl Default for LeafCache {
    fn default() -> Self {
        Self(Mutex::new(LruCache::sparse(LEAVES_MAX)))
    }
}

impl LeafCache {
    pub(crate) fn get(&self, key: Key) -> Option<Arc<Block>> {
        self.0.lock().get(&key).cloned()
    }

    pub(crate) fn put(&self, key: Key, block: &Block) {
        self.0.lock().put(key, Arc::new(*block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TierId;
    use shale_format::limits::BLOCK_BYTES;

    #[test]
    fn the_oldest_is_forgotten() {
        let cache = LeafCache::default();
        let key = |n| (BlockAddr::new(TierId::Ssd, n), 1);
        for n in 0..LEAVES_MAX.get() as u64 + 1 {
            cache.put(key(n), &[n as u8; BLOCK_BYTES]);
            cache.put(key(n), &[n as u8; BLOCK_BYTES]);
        }
        assert!(cache.get(key(0)).is_none());
        assert_eq!(cache.get(key(1)).unwrap()[0], 1);
        assert!(cache.get((key(1).0, 2)).is_none(), "erased since");
        assert_eq!(cache.0.lock().len(), LEAVES_MAX.get());
    }
}
