//! Room in the volume: every record sets aside what it may add to the volume, so
//! that a full volume is found out at the call and never at digest.
//!
//! The daemon hands out room in large pieces; calls take from the piece at hand.

use shale_format::limits::BLOCK_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// Room is counted in this many bytes, as in a record's header.
pub(crate) const UNIT: u64 = 64;
/// Asked for at once when the piece at hand is used up.
pub(crate) const PIECE_BYTES: u64 = 16 << 20;

/// What a new inode may add: its slot, an inode-file block shared by 16, attributes.
pub(crate) const INODE_BYTES: u64 = 1024;
/// What a write may add besides its blocks: two extents, doubled for half-full nodes.
pub(crate) const SPLIT_BYTES: u64 = 128;

/// What a directory entry may add.
pub(crate) fn entry_bytes(name: &[u8]) -> u64 {
    (2 * (24 + name.len() as u64)).next_multiple_of(UNIT)
}

/// What `blocks` blocks add.
pub(crate) fn blocks_bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

/// Room this client has and no record uses yet, in bytes.
#[derive(Default)]
pub(crate) struct Room {
    free: AtomicU64,
}

impl Room {
    /// Takes `bytes` (a multiple of [`UNIT`]); `false`: there is less.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        bytes == 0
            || self
                .free
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |f| {
                    f.checked_sub(bytes)
                })
                .is_ok()
    }

    /// Adds room.
    pub(crate) fn add(&self, bytes: u64) {
        if bytes > 0 {
            self.free.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Takes everything that is free.
    pub(crate) fn drain(&self) -> u64 {
        self.free.swap(0, Ordering::Relaxed)
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_never_goes_below_zero() {
        let r = Room::default();
        assert!(!r.take(64));
        r.add(128);
        assert!(r.take(64) && r.take(64) && !r.take(64));
        r.add(640);
        assert_eq!((r.drain(), r.free()), (640, 0));
    }
}
