//! How a device behaves, and what it counts.

use std::ops::Sub;

use crate::UnitTimes;
use shale_nvm::Pace;

/// Why a page is programmed; only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Somebody wrote that.
    Written,
    /// It was elsewhere before, and that block is to be erased.
    Moved,
}

/// What a device has done. `later - earlier` is what happened between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlashCounts {
    /// Pages read.
    pub pages_read: u64,
    /// Metadata read alone.
    pub oob_read: u64,
    /// Pages programmed, of any [`Purpose`].
    pub pages_programmed: u64,
    /// Those of [`Purpose::Moved`].
    pub pages_moved: u64,
    /// Blocks erased.
    pub blocks_erased: u64,
    /// Attempts to program a page that was not the next one; all refused.
    pub out_of_order: u64,
    /// Reads of torn pages and of half erased blocks; all refused.
    pub unreadable: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Sub for FlashCounts {
    type Output = FlashCounts;

    fn sub(self, earlier: FlashCounts) -> FlashCounts {
        FlashCounts {
            pages_read: self.pages_read - earlier.pages_read,
            oob_read: self.oob_read - earlier.oob_read,
            pages_programmed: self.pages_programmed - earlier.pages_programmed,
            pages_moved: self.pages_moved - earlier.pages_moved,
            blocks_erased: self.blocks_erased - earlier.blocks_erased,
            out_of_order: self.out_of_order - earlier.out_of_order,
            unreadable: self.unreadable - earlier.unreadable,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

/// How a device behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// How long units are busy. Default [`UnitTimes::STAGEFS`].
    pub times: UnitTimes,
    /// What waiting is. Default virtual time.
    pub pace: Pace,
    /// Whether [`Zoned::cut_power`] can be used: what is under way is remembered, an erase with
    /// all that the block held. Default `false`.
    pub cuts: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            times: UnitTimes::STAGEFS,
            pace: Pace::of_virtual_time(),
            cuts: false,
        }
    }
}
