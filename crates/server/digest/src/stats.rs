//! What digesting saved and cost, in counts.

use std::ops::AddAssign;

/// Counts of one chunk, or of several added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DigestStats {
    /// Records taken.
    pub records: u64,
    /// Records of which nothing reached the volume: later ones undid or superseded them.
    pub skipped: u64,
    /// Writes that were merged into an extent with others.
    pub coalesced: u64,
    /// Bytes of the records in the log.
    pub bytes_logged: u64,
    /// Bytes of data in payloads and stolen blocks.
    pub payload_bytes: u64,
    /// Of these, bytes that did not reach the volume.
    pub bytes_skipped: u64,
    /// Of these, bytes that did.
    pub bytes_digested: u64,
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Stolen blocks of 4 KiB linked: not written again.
    pub blocks_linked: u64,
    /// Runs of blocks that files got.
    pub extents: u64,
    /// Runs of blocks that were changed where they are.
    pub stores: u64,
    /// Bytes that were stored into them.
    pub bytes_stored: u64,
    /// Inodes made or changed.
    pub inodes: u64,
    /// Inodes freed.
    pub inodes_freed: u64,
    /// Directory entries changed.
    pub entries: u64,
    /// Transactions.
    pub commits: u64,
}

impl DigestStats {
    /// Part of the records that was skipped, 0 to 1; 0 if there were none.
    pub fn skipped_ratio(&self) -> f64 {
        match self.records {
            0 => 0.0,
            n => self.skipped as f64 / n as f64,
        }
    }
}

impl AddAssign for DigestStats {
    fn add_assign(&mut self, o: Self) {
        self.records += o.records;
        self.skipped += o.skipped;
        self.coalesced += o.coalesced;
        self.bytes_logged += o.bytes_logged;
        self.payload_bytes += o.payload_bytes;
        self.bytes_skipped += o.bytes_skipped;
        self.bytes_digested += o.bytes_digested;
        self.blocks_written += o.blocks_written;
        self.blocks_linked += o.blocks_linked;
        self.extents += o.extents;
        self.stores += o.stores;
        self.bytes_stored += o.bytes_stored;
        self.inodes += o.inodes;
        self.inodes_freed += o.inodes_freed;
        self.entries += o.entries;
        self.commits += o.commits;
    }
}
