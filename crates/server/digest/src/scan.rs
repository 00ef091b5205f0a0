//! Scan: the records of one chunk, copied out of the log and decoded.
//!
//! A chunk holds whole transactions. A record that moves a part of a file stands in a
//! chunk of its own. In recovery the data of stolen blocks is checked here, before any
//! later record is looked at: after a power cut it may not have arrived, and then the
//! log ends before that record.

use super::coalesce::shifts;
use super::estimate::{FIXED_BYTES, SLOT_BYTES};
use super::item::{Item, Refused};
use shale_format::checksum::Crc32c;
use shale_format::dirent::kind_of_mode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::record::{RenameBody, flag};
use shale_format::{BlockAddr, Ino, LogPos};
use shale_oplog::{LogReader, Op, Record, Scan};
use shale_sys::mutants;
use shale_volume::{Run, View};
use std::collections::HashSet;

/// Unit in which a record says what it has reserved.
const RESERVE_BYTES: u64 = 64;
const S_IFDIR: u32 = 0o040_000;

/// A client's log file as the daemon reads it.
#[derive(Clone, Copy)]
pub struct LogSource<'a> {
    /// The file: header and ring.
    pub bytes: &'a dyn LogReader,
    /// Salt of the records' checksums, from the log table.
    pub salt: u64,
    /// Bytes of the ring, from the log table.
    pub ring_bytes: u64,
    /// Slot in the log table.
    pub slot: u32,
}

/// How far a log is to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The client is there and has published so far: every record
    /// before that must be valid, and stolen blocks are durable.
    Live,
    /// After a crash: the log ends at the first record that is not valid, or whose
    /// stolen blocks do not have the data they were written with.
    Recovery,
}

/// Bounds of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most records, if they are in several transactions.
    pub records_max: usize,
    /// Most bytes of names and values held in memory, likewise.
    pub bytes_max: usize,
    /// Of a client that is there, no more than a ring's bytes divided by this, likewise: log space comes back
    /// with each chunk, and a client that is slowed from 60% on is not stopped meanwhile.
    pub ring_parts: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            records_max: 64 << 10,
            bytes_max: 32 << 20,
            ring_parts: 4,
        }
    }
}

/// Where to stop reading a chunk, at the end of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    /// Records.
    pub records: usize,
    /// Bytes of names and values.
    pub bytes: usize,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the volume that the records have reserved.
    pub reserved: u64,
    /// Journal that the records need, as far as they tell by themselves.
    pub journal_bytes: u64,
}

#[cfg(test)]
impl BatchLimits {
    /// Everything there is.
    pub const ANY: BatchLimits = BatchLimits {
        records: usize::MAX,
        bytes: usize::MAX,
        log_bytes: u64::MAX,
        reserved: u64::MAX,
        journal_bytes: u64::MAX,
    };
}

/// What the records read so far come to.
#[derive(Default)]
struct Sum {
    bytes: usize,
    reserved: u64,
    /// Inodes that change, with new ones.
    inodes: HashSet<u64>,
    /// Of these, new ones: most of them lie in new blocks, which need no journal.
    fresh: u64,
}

impl Sum {
    fn add(&mut self, record: &Record, op: &Op) {
        self.bytes += record.payload().len();
        let header = &record.header;
        self.reserved += u64::from(header.reserve) * RESERVE_BYTES;
        self.inodes.insert(header.ino);
        match op {
            Op::Create { .. } => {
                self.fresh += u64::from(self.inodes.insert(header.offset));
            }
            Op::Link { .. } | Op::Unlink { .. } => drop(self.inodes.insert(header.offset)),
            Op::Rename { body, .. } => {
                self.inodes
                    .extend([header.offset, body.new_parent, body.replaced]);
            }
            _ => {}
        }
    }

    fn is_full(&self, records: usize, most: &BatchLimits) -> bool {
        let slots = self.inodes.len() as u64 - self.fresh;
        records >= most.records
            || self.bytes >= most.bytes
            || self.reserved >= most.reserved
            || FIXED_BYTES + slots * SLOT_BYTES >= most.journal_bytes
    }
}

/// The records of one chunk.
pub(crate) struct RecordBatch {
    pub items: Vec<Item>,
    /// Behind what was read.
    pub head: LogPos,
    /// The log, or the part of it that was asked for, ends at `head`.
    pub ended: bool,
    /// The record at which reading stopped because it must not be digested.
    pub refused: Option<Refused>,
}

impl RecordBatch {
    /// Number of records of the longest run of whole transactions with at most `n`
    /// records; of the first transaction if that is longer. 0 if there is none.
    pub fn whole(&self, n: usize) -> usize {
        let n = n.min(self.items.len());
        if mutants::is_on("scan-chain") {
            return n;
        }
        let before = self.items[..n].iter().rposition(|i| !i.more());
        let longer = || self.items.iter().position(|i| !i.more());
        before.or_else(longer).map_or(0, |i| i + 1)
    }

    /// Whether a record brings a directory into another one.
    pub fn moves_directories(&self) -> bool {
        self.items.iter().any(|item| match &item.op {
            Op::Rename { dir, body, .. } => body.new_parent != dir.0 && moves_one(item, body),
            _ => false,
        })
    }

