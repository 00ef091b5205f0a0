//! Deliberate mistakes in Shale: which there are, and who has to find each.

/// A mistake, by the name that the code asks for.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
    /// Who has to find it.
    pub hunter: Hunter,
}

/// Who looks for a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hunter {
    /// The explorer of power cuts.
    Crash,
    /// The same, with several threads.
    Threads,
    /// The same, where a dozen blocks are free.
    Full,
    /// The same, with lower tiers.
    Tiers,
    /// The same, with writes above 1 MiB.
    Huge,
    /// The same, of buffered clients.
    Buffered,
    /// The same, of ordered clients.
    Ordered,
    /// The explorer of power cuts of volumes without NVM.
    Staged,
    /// The row of faults whose name contains this.
    Faults(&'static str),
    /// Eight processes on the names of a few directories of a mount (`coherence drive --names`).
    Names,
    /// The hostile case whose name contains this; all of them.
    Hostile(&'static str),
}

const fn mutant(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Crash;
    Mutant { name, what, hunter }
}

const fn of_faults(name: &'static str, what: &'static str, row: &'static str) -> Mutant {
    let hunter = Hunter::Faults(row);
    Mutant { name, what, hunter }
}

const fn of_tiers(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Tiers;
    Mutant { name, what, hunter }
}

const fn of_threads(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Threads;
    Mutant { name, what, hunter }
}

const fn of_huge(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Huge;
    Mutant { name, what, hunter }
}

const fn of_buffered(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Buffered;
    Mutant { name, what, hunter }
}

const fn of_ordered(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Ordered;
    Mutant { name, what, hunter }
}

const fn of_staged(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Staged;
    Mutant { name, what, hunter }
}

const fn of_hostile(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Hostile("");
    Mutant { name, what, hunter }
}

const fn of_names(name: &'static str, what: &'static str) -> Mutant {
    let hunter = Hunter::Names;
    Mutant { name, what, hunter }
}

/// All of them.
pub const MUTANTS: [Mutant; 136] = [
    of_names(
        "change-shared",
        "a client changes inodes, directories too, under a shared lease",
    ),
    of_names(
        "kernel-undropped",
        "the kernel keeps what it knows of a directory that a client changes",
    ),
    of_names(
        "directory-moved",
        "a client moves a directory that the kernel may know in its old place",
    ),
    of_names(
        "orphan-in-use",
        "a file without names is freed though programs have it open",
    ),
    of_names(
        "materialise-by-path",
        "the kernel opens what has the path of a file that was opened in the process",
    ),
    mutant(
        "path-unleased",
        "a path that was walked is known by heart after others took a lease on it",
    ),
    of_ordered(
        "fsync-alone",
        "fsync of an ordered client makes its last call durable, and not those before it",
    ),
    of_buffered(
        "named-reused",
        "blocks that a buffered client's fsync wrote are written again once they are a file's",
    ),
    of_buffered(
        "copy-fence",
        "records that are copied to NVM are not fenced before fsync returns",
    ),
    of_buffered(
        "copy-at-once",
        "large data and its header are copied to NVM with one fence",
    ),
    of_buffered(
        "eager-fence",
        "blocks that a buffered client writes directly to NVM are not fenced before a record names them",
    ),
    of_buffered(
        "copy-left",
        "fsync of a buffered client copies nothing to NVM",
    ),
    of_buffered(
        "lease-before-copy",
        "a lease moves from a buffered client when only what it has copied to NVM is in the volume",
    ),
    of_buffered(
        "sync-left-in-memory",
        "sync writes nothing of buffered clients back",
    ),
    of_buffered(
        "flag-unsynced",
        "a call that changes what has S or D leaves its records in memory",
    ),
    of_buffered(
        "store-unsafe",
        "a digest changes blocks where they are by records that a power cut loses",
    ),
    mutant(
        "append-fence",
        "a record is not fenced before the call returns",
    ),
    mutant(
        "append-data-fence",
        "large data and its header share one fence",
    ),
    of_threads(
        "publish-before-fence",
        "a record is published before it is fenced: hardened runs ahead",
    ),
    of_threads(
        "publish-over-gap",
        "a record is published before those that come before it",
    ),
    mutant("scan-checksum", "a record's checksum is not verified"),
    mutant("scan-chain", "a transaction whose end is missing counts"),
    mutant("scan-steal", "stolen blocks are not verified at recovery"),
    mutant("pad-fence", "a pad at the end of the ring is not fenced"),
    mutant("slot-before-log", "the table names a log before it is made"),
    mutant(
        "call-in-pieces",
        "the records of one call are not one transaction",
    ),
    of_huge("call-cut", "a write above 1 MiB is several transactions"),
    of_huge(
        "chain-ends",
        "each record of a large write ends a transaction",
    ),
    mutant("steal-fence", "stolen data is not fenced before its record"),
    mutant(
        "partial-line-flush",
        "parts of lines are stored and not flushed",
    ),
    mutant(
        "journal-body-fence",
        "the journal's body and header share one fence",
    ),
    mutant(
        "journal-header-fence",
        "ranges are written in place before the commit is durable",
    ),
    mutant("journal-apply-fence", "ranges in place are not fenced"),
    mutant("journal-replay", "a batch that waits is not applied"),
    mutant(
        "journal-body-checksum",
        "the journal's body is not verified",
    ),
    mutant("journal-wipe", "a torn header of the journal stays"),
    mutant(
        "nodes-after-commit",
        "tree nodes are written after the commit",
    ),
    mutant("bitmap-journal", "the bitmap is not part of the batch"),
    mutant("commit-before-data", "data is written after the commit"),
    mutant(
        "store-unflushed",
        "what is new in a block that stays is stored and not flushed",
    ),
    of_tiers(
        "store-while-copied",
        "a block is changed where it is while it is copied to another tier",
    ),
    mutant(
        "direct-without-flush",
        "data copied from log to block is not flushed",
    ),
    mutant("digested-stored", "the digested position is not stored"),
    mutant(
        "digested-early",
        "the digested position is stored before the digest",
    ),
    mutant(
        "old-bytes",
        "the rest of a block that is written in part becomes zeros",
    ),
    mutant(
        "survey-takes",
        "recovery does not take stolen blocks before it allocates",
    ),
    mutant("orphans-go", "orphans stay after a crash"),
    mutant(
        "lease-generation",
        "a lease is taken without a new generation",
    ),
    mutant(
        "lease-digest",
        "a lease is taken without a digest of its holder's log",
    ),
    mutant("epoch-read", "a read goes on with roots of an old epoch"),
    mutant(
        "fast-read-unleased",
        "a read on the fast path needs no lease",
    ),
    mutant(
        "extent-hint-kept",
        "the run of blocks looked up last outlives its epoch",
    ),
    mutant(
        "slots-freed-first",
        "recovery frees a log before it is digested",
    ),
    mutant("ring-wrap", "a record may go one line over the ring's end"),
    mutant(
        "record-position",
        "a record's position is not verified: one of the lap before counts",
    ),
    mutant("links-kept", "digest does not lower the count of names"),
    mutant(
        "orphan-freed",
        "an inode is freed with its last name, though it is open",
    ),
    mutant(
        "rename-parent",
        "a directory that is moved keeps its old parent",
    ),
    mutant("truncate-longer", "truncate does not make a file longer"),
    mutant(
        "truncate-rest",
        "what a truncation leaves of the last block is not zeroed",
    ),
    mutant(
        "punch-edges",
        "parts of blocks at the ends of a hole are not zeroed",
    ),
    mutant("zeros-left-out", "zeros of a new block are not written"),
    mutant(
        "unwritten-flag",
        "blocks that become zeros are not marked unwritten",
    ),
    mutant(
        "xattrs-lost",
        "an attribute that is set replaces all others",
    ),
    mutant("epoch-kept", "the epoch is not raised after a digest"),
    mutant("numbers-twice", "inode numbers are granted to two clients"),
    mutant("old-blocks", "blocks that are replaced stay marked used"),
    mutant("used-count", "the count of used blocks is not lowered"),
    mutant(
        "journal-header-checksum",
        "the journal's header is not verified",
    ),
    mutant("superblock-checksum", "a superblock is not verified"),
    mutant("root-checksum", "the root block is not verified"),
    mutant("slot-checksum", "slots of the log table are not verified"),
    mutant("bitmap-checksum", "the bitmap is not verified"),
    mutant("inode-checksum", "inodes are not verified"),
    mutant("node-checksum", "nodes of trees are not verified"),
    mutant(
        "mkfs-wipe",
        "the old superblocks stay while a volume is made",
    ),
    mutant(
        "mkfs-fence",
        "a new volume's superblock is written before its contents are durable",
    ),
    mutant("mkfs-second", "the second superblock is not written"),
    mutant(
        "requests-unknown",
        "what requests of a mount that survives did is not looked for",
    ),
    mutant(
        "requests-tail",
        "a request without an answer does not hold the log's tail",
    ),
    mutant(
        "requests-kept",
        "a log that knows requests goes with its recovery",
    ),
    of_faults(
        "freed-early",
        "blocks are given out before all have left the calls that see them",
        "call-goes-on",
    ),
    of_faults(
        "freeze-unseen",
        "calls do not look whether the volume is frozen",
        "frozen",
    ),
    of_faults(
        "freeze-grace",
        "a freeze does not wait for calls that are inside",
        "frozen",
    ),
    of_faults(
        "freeze-leases",
        "who froze a volume keeps the leases that it had meanwhile",
        "frozen",
    ),
    of_faults(
        "reclaim-grace",
        "log space is given back before all have left the calls that see it",
        "call-goes-on",
    ),
    of_faults(
        "reclaim-early",
        "log space is given back before its records are digested",
        "call-goes-on",
    ),
    Mutant {
        name: "credit-forgotten",
        what: "space credit that was given out is not counted",
        hunter: Hunter::Full,
    },
    of_tiers(
        "lower-flush",
        "blocks are linked before their device is flushed",
    ),
    of_tiers(
        "direct-flush",
        "new data that goes directly to a lower tier is linked before its device is flushed",
    ),
    of_tiers("lower-bitmap", "the bitmap of a tier is not in the batch"),
    of_tiers("zone-pointer", "write pointers are not in the batch"),
    of_tiers(
        "migrate-freed-early",
        "old blocks are freed before the new ones are linked",
    ),
    of_tiers(
        "migrate-unchecked",
        "a block that was rewritten meanwhile is replaced by its copy",
    ),
    of_tiers(
        "inodes-flush",
        "inodes are linked below before their device is flushed",
    ),
    of_tiers(
        "inodes-feature",
        "inodes are linked below, and the superblocks do not say so",
    ),
    of_tiers(
        "directories-flush",
        "leaves of trees are linked below before their device is flushed",
    ),
    of_tiers(
        "directories-feature",
        "leaves of directories are linked below, and the superblocks do not say so",
    ),
    of_tiers(
        "extents-feature",
        "leaves of extents are linked below, and the superblocks do not say so",
    ),
    of_tiers("lower-sums", "checksums are stored and not flushed"),
    of_tiers("zone-order", "zones are written from their ends"),
    of_faults(
        "target-checksum",
        "targets of symbolic links are not verified",
        "rot-link-target",
    ),
    of_faults(
        "lower-checksum",
        "blocks below NVM are not verified",
        "lower-rot",
    ),
    of_faults(
        "lower-flush-error",
        "a flush that fails counts as done",
        "lower-write",
    ),
    of_faults(
        "migrate-unread",
        "a block that cannot be read moves as zeros",
        "lower-read",
    ),
    of_faults(
        "zone-generation",
        "a zone that is erased keeps its generation",
        "lower-full",
    ),
    of_faults(
        "zone-reserve",
        "the zone that is kept for cleaning is written",
        "lower-full",
    ),
    of_faults(
        "zone-erased-early",
        "a zone is erased before all have left the calls that see it",
        "lower-held",
    ),
    of_hostile("record-salt", "all logs have the same salt"),
    of_hostile(
        "left-log-in-use",
        "a log that its last client can still write is the next one's",
    ),
    of_hostile(
        "left-log-of-others",
        "a log that a client has left serves other users' clients",
    ),
    of_hostile("lease-unchecked", "records need no lease"),
    of_hostile("permission-unchecked", "anybody may write any file"),
    of_hostile(
        "reads-unchecked",
        "clients are believed about reads of files that they may not read",
    ),
    of_hostile(
        "open-token-unchecked",
        "any token opens files by number through the mount",
    ),
    of_hostile("sticky-unchecked", "sticky directories are not"),
    of_hostile("flags-unchecked", "immutable files and directories are not"),
    of_hostile("acl-unchecked", "access control lists forbid nothing"),
    of_hostile(
        "acl-of-others",
        "anybody may set the access control list of any inode",
    ),
    mutant(
        "acl-without-mode",
        "a change of the mode leaves the access control list as it is",
    ),
    mutant(
        "acls-feature",
        "the feature is not set with the first access control list",
    ),
    of_hostile("grant-unchecked", "any block can be stolen"),
    of_hostile("ring-unchecked", "a directory may be moved below itself"),
    of_hostile(
        "chain-long",
        "a transaction above a quarter of the log counts",
    ),
    of_hostile(
        "growth-unchecked",
        "records may add more to the volume than they reserved",
    ),
    of_staged(
        "fsync-early",
        "fsync returns before its records are hardened",
    ),
    of_staged(
        "answer-early",
        "the mount answers before what it promises is hardened",
    ),
    of_staged(
        "sync-others-left",
        "sync hardens the log of the client that asks, and no other one",
    ),
    of_staged(
        "digest-unhardened",
        "a log is digested, and its leases move, before it is hardened",
    ),
    of_staged(
        "staged-steal",
        "a client writes blocks itself that no log has, and that are not staged",
    ),
    of_staged(
        "batch-freed-early",
        "a checkpoint frees batches whose records are not all digested",
    ),
    of_staged(
        "checkpoint-space",
        "space that was freed, or placed below, since the last checkpoint is given away before the next one",
    ),
    of_staged(
        "staging-failure-forgotten",
        "after a write to the staging area has failed the next one is taken for durable",
    ),
    of_staged(
        "replay-slot",
        "a log that is younger than the image has no slot when it is replayed",
    ),
    of_staged(
        "placed-unflushed",
        "a batch names data in a zone that was written there and not flushed",
    ),
    of_staged(
        "placed-unread",
        "a replay leaves out data that a batch names in a zone",
    ),
];
