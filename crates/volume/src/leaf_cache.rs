//! Leaves below NVM that were read lately: whoever has the devices walks a tree from the top for each block, and
//! would read a leaf as often as it has extents.
//!
//! A block is known by its address and how often its zone was erased, so nothing here goes stale.

use crate::media::Block;
use parking_lot::Mutex;
use shale_format::BlockAddr;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Leaves that are kept: 1 MiB.
const LEAVES_MAX: usize = 256;

type Key = (BlockAddr, u32);

#[derive(Default)]
struct State {
    leaves: HashMap<Key, Arc<Block>>,
    /// Those that came first, first.
    order: VecDeque<Key>,
}

/// The last leaves that were read.
#[derive(Default)]
pub(crate) struct LeafCache(Mutex<State>);

impl LeafCache {
    pub(crate) fn get(&self, key: Key) -> Option<Arc<Block>> {
        self.0.lock().leaves.get(&key).cloned()
    }

    pub(crate) fn put(&self, key: Key, block: &Block) {
        let mut state = self.0.lock();
        if state.leaves.insert(key, Arc::new(*block)).is_none() {
            state.order.push_back(key);
        }
        while state.order.len() > LEAVES_MAX
            && let Some(first) = state.order.pop_front()
        {
            state.leaves.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TierId;
    use shale_format::limits::BLOCK_BYTES;

    #[test]
    fn the_first_is_forgotten() {
        let cache = LeafCache::default();
        let key = |n| (BlockAddr::new(TierId::Ssd, n), 1);
        for n in 0..LEAVES_MAX as u64 + 1 {
            cache.put(key(n), &[n as u8; BLOCK_BYTES]);
            cache.put(key(n), &[n as u8; BLOCK_BYTES]);
        }
        assert!(cache.get(key(0)).is_none());
        assert_eq!(cache.get(key(1)).unwrap()[0], 1);
        assert!(cache.get((key(1).0, 2)).is_none(), "erased since");
        assert_eq!(cache.0.lock().leaves.len(), LEAVES_MAX);
    }
}