    /// Position behind the first `n` records.
    pub fn end(&self, n: usize, from: LogPos) -> LogPos {
        if n == self.items.len() && self.ended {
            return self.head;
        }
        n.checked_sub(1).map_or(from, |i| self.items[i].end())
    }
}

/// Whether the blocks hold the bytes that the record was written with. Blocks that
/// cannot be read are left to the plan, which refuses the record.
fn steal_is_whole(view: &View, addr: BlockAddr, blocks: u32, expected: u32) -> bool {
    let mut crc = Crc32c::new();
    let mut block = [0; BLOCK_BYTES];
    for n in 0..u64::from(blocks) {
        if view.read_blocks(addr.plus(n), &mut block).is_err() {
            return true;
        }
        crc.update(&block);
    }
    crc.finish() == expected
}

fn scan<'a>(
    log: &LogSource<'a>,
    view: &'a View,
    from: LogPos,
    limit: LogPos,
    mode: Mode,
) -> Scan<'a> {
    let scan = Scan::new(log.bytes, log.salt, log.ring_bytes, from).until(limit);
    match mode {
        Mode::Live => scan,
        Mode::Recovery => {
            scan.check_steals(move |_, addr, blocks, crc| steal_is_whole(view, addr, blocks, crc))
        }
    }
}

fn moves_one(item: &Item, body: &RenameBody) -> bool {
    let directory = |kind| kind == kind_of_mode(S_IFDIR);
    item.header.flags & flag::DIRECTORY != 0
        || directory(body.kind)
        || directory(body.replaced_kind)
}

fn shifting(op: &Op) -> bool {
    matches!(op, Op::Fallocate { mode, .. } if shifts(*mode))
}

/// Reads the next chunk.
pub(crate) fn gather(
    log: &LogSource<'_>,
    view: &View,
    from: LogPos,
    limit: LogPos,
    mode: Mode,
    most: &BatchLimits,
) -> RecordBatch {
    let mut scan = scan(log, view, from, limit, mode);
    let mut batch = RecordBatch {
        items: Vec::new(),
        head: from,
        ended: false,
        refused: None,
    };
    let (mut sum, mut whole) = (Sum::default(), 0);
    loop {
        let full = sum.is_full(batch.items.len(), most) || batch.head.0 - from.0 >= most.log_bytes;
        if full && whole == batch.items.len() && whole > 0 {
            return batch;
        }
        let Some(record) = scan.next() else {
            batch.ended = true;
            batch.head = scan.head();
            if mode == Mode::Live && batch.head < limit {
                batch.refused = Some(no_record(batch.head));
            }
            return batch;
        };
        let op = match decode(&record) {
            Ok(op) => op,
            Err(refused) => {
                batch.items.truncate(whole);
                batch.refused = Some(refused);
                return batch;
            }
        };
        let alone = shifting(&op) && !record.more() && whole == batch.items.len();
        if alone && whole > 0 {
            return batch;
        }
        sum.add(&record, &op);
        batch.head = record.end();
        let header = record.header;
        batch.items.push(Item { header, op });
        if !record.more() {
            whole = batch.items.len();
        }
        if alone {
            return batch;
        }
    }
}

fn decode(record: &Record) -> Result<Op, Refused> {
    Op::decode(record).map_err(|e| Refused {
        pos: record.pos(),
        kind: Some(record.kind()),
        ino: Ino(record.header.ino),
        why: e.to_string(),
    })
}

fn no_record(pos: LogPos) -> Refused {
    Refused {
        pos,
        kind: None,
        ino: Ino::NONE,
        why: "no valid record where the client says that there is one".into(),
    }
}

/// What a log that was left by a crash holds.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Where it ends.
    pub head: LogPos,
    /// Records, pads left out.
    pub records: u64,
    /// Blocks that its steal records name, in order. Recovery takes those that are free
    /// from the allocator of the volume before it allocates anything for any log.
    pub stolen: Vec<Run>,
    /// Inodes that its records name.
    pub named: HashSet<Ino>,
    /// Bytes of space that its records have reserved.
    pub reserve_bytes: u64,
}

/// Reads a log that was left by a crash, from its digested position on. Nothing changes.
pub fn survey(log: &LogSource<'_>, view: &View, from: LogPos) -> Survey {
    let mut found = Survey::default();
    let mut scan = scan(log, view, from, LogPos(u64::MAX), Mode::Recovery);
    for record in &mut scan {
        found.records += 1;
        found.reserve_bytes += u64::from(record.header.reserve) * RESERVE_BYTES;
        found.named.insert(Ino(record.header.ino));
        let (second, third) = match Op::decode(&record) {
            Ok(Op::Steal { addr, blocks, .. }) => {
                found.stolen.push(Run {
                    addr,
                    len: blocks.into(),
                });
                continue;
            }
            Ok(Op::Create { ino, .. } | Op::Link { ino, .. } | Op::Unlink { ino, .. }) => {
                (ino, Ino::NONE)
            }
            Ok(Op::Rename { ino, body, .. }) => (ino, Ino(body.replaced)),
            _ => continue,
        };
        found.named.extend([second, third]);
    }
    found.head = scan.head();
    found
}
