//! Emulated flash that other file systems run on, and what they make of it.
//!
//! `device::ftl` over `device::zoned` is the one file of a mount (`export`); a loop device over
//! it is what ext4 and btrfs get (`serve`). The load (`load`) is the one of StageFS §5.5 as
//! the project's aims have it: heavy cleaning, at 90% full, random 4 KiB overwrites, 80% of
//! them to a fifth of the files. `compare` puts the counters side by side.
//!
//! Flash and load are different processes. In one, a `kill -9` would leave the threads that
//! serve dead and the one that waits for them unable to die.

pub mod compare;
mod export;
pub mod load;
pub mod serve;
pub mod shale;

use serde::{Deserialize, Serialize};
use shale_block::BlockDevice;
use shale_emulate::Ftl;
use shale_emulate::ftl::FtlCounts;
use shale_emulate::zoned::FlashCounts;

/// Counters of flash and translation layer, as they go from process to process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are those of shale_emulate")]
pub struct Counters {
    pub device_bytes: u64,
    pub blocks_written: u64,
    pub blocks_rewritten_in_cache: u64,
    pub blocks_read: u64,
    pub blocks_trimmed: u64,
    pub flushes: u64,
    pub halves_wasted: u64,
    pub trim_pages: u64,
    pub pages_read: u64,
    pub pages_programmed: u64,
    pub pages_moved: u64,
    pub blocks_erased: u64,
    pub out_of_order: u64,
    /// Time of the model, in nanoseconds.
    pub device_ns: u64,
}

impl Counters {
    /// What a device has counted until now.
    pub fn of(ftl: &Ftl) -> Self {
        let FlashCounts {
            pages_read,
            pages_programmed,
            pages_moved,
            blocks_erased,
            out_of_order,
            ..
        } = ftl.flash().counts();
        let FtlCounts {
            blocks_written,
            blocks_rewritten_in_cache,
            blocks_read,
            blocks_trimmed,
            flushes,
            halves_wasted,
            trim_pages,
            ..
        } = ftl.counts();
        Counters {
            device_bytes: ftl.bytes(),
            blocks_written,
            blocks_rewritten_in_cache,
            blocks_read,
            blocks_trimmed,
            flushes,
            halves_wasted,
            trim_pages,
            pages_read,
            pages_programmed,
            pages_moved,
            blocks_erased,
            out_of_order,
            device_ns: ftl.flash().pace().now_ns(),
        }
    }

    /// What was counted between `earlier` and now.
    pub fn since(&self, earlier: &Counters) -> Self {
        Counters {
            device_bytes: self.device_bytes,
            blocks_written: self.blocks_written - earlier.blocks_written,
            blocks_rewritten_in_cache: self.blocks_rewritten_in_cache
                - earlier.blocks_rewritten_in_cache,
            blocks_read: self.blocks_read - earlier.blocks_read,
            blocks_trimmed: self.blocks_trimmed - earlier.blocks_trimmed,
            flushes: self.flushes - earlier.flushes,
            halves_wasted: self.halves_wasted - earlier.halves_wasted,
            trim_pages: self.trim_pages - earlier.trim_pages,
            pages_read: self.pages_read - earlier.pages_read,
            pages_programmed: self.pages_programmed - earlier.pages_programmed,
            pages_moved: self.pages_moved - earlier.pages_moved,
            blocks_erased: self.blocks_erased - earlier.blocks_erased,
            out_of_order: self.out_of_order - earlier.out_of_order,
            device_ns: self.device_ns - earlier.device_ns,
        }
    }
}
