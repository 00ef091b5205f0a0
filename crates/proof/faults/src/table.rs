//! The table of faults.

use crate::limits::{buffer_space, no_space, system_limits};
use crate::lower_tiers::{device_changes, devices, failures, inodes, missing, zones};
use crate::media::{golden, memory_errors, segments};
use crate::metadata::{
    buffered_logs, damaged_images, misdirected_writes, repair_cuts, rot, update_logs,
};
use crate::processes::{clients, freezes, killed, open_calls};
use crate::trial::Trial;
use crate::volume::stage::Checked;
use shale_bench::Result;

/// One fault.
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What is promised.
    pub promise: &'static str,
    /// Tries it; the inner error is what is wrong with Shale.
    pub run: fn(&mut Trial<'_>) -> Result<Checked<()>>,
}

const fn row(
    name: &'static str,
    promise: &'static str,
    run: fn(&mut Trial<'_>) -> Result<Checked<()>>,
) -> Row {
    Row { name, promise, run }
}

const OBJECT: &str = "fsck tells; EIO on that object only, never wrong data; the rest is as before \
                      and can be written; repair mends it and loses that object at most";
const VOLUME: &str = "fsck tells; the start is refused with the structure's name; repair makes it again \
                      from the rest, nothing is lost";

/// Every fault.
pub const ROWS: &[Row] = &[
    row(
        "rot-superblock",
        "fsck tells; the other copy serves; repair writes it again",
        rot::superblock,
    ),
    row(
        "superblock-copies",
        "every subset of the copies, old and new mixed: the newest valid one counts; none: refused \
         by name, nothing written",
        rot::copies,
    ),
    row("rot-root-block", VOLUME, rot::root),
    row("rot-log-table", VOLUME, rot::log_table),
    row("rot-bitmap", VOLUME, rot::bitmap),
    row("rot-inode", OBJECT, rot::inodes),
    row("rot-extent-node", OBJECT, rot::extents),
    row("rot-directory-node", OBJECT, rot::entries),
    row("rot-attributes", OBJECT, rot::attributes),
    row("rot-link-target", OBJECT, rot::targets),
    row(
        "repair-cut",
        "power fails before any fence of repair: a second one makes the volume whole, with the same \
         tree as if nothing had happened",
        repair_cuts::repairs,
    ),
    row(
        "damaged-images",
        "several structures at once, behind checksums that fit or not: served or refused, checked, \
         repaired, served again; in 10 s and 96 MiB of private memory each",
        damaged_images::damaged,
    ),
    row(
        "misdirected-write",
        "as for rot: each structure holds its address or its owner",
        misdirected_writes::misdirected,
    ),
    row(
        "lost-write",
        "an older root block, bitmap block or tree node is found: as for rot",
        misdirected_writes::lost,
    ),
    row(
        "lost-write-inode",
        "nothing in a slot says that it is old: that file may show its older state; the rest is as \
         before, repair makes the volume whole",
        misdirected_writes::lost_inodes,
    ),
    row(
        "rot-journal",
        "a batch that is in its place needs no journal: nothing is lost",
        misdirected_writes::journal,
    ),
    row(
        "rot-log-header",
        "told; salt and length are in the log table: nothing is lost",
        update_logs::header,
    ),
    row(
        "rot-log-record",
        "the log ends before that record's call (as after a crash): what comes before is kept, no \
         call is there in part",
        update_logs::records,
    ),
    row(
        "log-file",
        "a log that is missing, cut, or another's is named; what was digested is whole",
        update_logs::file,
    ),
    row(
        "log-slot",
        "a log whose slot in the table makes no sense is named; what was digested is whole",
        update_logs::slot,
    ),
    row(
        "buffered-log-header",
        "the log in memory of a buffered client, after a kill, is damaged in its header, cut or another's: it is \
         named, the log in NVM counts, and only what was not synced is lost; missing, as after a power \
         cut: the same, nothing is told",
        buffered_logs::header,
    ),
    row(
        "buffered-log-record",
        "as rot-log-record, of the log in memory",
        buffered_logs::records,
    ),
    row(
        "memory-error",
        "SIGBUS in daemon and client: EIO on what lies there, both live on; the block is not used \
         again before the next start; what is written meanwhile goes elsewhere and stays",
        memory_errors::blocks,
    ),
    row(
        "full-volume",
        "ENOSPC at the call (or a short write), never at digest; what returned is there after \
         unmount; removing always works, and the space comes back",
        no_space::volume,
    ),
    row(
        "full-inodes",
        "as for data: inode numbers end with the blocks",
        no_space::inodes,
    ),
    row(
        "full-memory",
        "there is no shared memory for the log of a buffered client: it is refused with ENOSPC, directory and bytes are \
         named, nothing is left behind; the others go on, and with space again it is a client",
        buffer_space::memory,
    ),
    row(
        "full-nvm-directory",
        "the same where the NVM directory has no space for its log there",
        buffer_space::nvm,
    ),
    row("full-log", "the writer waits, no call fails", no_space::log),
    row(
        "segments",
        "a segment missing, of another length, swapped, of another volume, older: the start is refused by \
         name, nothing is written",
        segments::segments,
    ),
    row(
        "versions",
        "unknown compatible bits: served and kept; read-only-compatible: not served, but checked; \
         incompatible or newer: refused, also where one copy has them",
        segments::versions,
    ),
    row(
        "releases",
        "an image of each release, clean, left by a crash, and with features of newer ones: served as \
         it was, checked, or refused by name with nothing written",
        golden::images,
    ),
    row(
        "daemon-killed",
        "kill -9 in attach, lease, digest, journal, publish, unmount: the next start recovers; what \
         returned is there, the call in flight whole or absent; clients attach and go on",
        killed::daemon,
    ),
    row(
        "recovery-killed",
        "kill -9 in recovery after one in digest: as for one kill",
        killed::recovery,
    ),
    row(
        "client-killed",
        "returned calls are kept, the one in flight is whole or absent, its leases go; others wait \
         no longer than the limit",
        clients::killed,
    ),
    row(
        "buffered-client-killed",
        "a buffered client that never calls fsync: every call that returned is kept, the one in flight is whole \
         or absent",
        clients::buffered_killed,
    ),
    row(
        "buffered-daemon-killed",
        "as daemon-killed, of a buffered client that never calls fsync: what returned is there",
        killed::buffered_daemon,
    ),
    row(
        "buffered-recovery-killed",
        "as recovery-killed, of a buffered client that never calls fsync",
        killed::buffered_recovery,
    ),
    row(
        "client-stopped",
        "inside a call, with leases: cut off at the limit; what it does after that does not count, \
         and it is told",
        clients::stopped,
    ),
    row(
        "number-reused",
        "the next process with the number of a client that was killed is itself: what the other one \
         had goes, what it is told of is kept; nothing is decided by numbers",
        clients::numbers,
    ),
    row(
        "call-goes-on",
        "blocks that others free, and log space, are not given out while a call can see them; then \
         they come back",
        open_calls::calls,
    ),
    row(
        "frozen",
        "while a volume is frozen for a backup nothing moves, all that had returned is there, and a call \
         that was inside is there as a whole; then all goes on, and who read it goes by leases",
        freezes::frozen,
    ),
    row(
        "client-limits",
        "a client with few descriptors or little memory: it is told (or ended, where memory cannot be \
         had at all); what returned is kept, the others go on",
        clients::limits,
    ),
    row(
        "request-refused",
        "the n-th open, map, allocation or thread of the daemon fails, once and for ever after, for \
         every n: refused by name or served; what returned is there",
        system_limits::requests,
    ),
    row(
        "limits",
        "few descriptors, little memory: errno, no damage",
        system_limits::limits,
    ),
    row(
        "clock-set-back",
        "nothing depends on it",
        system_limits::clock,
    ),
    row(
        "lower-read",
        "EIO on the n-th read of flash or disk, once and for ever after: EIO to who reads that file, named \
         in status, else nothing; what cannot be read does not move; read again it is as before",
        failures::reads,
    ),
    row(
        "lower-write",
        "the n-th write, flush or discard fails while blocks move: the device is named, what was to move \
         stays, also if all that was not flushed is lost; later it moves",
        failures::writes,
    ),
    row(
        "lower-full",
        "flash and disk are full: what does not fit stays in NVM; when half is removed there is room",
        failures::full,
    ),
    row(
        "lower-moved",
        "who has read a file reads it where it is now, and not where it was, which others have written",
        failures::moved,
    ),
    row(
        "lower-held",
        "a zone is not erased while a call can see it; then it is",
        failures::held,
    ),
    row(
        "lower-rot",
        "a block below NVM is not what was written: EIO there, named in status, never wrong data; written \
         again it is whole",
        failures::rot,
    ),
    row(
        "rot-lower-sums",
        "a checksum of a block below NVM: as for the block",
        zones::sums,
    ),
    row(
        "rot-inodes-below",
        "a block of inodes below NVM: fsck names them, EIO on them only, the block named in status; repair \
         keeps those that are whole",
        inodes::rot,
    ),
    row("rot-lower-bitmap", VOLUME, zones::bitmaps),
    row(
        "rot-zone-table",
        "fsck tells; the start is refused with the structure's name; repair makes it again; files in that \
         zone may be lost, repair names them; the rest is as before",
        zones::entries,
    ),
    row(
        "devices",
        "a device below NVM missing, short, swapped, of another volume, older, without a label: the start is \
         refused by name, nothing is written; one of two labels is enough",
        devices::labels,
    ),
    row(
        "device-gone",
        "a device below NVM missing, blank, or older, and the volume started without it: EIO for what it holds and for nothing \
         else; nothing is written to it; what is new is right; when it is back all is as before",
        missing::without,
    ),
    row(
        "devices-killed",
        "the daemon is killed between the steps of adding, emptying and removing a device: nothing is lost, the \
         device is the volume's or is not, and doing the rest leaves what was asked for",
        device_changes::killed,
    ),
    row(
        "first-device-killed",
        "the same while the first device below NVM comes to a volume with NVM alone and files move there",
        device_changes::first_killed,
    ),
];
