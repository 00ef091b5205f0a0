//! Reads a log's records in order, trusting nothing.
//!
//! The writer may be hostile and storing at this moment. So each header, body and name
//! is copied to private memory first and checked there; data of writes is checked
//! where it is (by private pieces) and not kept, since the code that copies it later copies
//! bytes that are the writer's own either way.
//!
//! The first record that is not valid ends the log: there is no other sign of the
//! end. A chain whose last record is missing is not there at all, nor is one that no permit
//! is for: the digester does a chain in one piece, so its length bounds that work.

use crate::append::CHAIN_RECORDS_MAX;
use crate::encode::payload_at;
use crate::log::{Log, place};
use crate::ring::PERMIT_PART;
use crate::source::{LogReader, Window};
use shale_format::checksum::Crc32c;
use shale_format::record::{Kind, RecordHeader, StealBody, flag};
use shale_format::{BlockAddr, LogPos};
use shale_sys::mutants;
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of data that are copied and checked at once: they stay in the first-level cache.
const CHUNK_BYTES: usize = 16 << 10;

/// One valid record, in private memory.
#[derive(Clone, Debug)]
pub struct Record {
    /// Header.
    pub header: RecordHeader,
    /// Body, then the payload unless the record is a `Write`.
    bytes: Box<[u8]>,
}

impl Record {
    /// Position of the record.
    pub fn pos(&self) -> LogPos {
        LogPos(self.header.pos)
    }

    /// Position behind the record.
    pub fn end(&self) -> LogPos {
        LogPos(self.header.pos + u64::from(self.header.bytes))
    }

    /// What it does.
    pub fn kind(&self) -> Kind {
        self.header.kind()
    }

    /// Whether the transaction goes on in the next record.
    pub fn more(&self) -> bool {
        self.header.flags & flag::MORE != 0
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[..self.header.body_bytes as usize]
    }

    /// Names and values; empty for a `Write`, whose data stays in the log.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.header.body_bytes as usize..]
    }

    /// Position of the payload's first byte, for [`Log::read`].
    pub fn payload_at(&self) -> LogPos {
        payload_at(&self.header)
    }
}

/// What a scan asks about each stolen run whose record says that its checksum counts
/// (flag `FENCED` off): record's position, first block, number of blocks, CRC-32C.
/// `false`: the blocks did not survive, so the log ends before that record.
pub type StealCheck<'a> = dyn FnMut(LogPos, BlockAddr, u32, u32) -> bool + 'a;

/// Iterator over the valid records of a log. Pads are passed over.
pub struct Scan<'a> {
    window: Window<'a>,
    salt: u64,
    ring_bytes: u64,
    limit: u64,
    /// Behind the last record that counts.
    head: u64,
    /// Records of the present chain that were not taken yet.
    ready: VecDeque<Record>,
    ended: bool,
    chunk: Box<[u8]>,
    steals: Option<Box<StealCheck<'a>>>,
}

impl<'a> Scan<'a> {
    /// Scans a log file from `from`, the position of a record or of the log's end.
    /// `salt` and `ring_bytes` come from where the caller trusts them.
    ///
    /// # Panics
    /// If the log file was shorter than the ring needs when it was opened.
    pub fn new(log: &'a dyn LogReader, salt: u64, ring_bytes: u64, from: LogPos) -> Self {
        assert!(
            log.bytes() >= place(ring_bytes, ring_bytes - 1),
            "a log file of {} bytes cannot hold a ring of {ring_bytes}",
            log.bytes()
        );
        Self {
            window: Window::new(log),
            salt,
            ring_bytes,
            limit: u64::MAX,
            head: from.0,
            ready: VecDeque::new(),
            ended: false,
            chunk: vec![0; CHUNK_BYTES].into(),
            steals: None,
        }
    }

    /// Scans an open log from `from`.
    pub fn of(log: &'a Log, from: LogPos) -> Self {
        Self::new(log.view(), log.salt(), log.ring_bytes(), from)
    }

    /// Ends the scan at `limit` (a live client's `published`): nothing behind is looked at.
    pub fn until(mut self, limit: LogPos) -> Self {
        self.limit = limit.0;
        self
    }

    /// Has stolen runs checked as well (recovery; a live client has fenced them).
    pub fn check_steals(
        mut self,
        check: impl FnMut(LogPos, BlockAddr, u32, u32) -> bool + 'a,
    ) -> Self {
        self.steals = Some(Box::new(check));
        self
    }

