//! One log that the last daemon left, on its way through recovery.

use crate::error::{RecoveryError, Result};
use rustix::fs::FallocateFlags;
use shale_clients::credentials::{Credentials, groups_of_user};
use shale_clients::log_reader::{FdLogReader, set_word};
use shale_digest::{DigestStats, LogSource, RunSet};
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::{END_AT, LogSlot, RING_AT, end};
use shale_format::record::RecordHeader;
use shale_format::{Ino, LogPos};
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// One log on its way.
pub(crate) struct RecoveredLog {
    pub(crate) number: u32,
    pub(crate) slot: LogSlot,
    pub(crate) path: PathBuf,
    pub(crate) map: Option<FdLogReader>,
    /// Who wrote it; `None`: the front end in the daemon's own process, or root.
    pub(crate) writer: Option<Credentials>,
    /// Blocks that its steal records name, as long as no file has them.
    pub(crate) taken: RunSet,
    /// Inodes that its records name.
    pub(crate) named: HashSet<Ino>,
    /// Where its records end.
    pub(crate) head: LogPos,
    /// Bytes that its records may have reserved, if somebody else than root wrote it.
    pub(crate) credit: u64,
    /// It lies in NVM, or in memory that a checkpoint covers: a power cut leaves it.
    pub(crate) survives: bool,
    pub(crate) outcome: Outcome,
}

/// How the digest of a log ended.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) stats: DigestStats,
    pub(crate) end: u64,
    pub(crate) problem: Option<String>,
    /// A record was refused: the file is put aside.
    pub(crate) refused: bool,
    /// It found too little space.
    pub(crate) short: bool,
    /// It cannot be digested now: slot and file stay.
    pub(crate) keep: bool,
}

impl RecoveredLog {
    /// A log of which nothing is read yet. `credit`: bytes that its records may have reserved, if somebody else
    /// than root wrote it.
    pub(crate) fn unread(
        number: u32,
        slot: LogSlot,
        path: PathBuf,
        map: Option<FdLogReader>,
        credit: u64,
    ) -> Self {
        Self {
            number,
            path,
            map,
            writer: writer(&slot),
            credit,
            taken: RunSet::default(),
            named: HashSet::new(),
            survives: true,
            head: LogPos(slot.digested),
            outcome: Outcome {
                end: slot.digested,
                ..Outcome::default()
            },
            slot,
        }
    }

    /// Tells a client that is still there which of its records count: those before a refused
    /// one, and what is not digested yet but kept.
    pub(crate) fn tell_end(&self) {
        if let Some(map) = &self.map {
            let counts = match self.outcome.refused {
                true => self.outcome.end,
                false => self.head.0,
            };
            set_word(map.fd(), END_AT, end::at(counts));
        }
    }

    /// Puts bytes of the log where they were in its ring, from position `from` on.
    pub(crate) fn put(&self, from: LogPos, bytes: &[u8]) -> Result<()> {
        let Some(map) = &self.map else { return Ok(()) };
        let (ring, at) = (self.slot.ring_bytes, from.0 % self.slot.ring_bytes);
        let (to_end, from_begin) = bytes.split_at(bytes.len().min((ring - at) as usize));
        for (at, mut bytes) in [(at, to_end), (0, from_begin)] {
            let mut at = RING_AT as u64 + at;
            while !bytes.is_empty() {
                let written = rustix::io::pwrite(map.fd(), bytes, at);
                let written =
                    written.map_err(|e| RecoveryError::file(&self.path, "write it", e))?;
                (at, bytes) = (at + written as u64, &bytes[written..]);
            }
        }
        Ok(())
    }

    pub(crate) fn source<'a>(&self, map: &'a FdLogReader) -> LogSource<'a> {
        LogSource {
            bytes: map,
            salt: self.slot.salt,
            ring_bytes: self.slot.ring_bytes,
            slot: self.number,
        }
    }
}

/// Gives back the space of a log that was removed, but for its header: its client may have it mapped for
/// long, and looks there for where it ends. A file that has another name is somebody's copy, and keeps its bytes.
pub fn empty(file: BorrowedFd<'_>, ring_bytes: u64) {
    if rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0) {
        return;
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // It only saves memory; a file system that cannot do it keeps the bytes.
    let _ = rustix::fs::fallocate(file, mode, RING_AT as u64, ring_bytes);
}

/// Makes the end of a kept log final, and gives back the space of its file, but for header and
/// `tail..end`.
pub(crate) fn shrink(map: &FdLogReader, ring_bytes: u64, tail: u64, end: u64) {
    let block = BLOCK_BYTES as u64;
    let ring = RING_AT as u64;
    if end - tail < ring_bytes {
        // A record that lacked only its stolen blocks would be whole as soon as they hold the
        // same bytes again: when its request is sent again, and done.
        let nothing = [0; RecordHeader::BYTES];
        if let Err(e) = rustix::io::pwrite(map.fd(), &nothing, ring + end % ring_bytes) {
            tracing::error!("a log that is kept cannot be ended: {e}");
        }
    }
    let (first, behind) = (tail % ring_bytes / block * block, end % ring_bytes);
    // The block in which the log ends stays: a scan looks there.
    let behind = (behind / block + 1) * block;
    let holes = match (end - tail).cmp(&(ring_bytes - 2 * block)) {
        std::cmp::Ordering::Greater => vec![],
        _ if tail % ring_bytes <= end % ring_bytes => vec![(0, first), (behind, ring_bytes)],
        _ => vec![(behind, first)],
    };
    for (from, to) in holes {
        if to > from {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // It only saves memory; a file system that cannot do it keeps the bytes.
            let _ = rustix::fs::fallocate(map.fd(), mode, ring + from, to - from);
        }
    }
}

/// Who wrote a log whose records are judged; `None`: the front end, whose log names its connection, or root, who may do everything.
fn writer(slot: &LogSlot) -> Option<Credentials> {
    let foreign = slot.connection == 0 && slot.uid != 0;
    foreign.then(|| Credentials {
        uid: slot.uid,
        groups: groups_of_user(slot.uid),
    })
}
