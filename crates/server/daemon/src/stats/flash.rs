//! What emulated flash did, for `status` and lists of devices.

use serde::{Deserialize, Serialize};
use shale_block::TierDevice;

/// What emulated flash did since the start, in its own units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashUse {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages programmed.
    pub pages_programmed: u64,
    /// Pages read.
    pub pages_read: u64,
    /// Erase blocks erased.
    pub blocks_erased: u64,
    /// Attempts to program what was not the next page of its zone; 0.
    pub out_of_order: u64,
    /// Reads of torn pages and of blocks that are half erased.
    pub unreadable: u64,
    /// Time of its model, in nanoseconds.
    pub device_ns: u64,
}

impl FlashUse {
    /// `None`: the device is no emulated flash.
    pub(crate) fn of(device: &dyn TierDevice) -> Option<FlashUse> {
        let work = device.flash()?;
        Some(FlashUse {
            page_bytes: work.page_bytes,
            pages_programmed: work.pages_programmed,
            pages_read: work.pages_read,
            blocks_erased: work.blocks_erased,
            out_of_order: work.out_of_order,
            unreadable: work.unreadable,
            device_ns: work.device_ns,
        })
    }
}