    /// Behind the last whole transaction that was found: where the log ends, once the
    /// iterator has ended.
    pub fn head(&self) -> LogPos {
        LogPos(self.head)
    }

    /// Reads the next whole transaction into `ready`.
    fn read_chain(&mut self) {
        let mut at = self.head;
        while let Some(record) = self.read(at) {
            at = record.end().0;
            if record.kind() == Kind::Pad {
                if !self.ready.is_empty() || record.more() {
                    break;
                }
                self.head = at;
                continue;
            }
            let too_long = at - self.head > self.ring_bytes / PERMIT_PART;
            if too_long && !mutants::is_on("chain-long") {
                break;
            }
            let more = record.more();
            self.ready.push_back(record);
            if !more {
                self.head = at;
                return;
            }
            if self.ready.len() == CHAIN_RECORDS_MAX {
                break;
            }
        }
        if mutants::is_on("scan-chain") {
            self.head = at;
        } else {
            self.ready.clear();
        }
        self.ended = true;
    }

    /// The record at `pos`, if there is a valid one.
    fn read(&mut self, pos: u64) -> Option<Record> {
        if pos >= self.limit {
            return None;
        }
        let ring_left = self.ring_bytes - pos % self.ring_bytes;
        let at = place(self.ring_bytes, pos);
        let mut line = [0; RecordHeader::BYTES];
        if !self.window.load(at, &mut line) {
            return None;
        }
        let mut due = pos;
        if mutants::is_on("record-position") {
            due = RecordHeader::read_from_bytes(&line).ok()?.pos;
        }
        let header = RecordHeader::decode(&line, due, ring_left as usize)?;
        if u64::from(header.bytes) > self.limit - pos {
            return None;
        }
        if header.kind() == Kind::Pad {
            let valid = header.checksum(self.salt, &[], &[]) == header.crc;
            let bytes = Box::default();
            return valid.then_some(Record { header, bytes });
        }
        let mut crc = Crc32c::new();
        crc.update(&self.salt.to_le_bytes());
        crc.update(RecordHeader { crc: 0, ..header }.as_bytes());
        let body_at = at + RecordHeader::BYTES;
        let bytes = self.read_private(&header, body_at, &mut crc)?;
        let fits = crc.finish() == header.crc || mutants::is_on("scan-checksum");
        if !fits || !self.steal_is_whole(&header, &bytes) {
            return None;
        }
        Some(Record { header, bytes })
    }

    /// Copies what is kept of a record and takes everything that is covered into `crc`.
    /// `None`: the file has become shorter than it was.
    fn read_private(
        &mut self,
        header: &RecordHeader,
        at: usize,
        crc: &mut Crc32c,
    ) -> Option<Box<[u8]>> {
        let body_bytes = header.body_bytes as usize;
        let payload_bytes = header.payload_bytes as usize;
        let covered = header.flags & flag::FENCED == 0;
        let kept = match header.kind() {
            Kind::Write => body_bytes,
            _ => body_bytes + payload_bytes,
        };
        let mut bytes = Box::default();
        if kept > 0 {
            bytes = vec![0; kept].into_boxed_slice();
            if !self.window.load(at, &mut bytes) {
                return None;
            }
            crc.update(if covered {
                &bytes
            } else {
                &bytes[..body_bytes]
            });
        }
        if covered {
            let (mut at, end) = (at + kept, at + body_bytes + payload_bytes);
            while at < end {
                let chunk = &mut self.chunk[..CHUNK_BYTES.min(end - at)];
                if !self.window.load(at, chunk) {
                    return None;
                }
                crc.update(chunk);
                at += chunk.len();
            }
        }
        Some(bytes)
    }

    /// Whether the blocks of a steal are there, as far as the caller wants to know.
    fn steal_is_whole(&mut self, header: &RecordHeader, body: &[u8]) -> bool {
        let Some(check) = &mut self.steals else {
            return true;
        };
        if mutants::is_on("scan-steal") {
            return true;
        }
        if header.kind() != Kind::Steal || header.flags & flag::FENCED != 0 {
            return true;
        }
        let Ok((body, _)) = StealBody::read_from_prefix(body) else {
            // Complete, but nonsense: decoding it says so.
            return true;
        };
        let addr = BlockAddr::from_raw(body.addr);
        check(LogPos(header.pos), addr, body.blocks, body.data_crc)
    }
}

impl Iterator for Scan<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.ready.is_empty() && !self.ended {
            self.read_chain();
        }
        self.ready.pop_front()
    }
}
