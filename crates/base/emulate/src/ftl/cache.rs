//! What was written and is not on flash yet: lost at a power cut, like any disk's cache.
//!
//! The block that was written longest ago leaves first.

use std::collections::{BTreeMap, HashMap};

use super::oob::BLOCK_BYTES;

pub(super) type Data = Box<[u8; BLOCK_BYTES]>;

#[derive(Debug, Default)]
pub(super) struct Cache {
    blocks: HashMap<u32, (u64, Data)>,
    by_age: BTreeMap<u64, u32>,
    writes: u64,
}

impl Cache {
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn get(&self, block: u32) -> Option<&[u8; BLOCK_BYTES]> {
        self.blocks.get(&block).map(|(_, data)| &**data)
    }

    /// Whether the block was there before.
    pub fn put(&mut self, block: u32, data: Data) -> bool {
        self.writes += 1;
        let before = self.blocks.insert(block, (self.writes, data));
        if let Some((age, _)) = &before {
            self.by_age.remove(age);
        }
        self.by_age.insert(self.writes, block);
        before.is_some()
    }

    pub fn remove(&mut self, block: u32) {
        if let Some((age, _)) = self.blocks.remove(&block) {
            self.by_age.remove(&age);
        }
    }

    /// The blocks that were written longest ago, `most` of them.
    pub fn oldest(&self, most: usize) -> Vec<(u32, Data)> {
        let oldest = self.by_age.values().take(most);
        oldest
            .filter_map(|block| Some((*block, self.blocks.get(block)?.1.clone())))
            .collect()
    }
}
