//! The copy in NVM of a log that is appended to in memory: what makes the log of a buffered client survive a power cut (HiNFS §3;
//! DESIGN §10).
//!
//! Both are logs of the same length, and a record has the same place in both. Records are appended, read and digested in memory.
//! [`HardenedCopy::harden`] copies what is published there and not yet in NVM, so what lies in NVM is at any time what a log that is appended to
//! in NVM would be after a power cut: records in their order, up to some point. What was digested from memory before anybody waited for it is never
//! copied.
//!
//! *Whole blocks* are not copied into the log but into free blocks of the volume, to be linked there by a digest: in the place of a write the log in NVM
//! has a transaction of up to three records, the last of which fills the place, so that a transaction ends at the same positions in both logs. Which
//! of both a digest reads it says (the daemon page): of blocks named by a record that was digested from memory the client hears that they are free.
//!
//! Invariants: every record between the digested position and `hardened` lies in NVM as a whole; one behind it is either not there, or
//! is whole, or is found to be torn. Only the client that appends copies, one thread at a time.

use crate::append::Writer;
use crate::encode::{self, Part, payload_at};
use crate::log::Log;
use crate::write_record;
use parking_lot::{Mutex, MutexGuard};
use shale_format::limits::BLOCK_BYTES;
use shale_format::record::{Kind, RecordHeader, StealBody, flag};
use shale_format::{BlockAddr, Ino, LogPos};
use shale_nvm::{LINE_BYTES, Map, MappedRegion};
use shale_persist::{Hardened, Published};
use shale_sys::mutants;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LINE: u64 = LINE_BYTES as u64;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Whole blocks between two parts of blocks from which on they are not copied into the log.
const NAMED_BLOCKS_MIN: u64 = 4;

/// See the module.
pub struct HardenedCopy {
    memory: Arc<Log>,
    nvm: Log,
    /// Held while records are copied, and while their space in memory is given to new ones.
    copying: Mutex<()>,
    hardened: AtomicU64,
    /// Bytes of records that were copied, without blocks of the volume.
    copied: AtomicU64,
}

/// While it lives nothing is copied.
#[must_use]
pub struct NotCopying<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, ()>);

impl HardenedCopy {
    /// The copy of the log of `writer` in `nvm`, a log of the same salt and length that was made with it and holds no record.
    /// `None`: it is of another length or salt.
    pub fn new(writer: &Writer, nvm: Log) -> Option<Self> {
        let memory = writer.log().clone();
        let same = memory.ring_bytes() == nvm.ring_bytes() && memory.salt() == nvm.salt();
        same.then(|| Self {
            memory,
            nvm,
            copying: Mutex::new(()),
            hardened: AtomicU64::new(writer.published().pos().0),
            copied: AtomicU64::new(0),
        })
    }

    /// The mapping of the copy: what it counts is what is written to NVM for this log.
    pub fn map(&self) -> &Arc<Map> {
        self.nvm.map()
    }

    /// Every record before this survives a power cut, also where the volume has it already.
    #[inline]
    pub fn hardened(&self) -> LogPos {
        LogPos(self.hardened.load(Ordering::Acquire))
    }

    /// Bytes of records that were copied so far, without blocks of the volume that they name.
    pub fn copied_bytes(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Waits until nobody copies, and keeps others from it: for who gives the space of records to new ones.
    pub fn pause(&self) -> NotCopying<'_> {
        NotCopying(self.copying.lock())
    }

    /// Returns when every record before `upto` survives a power cut; what is `digested` does already: asked while nobody can give its space to new
    /// records. One fence, and another one where data
    /// of more than [`CHECKSUM_BYTES_MAX`](shale_format::limits::CHECKSUM_BYTES_MAX) bytes is among it, or was written to blocks of the volume. A power cut meanwhile leaves some of the
    /// records, in their order. `blocks`: free ones, for whole blocks of data; none: all is copied. Gives also the blocks that the
    /// copy names now.
    pub fn harden(
        &self,
        digested: impl FnOnce() -> LogPos,
        upto: Published,
        blocks: Option<&dyn FreeBlocks>,
    ) -> (Hardened, Vec<Named>) {
        let upto = upto.pos().0;
        let copying = self.copying.lock();
        let from = self.hardened().0.max(digested().0);
        let mut named = Vec::new();
        if from < upto {
            named = self.copy(from, upto, blocks);
            let whole: u64 = named.iter().map(|named| named.blocks * BLOCK).sum();
            self.copied
                .fetch_add(upto - from - whole, Ordering::Relaxed);
        }
        let hardened = upto.max(from);
        self.hardened.store(hardened, Ordering::Release);
        drop(copying);
        (Hardened::copied(LogPos(hardened)), named)
    }

