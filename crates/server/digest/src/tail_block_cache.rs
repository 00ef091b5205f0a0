//! Last blocks of files, where a file ends within its last block and that lies below NVM: a client that appends to
//! the file needs the bytes of this one block, and a disk would seek for it.
//!
//! A block is kept when it is written below NVM, from the bytes that are at hand. Its address and how often its
//! zone was erased name the same bytes for ever, so nothing here goes stale: after an erasure it is not found
//! any more. Digest asks before it asks the device, and so does a client's request for one block. All others ask the device
//! first, or nobody would find out what it has; of a block that cannot be read there this is the other copy.
//!
//! Blocks of files that were appended to below NVM before are kept apart from all others, so that thousands of files that
//! move at once do not wash away the few that are appended to. The mutex is a leaf.

use lru::LruCache;
use parking_lot::Mutex;
use shale_format::BlockAddr;
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that are kept: 4 MiB.
const BLOCKS_MAX: usize = 1024;
/// So many of them may be of files that nobody has appended to.
const OTHERS_MAX: usize = BLOCKS_MAX / 4;
/// Files that are known to be appended to.
const FILES_MAX: NonZeroUsize = NonZeroUsize::new(4 * BLOCKS_MAX).unwrap();

/// The block in which a file ends, if it does not end with it.
pub fn tail_block(inode: &Inode) -> Option<u64> {
    let (block, rest) = (
        inode.size / BLOCK_BYTES as u64,
        inode.size % BLOCK_BYTES as u64,
    );
    (inode.is_file() && rest > 0).then_some(block)
}

struct Block {
    generation: u32,
    bytes: Box<[u8; BLOCK_BYTES]>,
}

struct State {
    /// Of files that were appended to.
    appended: LruCache<BlockAddr, Block>,
    others: LruCache<BlockAddr, Block>,
    /// Files of which a digest wanted the last block.
    files: LruCache<u64, ()>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            appended: LruCache::unbounded(),
            others: LruCache::unbounded(),
            files: LruCache::sparse(FILES_MAX),
        }
    }
}

impl State {
    fn get(&self, addr: BlockAddr, generation: u32) -> Option<&Block> {
        let appended = self.appended.peek(&addr);
        let block = appended.or_else(|| self.others.peek(&addr));
        block.filter(|b| b.generation == generation)
    }

    fn take(&mut self, addr: BlockAddr) -> Option<Block> {
        let appended = self.appended.pop(&addr);
        appended.or_else(|| self.others.pop(&addr))
    }

    fn trim(&mut self) {
        while self.appended.len() + self.others.len() > BLOCKS_MAX {
            match self.others.len() > OTHERS_MAX || self.appended.is_empty() {
                true => self.others.pop_lru(),
                false => self.appended.pop_lru(),
            };
        }
    }
}

/// What is kept.
#[derive(Default)]
pub struct TailBlockCache {
    state: Mutex<State>,
    reads: AtomicU64,
}

impl TailBlockCache {
    /// Keeps the last block of a file, which was written to `addr`, in a zone that was erased `generation` times.
    pub fn keep(&self, ino: u64, (addr, generation): (BlockAddr, u32), bytes: &[u8]) {
        let Ok(bytes) = <&[u8; BLOCK_BYTES]>::try_from(bytes) else {
            return;
        };
        let bytes = Box::new(*bytes);
        let mut state = self.state.lock();
        let state = &mut *state;
        state.take(addr);
        let part = match state.files.contains(&ino) {
            true => &mut state.appended,
            false => &mut state.others,
        };
        part.put(addr, Block { generation, bytes });
        state.trim();
    }

