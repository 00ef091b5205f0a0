//! What migration did, in numbers.

use super::move_request::BLOCK;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What migration did since the start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MigrationCounts {
    /// Bytes moved to a slower tier.
    pub down_bytes: u64,
    /// Bytes of new data that went from logs directly to a lower tier.
    pub direct_to_tier_bytes: u64,
    /// Bytes moved to a faster tier.
    pub up_bytes: u64,
    /// Bytes moved to empty zones for good ones.
    pub cleaned_bytes: u64,
    /// Batches committed.
    pub batches: u64,
    /// Bytes copied and dropped: the blocks changed meanwhile.
    pub aborted_bytes: u64,
    /// Times somebody waited for space.
    pub space_waits: u64,
    /// The longest that a call waited for space in NVM, in ns: digest, moving, and what was freed given out.
    pub space_wait_max_ns: u64,
    /// Times a client lacked blocks below NVM and asked for them.
    pub client_reads: u64,
    /// Bytes that clients were given so.
    pub client_read_bytes: u64,
    /// Times a client read blocks from a device of flash by itself.
    pub direct_reads: u64,
    /// Bytes that clients read so, by their own account.
    pub direct_read_bytes: u64,
    /// Times the last block of a file was wanted from below NVM, by a client or by a digest, and was still in memory.
    pub tail_cache_hits: u64,
    /// Blocks that could not be read, and so not moved; each try counts.
    pub unreadable_blocks: u64,
    /// Times all inodes were scanned to find what lies in zones.
    pub inode_scans: u64,
    /// Of these, because not all owners of the blocks were known.
    pub backref_misses: u64,
}

/// How far moving data down by command is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateProgress {
    /// Moved.
    pub done: u64,
    /// Of so many.
    pub of: u64,
}

impl MigrationCounts {
    /// Bytes moved: down, up, and to clean zones.
    pub fn moved_bytes(&self) -> u64 {
        self.down_bytes + self.up_bytes + self.cleaned_bytes
    }
}

/// Counters behind [`MigrationCounts`].
#[derive(Default)]
pub(crate) struct Counts {
    pub(super) down: AtomicU64,
    pub(super) direct_to_tier: AtomicU64,
    pub(super) up: AtomicU64,
    pub(super) cleaned: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) aborted: AtomicU64,
    pub(super) space_waits: AtomicU64,
    pub(super) space_wait_max: AtomicU64,
    pub(super) client_reads: AtomicU64,
    pub(super) client_read_bytes: AtomicU64,
    pub(super) direct_reads: AtomicU64,
    pub(super) direct_blocks: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) inode_scans: AtomicU64,
    pub(super) backref_misses: AtomicU64,
}

impl Counts {
    /// A client was given bytes from below NVM.
    pub(super) fn read(&self, bytes: usize) {
        self.client_reads.fetch_add(1, Ordering::Relaxed);
        self.client_read_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A client has read so many blocks from devices by itself, in so many reads: it says so, and nothing depends on it.
    pub(super) fn direct(&self, (blocks, reads): (u64, u64)) {
        self.direct_blocks.fetch_add(blocks, Ordering::Relaxed);
        self.direct_reads.fetch_add(reads, Ordering::Relaxed);
    }

    /// A call has waited so long for space in NVM.
    pub(super) fn wait(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.space_wait_max.fetch_max(ns, Ordering::Relaxed);
    }

    /// As they are now.
    pub(super) fn snapshot(&self) -> MigrationCounts {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = self;
        MigrationCounts {
            down_bytes: of(&c.down),
            direct_to_tier_bytes: of(&c.direct_to_tier),
            up_bytes: of(&c.up),
            cleaned_bytes: of(&c.cleaned),
            batches: of(&c.batches),
            aborted_bytes: of(&c.aborted),
            space_waits: of(&c.space_waits),
            space_wait_max_ns: of(&c.space_wait_max),
            client_reads: of(&c.client_reads),
            client_read_bytes: of(&c.client_read_bytes),
            direct_reads: of(&c.direct_reads),
            direct_read_bytes: of(&c.direct_blocks).saturating_mul(BLOCK),
            tail_cache_hits: 0,
            unreadable_blocks: of(&c.unreadable),
            inode_scans: of(&c.inode_scans),
            backref_misses: of(&c.backref_misses),
        }
    }
}