    /// As records are appended in NVM: headers that speak of data which no checksum covers come behind a fence of their own.
    fn copy(&self, from: u64, upto: u64, blocks: Option<&dyn FreeBlocks>) -> Vec<Named> {
        let fence = || {
            if !mutants::is_on("copy-fence") {
                self.nvm.view().fence();
            }
        };
        let from = match mutants::is_on("fsync-alone") {
            true => self.pad_to_last(from, upto),
            false => from,
        };
        let late = self.late_records(from, upto, blocks);
        let mut at = from;
        for record in &late {
            self.copy_lines(at, record.header.pos);
            at = match &record.named {
                None => record.header.pos + LINE,
                Some(named) => {
                    self.write_blocks(record, named, blocks);
                    record.end()
                }
            };
        }
        self.copy_lines(at, upto);
        if mutants::is_on("copy-at-once") {
            late.iter().for_each(|record| self.write_late(record));
            fence();
            return Vec::new();
        }
        fence();
        if !late.is_empty() {
            late.iter().for_each(|record| self.write_late(record));
            fence();
        }
        late.into_iter().filter_map(|record| record.named).collect()
    }

    /// Records with data that no checksum covers, and those whose whole blocks go to blocks of the volume.
    fn late_records(
        &self,
        from: u64,
        upto: u64,
        blocks: Option<&dyn FreeBlocks>,
    ) -> Vec<LateRecord> {
        let mut found = Vec::new();
        if upto - from <= BLOCK {
            return found;
        }
        for header in self.headers(from, upto) {
            let named = blocks.and_then(|blocks| named_blocks(&header, blocks));
            // Blocks that a record names were durable before it was published.
            let late = header.flags & flag::FENCED != 0 && header.kind() != Kind::Steal;
            if named.is_some() || late {
                found.push(LateRecord { header, named });
            }
        }
        found
    }

    /// The headers of the records in a range, up to one that is none: the program has written into its log, and what comes there counts nowhere.
    fn headers(&self, from: u64, upto: u64) -> impl Iterator<Item = RecordHeader> {
        let mut at = from;
        std::iter::from_fn(move || {
            if at >= upto {
                return None;
            }
            let place = self.memory.place(at);
            let header = self
                .memory
                .view()
                .load_array::<{ RecordHeader::BYTES }>(place);
            let ring_left = self.memory.ring_bytes() - at % self.memory.ring_bytes();
            let header = RecordHeader::decode(&header, at, ring_left as usize)?;
            at += u64::from(header.bytes);
            (at <= upto).then_some(header)
        })
    }

    /// A deliberate mistake: a record that does nothing in the place of all but the last transaction. Gives where that begins.
    fn pad_to_last(&self, from: u64, upto: u64) -> u64 {
        let (mut last, mut more) = (from, true);
        for header in self.headers(from, upto) {
            last = if more { last } else { header.pos };
            more = header.flags & flag::MORE != 0;
        }
        let ring = self.memory.ring_bytes();
        if from < last && from / ring == (last - 1) / ring {
            write_record::pad(&self.nvm, from, last);
            return last;
        }
        from
    }

    fn write_blocks(&self, record: &LateRecord, named: &Named, blocks: Option<&dyn FreeBlocks>) {
        let Some(blocks) = blocks else { return };
        let (head, whole, _) = parts_of(&record.header);
        let from = self.memory.place(payload_at(&record.header).0 + head);
        let to = named.addr.byte() as usize;
        blocks
            .region()
            .copy_nt_from(self.memory.view(), from, to, whole as usize);
    }

    /// Writes the header of a record whose data is durable; or, in the place of a record, what is before its whole blocks, where these are, and
    /// what is behind them: one transaction, as long as the record is.
    fn write_late(&self, record: &LateRecord) {
        let header = &record.header;
        let Some(named) = &record.named else {
            return self.copy_lines(header.pos, header.pos + LINE);
        };
        let (head, whole, tail) = parts_of(header);
        let (mut first, mut last) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        let (first, last) = (&mut first[..head as usize], &mut last[..tail as usize]);
        let payload = payload_at(header);
        self.memory.read(payload, 0, first);
        self.memory.read(payload, head + whole, last);
        let (ino, at) = (Ino(header.ino), header.offset + head);
        let body = StealBody {
            addr: named.addr.raw(),
            blocks: (whole / BLOCK) as u32,
            data_crc: 0,
            end: at + whole,
        };
        let parts = [
            (head > 0).then(|| encode::write(ino, header.offset, first)),
            Some(encode::steal(ino, at, body).flags(flag::FENCED)),
            (tail > 0).then(|| encode::write(ino, at + whole, last)),
        ];
        let mut parts: Vec<Part<'_>> = parts.into_iter().flatten().collect();
        let (mut pos, count) = (header.pos, parts.len());
        for (n, part) in parts.iter_mut().enumerate() {
            let of = &mut part.header;
            of.flags |= header.flags & !flag::FENCED;
            (of.pos, of.time_ns) = (pos, header.time_ns);
            (of.request, of.lease) = (header.request, header.lease);
            of.reserve = if n == 0 { header.reserve } else { 0 };
            if n + 1 < count {
                of.flags |= flag::MORE;
            } else {
                // The last one has the rest of the place.
                of.bytes = (record.end() - pos) as u32;
            }
            write_record::covered(&self.nvm, part);
            pos += u64::from(part.header.bytes);
        }
        assert_eq!(pos, record.end(), "records in the place of one");
    }