    /// Copies bytes from byte `byte` of a block on, if it is kept.
    pub fn read(&self, (addr, generation): (BlockAddr, u32), byte: usize, into: &mut [u8]) -> bool {
        let mut state = self.state.lock();
        let found = state.get(addr, generation);
        let found = found.and_then(|b| b.bytes.get(byte..byte + into.len()));
        let Some(bytes) = found else {
            return false;
        };
        into.copy_from_slice(bytes);
        state.appended.promote(&addr);
        state.others.promote(&addr);
        self.reads.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether a block is kept.
    pub fn has(&self, addr: BlockAddr, generation: u32) -> bool {
        self.state.lock().get(addr, generation).is_some()
    }

    /// As [`Self::read`] for a digest that changes the block: `ino` is appended to, and the block is dead as soon as that
    /// is committed, so it goes before all others.
    pub fn read_to_append(
        &self,
        ino: u64,
        (addr, generation): (BlockAddr, u32),
        byte: usize,
        into: &mut [u8],
    ) -> bool {
        let found = self.read((addr, generation), byte, into);
        let mut state = self.state.lock();
        state.files.put(ino, ());
        if found && let Some(block) = state.take(addr) {
            state.others.put(addr, block);
            state.others.demote(&addr);
        }
        state.trim();
        found
    }

    /// A block is lost.
    pub fn forget(&self, addr: BlockAddr) {
        self.state.lock().take(addr);
    }

    /// Blocks that were asked for and were here.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TierId;

    const BLOCK: [u8; BLOCK_BYTES] = [7; BLOCK_BYTES];

    fn at(n: u64) -> (BlockAddr, u32) {
        (BlockAddr::new(TierId::Hdd, n), 1)
    }

    /// Which of the first `blocks` blocks are kept.
    fn kept(last: &TailBlockCache, blocks: u64) -> Vec<u64> {
        let kept = |&n: &u64| last.read(at(n), 0, &mut [0; 1]);
        (0..blocks).filter(kept).collect()
    }

    #[test]
    fn a_block_is_found_by_place_and_generation() {
        let last = TailBlockCache::default();
        let mut block = BLOCK;
        block[100] = 9;
        last.keep(20, at(5), &block);
        let mut found = [0; 2];
        assert!(last.read(at(5), 99, &mut found));
        assert_eq!((found, last.reads()), ([7, 9], 1));
        assert!(!last.read((at(5).0, 2), 99, &mut found));
        assert!(!last.read(at(6), 99, &mut found));
        // The zone was erased and rewritten.
        last.keep(21, (at(5).0, 2), &BLOCK);
        assert!(!last.read(at(5), 0, &mut found));
        assert!(last.read((at(5).0, 2), 99, &mut found));
        assert_eq!(found, [7, 7]);
        last.forget(at(5).0);
        assert!(!last.read((at(5).0, 2), 99, &mut found));
        assert_eq!(last.reads(), 2);
    }

    #[test]
    fn the_oldest_goes_and_what_was_appended_to_goes_first() {
        let last = TailBlockCache::default();
        let (max, more) = (BLOCKS_MAX as u64, 10);
        for n in 0..max {
            last.keep(n, at(n), &BLOCK);
        }
        let newest = max - 1;
        assert!(last.read_to_append(newest, at(newest), 0, &mut [0; 8]));
        for n in max..max + more {
            last.keep(n, at(n), &BLOCK);
        }
        let mut expected: Vec<u64> = (more - 1..max + more).collect();
        expected.retain(|&n| n != newest);
        assert_eq!(kept(&last, max + more), expected);
    }

    #[test]
    fn many_files_that_move_leave_those_that_are_appended_to() {
        let last = TailBlockCache::default();
        let (max, others) = (BLOCKS_MAX as u64, OTHERS_MAX as u64);
        for ino in 0..max {
            assert!(!last.read_to_append(ino, at(max), 0, &mut [0; 8]));
        }
        for n in 0..max {
            last.keep(n, at(n), &BLOCK);
        }
        for n in max..4 * max {
            last.keep(n, at(n), &BLOCK);
        }
        let expected = (others..max).chain(4 * max - others..4 * max);
        assert_eq!(kept(&last, 4 * max), expected.collect::<Vec<_>>());
        // And these are as many as fit, if nothing else is there.
        for n in 0..2 * max {
            last.keep(n % max, at(4 * max + n), &BLOCK);
        }
        let expected = (4 * max - others..4 * max).chain(5 * max + others..6 * max);
        assert_eq!(kept(&last, 6 * max), expected.collect::<Vec<_>>());
    }
}
