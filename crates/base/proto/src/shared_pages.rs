//! The two shared pages of a client: offsets of their words.
//!
//! Every word is a little-endian integer accessed atomically. The *daemon page* is
//! written by the daemon and mapped read-only by the client; the *client page* is
//! the other way round. What the daemon reads from the client page it checks.

/// Words of the daemon page (byte offsets).
pub mod daemon_page {
    /// u64: records before this log position are in the volume.
    pub const DIGESTED: usize = 0;
    /// u64: records before this log position survive a power cut. Stored only where logs lie in memory
    /// ([`Attached::staged`](crate::message::Attached::staged)). On the cache line of [`DIGESTED`].
    pub const HARDENED: usize = DIGESTED + 8;
    /// u64: records before this log position that are in the volume were digested from the log in NVM since the last that were not, of a
    /// buffered client: blocks that these name are a file's now. Stored before [`DIGESTED`], on its cache line.
    pub const LINKED: usize = DIGESTED + 16;
    /// u64: epoch of the volume's structure; every digest that frees blocks adds one.
    pub const EPOCH: usize = 64;
    /// u32: how often a lease that this client alone had was taken for somebody else, after a digest of its log. On the cache line of [`EPOCH`].
    pub const TAKEN: usize = EPOCH + 8;
    /// u32: a value of [`super::state`].
    pub const STATE: usize = 128;
    /// u64: no thread that is inside a call can still hold a pointer to records
    /// before this log position: the daemon stores here what [`DIGESTED`] was,
    /// after a grace period. The client may reuse the space.
    pub const RECLAIM: usize = 192;
    /// u64: a call that begins when the log is complete up to here or further asks first
    /// ([`Request::Pace`](crate::Request::Pace)); `u64::MAX`: no limit is set. On the cache line
    /// of [`RECLAIM`], which every writing call reads.
    pub const ALLOWED: usize = RECLAIM + 8;
    /// u64: not 0 while the volume has lower tiers: calls that see so reserve space for what lies
    /// there. Nothing does before a grace period has ended, and what was logged until
    /// then is digested. On the cache line of [`RECLAIM`].
    pub const TIERS: usize = RECLAIM + 16;
    /// u64: bits of [`super::mount_flag`], as the mount has them now. On the cache line of [`RECLAIM`].
    pub const MOUNT: usize = RECLAIM + 24;
    /// First of [`BUCKETS`] u32 words: lease generations, by [`bucket`].
    pub const LEASES: usize = 4096;
    /// Number of lease generation words.
    pub const BUCKETS: usize = 4096;
    /// Bytes of the page file.
    pub const BYTES: usize = LEASES + BUCKETS * 4;

    /// Byte offset of the generation word for inode number `ino`.
    pub fn bucket(ino: u64) -> usize {
        let h = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        LEASES + (h as usize % BUCKETS) * 4
    }
}

/// Values of [`daemon_page::STATE`].
pub mod state {
    /// The client is served.
    pub const RUNNING: u32 = 1;
    /// The client was cut off: nothing that it read since then may be returned.
    pub const EVICTED: u32 = 2;
    /// The volume is being unmounted.
    pub const CLOSING: u32 = 3;
}

/// Bits of [`daemon_page::MOUNT`].
pub mod mount_flag {
    /// Nothing is changed (`ro`).
    pub const READ_ONLY: u64 = 1;
    /// That a file was read is not noted (`noatime`).
    pub const NO_ATIME: u64 = 2;
    /// The staging area of a volume without NVM has failed: what is not hardened never will be.
    pub const HARDENING_FAILED: u64 = 4;
    /// Nothing is changed for a moment, in which a backup is taken ([`Request::Freeze`](crate::Request::Freeze)): a call that has
    /// space in its log looks here within its read section, and waits outside of it.
    pub const FROZEN: u64 = 8;
    /// In the page of the client that has frozen the volume, as long as nothing changes: it reads under shared leases that it
    /// takes for given, with the generations that this page has. All of these are raised when the freeze ends, before and
    /// after this bit goes.
    pub const READS_FROZEN: u64 = 16;
}

