//! Leaves of trees: whose are cold, whose have come back.

use super::recent_promotions::RecentPromotions;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Instant;

/// Whose leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Of files: extents.
    Files,
    /// Of directories: entries.
    Directories,
}

/// A file or directory, and how cold it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ColdLeaves {
    /// When it was last used, in uses of all pieces.
    pub(super) stamp: u64,
    pub(super) changed_s: i64,
    pub(super) ino: u64,
    /// Its leaves in NVM.
    pub(super) blocks: u64,
}

/// What is known of those that are cold.
#[derive(Default)]
pub(super) struct Demotion {
    /// The next to move down.
    pub(super) coldest: Mutex<VecDeque<ColdLeaves>>,
    /// When none could move.
    pub(super) none_at: Mutex<Option<Instant>>,
}

/// What is known about leaves.
#[derive(Default)]
pub(super) struct Leaves {
    files: Demotion,
    directories: Demotion,
    /// Inodes whose leaves have come back for a lease.
    pub(super) promoted: RecentPromotions,
}

impl Leaves {
    /// What is known of one of the two.
    pub(super) fn of(&self, of: Of) -> &Demotion {
        match of {
            Of::Files => &self.files,
            Of::Directories => &self.directories,
        }
    }

    /// The next inodes whose leaves are to move down, with about `most` leaves.
    pub(super) fn next(&self, of: Of, most: u64) -> Vec<u64> {
        let mut listed = self.of(of).coldest.lock();
        let (mut taken, mut sum) = (Vec::new(), 0);
        while sum < most
            && let Some(cold) = listed.pop_front()
        {
            if !self.promoted.stays(cold.ino) {
                sum += cold.blocks;
                taken.push(cold.ino);
            }
        }
        taken
    }
}