    fn copy_lines(&self, mut from: u64, upto: u64) {
        let ring = self.memory.ring_bytes();
        while from < upto {
            let bytes = (upto - from).min(ring - from % ring);
            let at = self.memory.place(from);
            let source = self.memory.view();
            self.nvm.view().copy_nt_from(source, at, at, bytes as usize);
            from += bytes;
        }
    }
}

/// Free blocks of the volume that are the client's.
pub trait FreeBlocks {
    /// Takes `blocks` blocks that follow one another, if there are.
    fn take(&self, blocks: u64) -> Option<BlockAddr>;
    /// The NVM that they lie in.
    fn region(&self) -> &MappedRegion;
}

/// Blocks that a record in NVM names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where the record ends: once the log is digested up to there, they are a file's, or nobody's.
    pub end: LogPos,
    /// The first block.
    pub addr: BlockAddr,
    /// How many.
    pub blocks: u64,
}

/// A record of which something is written behind a fence.
struct LateRecord {
    header: RecordHeader,
    /// Where its whole blocks go.
    named: Option<Named>,
}

impl LateRecord {
    fn end(&self) -> u64 {
        self.header.pos + u64::from(self.header.bytes)
    }
}

/// Bytes of a write before its first whole block, of whole blocks, and behind them.
fn parts_of(header: &RecordHeader) -> (u64, u64, u64) {
    let bytes = u64::from(header.payload_bytes);
    let head = (header.offset.next_multiple_of(BLOCK) - header.offset).min(bytes);
    let whole = (bytes - head) / BLOCK * BLOCK;
    (head, whole, bytes - head - whole)
}

/// Takes blocks for the whole blocks of a write, where that is worth it: a few blocks between two parts would only shatter the file.
fn named_blocks(header: &RecordHeader, blocks: &dyn FreeBlocks) -> Option<Named> {
    if header.kind() != Kind::Write {
        return None;
    }
    let (head, whole, tail) = parts_of(header);
    let count = whole / BLOCK;
    let enough = match head > 0 && tail > 0 {
        true => NAMED_BLOCKS_MIN,
        false => 1,
    };
    if count < enough {
        return None;
    }
    let addr = blocks.take(count)?;
    Some(Named {
        end: LogPos(header.pos + u64::from(header.bytes)),
        addr,
        blocks: count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::PublishedWord;
    use shale_format::log::{LOG_MAGIC, LogHeader, RING_AT};

    /// What was digested is asked while nobody can give the space of records to new ones: a position from before could be one whose bytes are
    /// those of newer records by now.
    #[test]
    fn the_digested_position_is_asked_under_the_lock() {
        const RING: u64 = 8 << 10;
        let log = || {
            let map = Map::anonymous(RING_AT + RING as usize).unwrap();
            let header = LogHeader {
                magic: LOG_MAGIC,
                salt: 7,
                ring_bytes: RING,
                ..zerocopy::FromZeros::new_zeroed()
            };
            Arc::new(Log::with_header(Arc::new(map), header).unwrap())
        };
        let word = PublishedWord {
            map: Arc::new(Map::anonymous(4096).unwrap()),
            offset: 0,
        };
        let writer = Writer::new(log(), LogPos(0), word).unwrap();
        let nvm = Arc::into_inner(log()).unwrap();
        let copy = HardenedCopy::new(&writer, nvm).unwrap();
        let mut part = encode::write(Ino(20), 0, b"data");
        let mut permit = writer.try_reserve(part.bytes()).unwrap();
        writer.append(&mut permit, &mut part);
        let asked = || {
            assert!(copy.copying.try_lock().is_none(), "it is held");
            LogPos(0)
        };
        let (hardened, _) = copy.harden(asked, writer.published(), None);
        assert_eq!(hardened.pos(), writer.published().pos());
        assert!(copy.copying.try_lock().is_some());
    }
}
