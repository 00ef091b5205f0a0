//! The word in each inode's memory that says under which lease it is there.

use super::sync::{AtomicU64, Ordering};
use shale_proto::LeaseMode;

/// Generation and mode of the lease on one inode.
#[derive(Default)]
pub struct LeaseWord(AtomicU64);

const SHARED: u64 = 1 << 32;
const EXCLUSIVE: u64 = 2 << 32;

impl LeaseWord {
    /// Notes a lease.
    #[inline]
    pub fn set(&self, generation: u32, mode: LeaseMode) {
        let mode = match mode {
            LeaseMode::Shared => SHARED,
            LeaseMode::Exclusive => EXCLUSIVE,
        };
        self.0
            .store(mode | u64::from(generation), Ordering::Release);
    }

    /// What is in memory is worth nothing until it is loaded again.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether what is in memory has ever been loaded under a lease.
    #[inline]
    pub fn was_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Whether the lease stands while the daemon's word is `generation`, and suffices.
    #[inline]
    pub fn covers(&self, generation: u32, wanted: LeaseMode) -> bool {
        let word = self.0.load(Ordering::Acquire);
        let needed = match wanted {
            LeaseMode::Shared => SHARED,
            LeaseMode::Exclusive => EXCLUSIVE,
        };
        word as u32 == generation && word >= needed
    }
}