/// Words of the client page (byte offsets).
pub mod client_page {
    /// u64: records before this log position are published: complete, and to be digested. In NVM a record
    /// is fenced before it is published, so this word tells how far the log is hardened, too; of a log in memory
    /// [`HARDENED`](super::daemon_page::HARDENED) does.
    pub const PUBLISHED: usize = 0;
    /// u64: records before this log position were copied to the log in NVM, of a client that has one beside its log in memory
    /// ([`Attached::buffered`](crate::message::Attached::buffered)). On the cache line of [`PUBLISHED`].
    pub const COPIED: usize = PUBLISHED + 8;
    /// u64: bytes of records that were copied there. For people to read.
    pub const COPIED_BYTES: usize = PUBLISHED + 16;
    /// u64: bytes of whole blocks that a buffered client wrote directly to NVM. This word and the three behind it are for people to read.
    pub const EAGER_BYTES: usize = PUBLISHED + 24;
    /// u64: bytes that it wrote to memory.
    pub const LAZY_BYTES: usize = PUBLISHED + 32;
    /// u64: blocks of which an fsync found what the one before had, eager or lazy.
    pub const DECIDED_RIGHT: usize = PUBLISHED + 40;
    /// u64: blocks of which an fsync found the opposite.
    pub const DECIDED_WRONG: usize = PUBLISHED + 48;
    /// u64: position up to which the log has been given out to threads (a hint).
    pub const RESERVED: usize = 64;
    /// u64: blocks that the client has read from devices of flash by itself. The daemon takes the number now and then
    /// and leaves 0; it decides nothing by it.
    pub const DIRECT_BLOCKS: usize = 128;
    /// u64: how many reads that were; taken likewise.
    pub const DIRECT_READS: usize = DIRECT_BLOCKS + 8;
    /// u64: paths of directories that the client had walked before, and did not walk again; taken likewise.
    pub const PATHS_KNOWN: usize = 192;
    /// u64: paths of directories that it has walked; taken likewise.
    pub const PATHS_WALKED: usize = PATHS_KNOWN + 8;
    /// First of [`READER_SLOTS`] reader slots, one per thread, a cache line each: u64 sequence
    /// number, odd while the thread is inside a call.
    pub const FIRST_READER_SLOT: usize = 4096;
    /// Number of reader slots.
    pub const READER_SLOTS: usize = 128;
    /// Distance of two reader slots in bytes.
    pub const READER_SLOT_BYTES: usize = 64;
    /// First of [`USES`] u32 words: how many open files the client has, by [`uses`] of
    /// their inodes. A word goes up only inside the read section and under a lease on the inode, so
    /// a caller that took all leases on an inode and waited for a grace period reads who has it open.
    pub const USE: usize = FIRST_READER_SLOT + READER_SLOTS * READER_SLOT_BYTES;
    /// Number of words that count open files.
    pub const USES: usize = 1024;
    /// First of [`READS`] u64 words: pieces of files that were read recently ([`Read`]), each at the
    /// place that [`reads`] gives. The daemon takes them now and then and leaves zeros. A hint:
    /// where two pieces share a place, one is forgotten. Only in volumes with several tiers.
    pub const READ: usize = USE + USES * 4;
    /// Number of words that tell of reads: a list of 4 KiB (Strata §3.3).
    pub const READS: usize = 512;
    /// Bytes of the page file.
    pub const BYTES: usize = READ + READS * 8;

    /// A piece of a file that was read; or a directory, which is one piece.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Read {
        /// The file, below 2^39; 0: the inode file, of which only what lies below NVM is reported.
        pub ino: u64,
        /// Which piece of 1 MiB, below 2^24: files have at most 16 TiB. Of the inode file: which block.
        pub piece: u64,
        /// Some of what was read lies below NVM.
        pub below: bool,
    }

    impl Read {
        /// As a word of the page; never 0.
        pub fn word(self) -> u64 {
            (u64::from(self.below) << 63)
                | ((self.ino & INO_MASK) << 24)
                | (self.piece & PIECE_MASK)
        }

        /// What a word says; `None` for 0.
        pub fn of(word: u64) -> Option<Self> {
            (word != 0).then_some(Self {
                ino: (word >> 24) & INO_MASK,
                piece: word & PIECE_MASK,
                below: word >> 63 == 1,
            })
        }
    }

    const PIECE_MASK: u64 = (1 << 24) - 1;
    const INO_MASK: u64 = (1 << 39) - 1;

    /// Byte offset of the word that tells of reads of a piece, and of others.
    pub fn reads(ino: u64, piece: u64) -> usize {
        let h = (ino.rotate_left(32) ^ piece).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
        READ + (h as usize % READS) * 8
    }

    /// Byte offset of the word that counts open files of inode `ino`, and of others.
    pub fn uses(ino: u64) -> usize {
        let h = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        USE + (h as usize % USES) * 4
    }

    /// Byte offset of the sequence word of reader slot `n`.
    pub fn reader_slot(n: usize) -> usize {
        FIRST_READER_SLOT + n * READER_SLOT_BYTES
    }
}

const _: () =
    assert!(client_page::BYTES.is_multiple_of(4096) && daemon_page::BYTES.is_multiple_of(4096));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_stay_inside_and_spread() {
        let mut used = std::collections::HashSet::new();
        for ino in 0..10_000u64 {
            let b = daemon_page::bucket(ino);
            assert!(b >= daemon_page::LEASES && b + 4 <= daemon_page::BYTES && b.is_multiple_of(4));
            used.insert(b);
        }
        assert!(used.len() > 3_000, "{}", used.len());
        assert!((0..10_000).all(|ino| {
            let at = client_page::uses(ino);
            at >= client_page::USE && at + 4 <= client_page::READ
        }));
        assert!((0..10_000).all(|n| {
            let at = client_page::reads(n / 7, n);
            at >= client_page::READ && at + 8 <= client_page::BYTES && at.is_multiple_of(8)
        }));
    }

    #[test]
    fn reads_fit_a_word() {
        for (ino, piece) in [(1, 0), (2, 9), (1 << 38, 0xff_ffff)] {
            for below in [false, true] {
                let read = client_page::Read { ino, piece, below };
                assert_eq!(client_page::Read::of(read.word()), Some(read));
            }
        }
        assert_eq!(client_page::Read::of(0), None);
    }
}
