//! Leaves below NVM that were read recently: a process that has the devices walks a tree from the top for each block, and
//! would read a leaf as often as it has extents.
//!
//! A block is known by its address and how often its zone was erased, so nothing here goes stale.

use crate::lru::Lru;
use crate::media::Block;
use parking_lot::Mutex;
use shale_format::BlockAddr;
use std::sync::Arc;

/// Leaves that are kept: 1 MiB.
const LEAVES_MAX: usize = 256;

type Key = (BlockAddr, u32);

/// The leaves that were used last.
#[derive(Default)]
pub(crate) struct LeafCache(Mutex<Lru<Key, Arc<Block>>>);

impl LeafCache {
    pub(crate) fn get(&self, key: Key) -> Option<Arc<Block>> {
        let mut leaves = self.0.lock();
        leaves.used(key);
        leaves.get(key).cloned()
    }

    pub(crate) fn put(&self, key: Key, block: &Block) {
        let mut leaves = self.0.lock();
        leaves.put(key, Arc::new(*block));
        if leaves.len() > LEAVES_MAX {
            leaves.pop();
        }
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
        for n in 0..LEAVES_MAX as u64 + 1 {
            cache.put(key(n), &[n as u8; BLOCK_BYTES]);
            cache.put(key(n), &[n as u8; BLOCK_BYTES]);
        }
        assert!(cache.get(key(0)).is_none());
        assert_eq!(cache.get(key(1)).unwrap()[0], 1);
        assert!(cache.get((key(1).0, 2)).is_none(), "erased since");
        assert_eq!(cache.0.lock().len(), LEAVES_MAX);
    }
}
