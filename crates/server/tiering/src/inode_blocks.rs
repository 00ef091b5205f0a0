//! Blocks of the inode file: which are cold, which have to stay in NVM.

use super::recent_promotions::RecentPromotions;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// A block of the inode file, and how cold it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ColdBlock {
    /// When it was last read below NVM, in uses of all pieces.
    pub(super) stamp: u64,
    pub(super) changed_s: i64,
    pub(super) fb: u64,
}

/// What is known about blocks of inodes.
#[derive(Default)]
pub(super) struct InodeBlocks {
    /// Those that somebody is about to get a lease to change in, and how many are.
    pub(super) staying: Mutex<HashMap<u64, u32>>,
    /// The next to move down.
    pub(super) coldest: Mutex<VecDeque<ColdBlock>>,
    /// When none could move.
    pub(super) none_at: Mutex<Option<Instant>>,
    /// Held by who takes a block of the reserve for one that returns.
    pub(super) reserve: Mutex<()>,
    /// Those that have come back for a lease.
    pub(super) promoted: RecentPromotions,
}

impl InodeBlocks {
    /// Has a block stay in NVM until what is given is dropped.
    pub(super) fn stay(&self, fb: u64) -> Stays<'_> {
        *self.staying.lock().entry(fb).or_default() += 1;
        Stays { of: self, fb }
    }

    /// The next blocks to move down, of those that were listed.
    pub(super) fn next(&self, most: u64) -> Vec<u64> {
        let mut listed = self.coldest.lock();
        let mut taken = Vec::new();
        while (taken.len() as u64) < most
            && let Some(cold) = listed.pop_front()
        {
            taken.extend((!self.promoted.stays(cold.fb)).then_some(cold.fb));
        }
        taken.sort_unstable();
        taken
    }
}

/// A block of inodes stays in NVM until this is dropped.
pub struct Stays<'m> {
    of: &'m InodeBlocks,
    fb: u64,
}

impl Drop for Stays<'_> {
    fn drop(&mut self) {
        let mut staying = self.of.staying.lock();
        let n = staying.get_mut(&self.fb).filter(|n| **n > 0);
        let n = n.expect("a block stays as long as anybody has it stay");
        *n -= 1;
        if *n == 0 {
            staying.remove(&self.fb);
        }
    }
}
