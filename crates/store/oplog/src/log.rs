//! The file of one update log: header, durable tail, ring. Shared by the client that
//! appends and the daemon that scans.
//!
//! Invariant: the header is durable before anything else can be; the tail only rises.

use crate::error::OplogError;
use crate::ring::in_ring;
use shale_format::LogPos;
use shale_format::limits::RECORD_ALIGN;
use shale_format::log::{END_AT, LogHeader, RING_AT, TAIL_AT};
use shale_format::record::RecordHeader;
use shale_nvm::{LINE_BYTES, Map, MappedRegion, Path, crc32c};
use shale_persist::Domain;
use std::sync::Arc;

/// One mapped log file.
pub struct Log {
    map: Arc<Map>,
    header: LogHeader,
    /// State of a record's checksum after the salt, with which it begins.
    salted: u32,
}

impl Log {
    /// Makes an empty log in a mapping of at least `RING_AT + ring_bytes` bytes. When it
    /// returns, header and tail survive a power cut. Old records in the file are no
    /// danger as long as `header.salt` is new.
    ///
    /// # Errors
    /// A header that does not decode (its `ring_bytes`), or a mapping that is too short.
    pub fn create(map: Arc<Map>, header: LogHeader) -> Result<Self, OplogError> {
        Self::create_at(map, header, LogPos(0))
    }

    /// As [`Self::create`], for a log whose first record will be at `start`.
    ///
    /// # Errors
    /// As there.
    pub fn create_at(map: Arc<Map>, header: LogHeader, start: LogPos) -> Result<Self, OplogError> {
        let bytes = header.encode();
        let header = LogHeader::decode(&bytes)?;
        check_length(&map, &header)?;
        let view = map.on(Path::Log);
        let mut words = [0; END_AT + LINE_BYTES - TAIL_AT];
        words[..size_of::<u64>()].copy_from_slice(&start.0.to_le_bytes());
        view.copy_nt(TAIL_AT, &words);
        view.fence();
        view.copy_nt(0, &bytes);
        view.fence();
        Ok(Self::of(map, header))
    }

    /// Opens a log whose header is to be trusted.
    ///
    /// # Errors
    /// A header that does not decode, or a file shorter than it says.
    pub fn open(map: Arc<Map>) -> Result<Self, OplogError> {
        let header = LogHeader::decode(&map.on(Path::Log).load_array::<{ LogHeader::BYTES }>(0))?;
        Self::with_header(map, header)
    }

    /// Opens a log whose header the caller knows better than the file, which a client
    /// could have changed: salt and length come from the log table.
    ///
    /// # Errors
    /// A file shorter than the header says.
    pub fn with_header(map: Arc<Map>, header: LogHeader) -> Result<Self, OplogError> {
        check_length(&map, &header)?;
        Ok(Self::of(map, header))
    }

    fn of(map: Arc<Map>, header: LogHeader) -> Self {
        let salted = crc32c::update(crc32c::START, &header.salt.to_le_bytes());
        Self {
            map,
            header,
            salted,
        }
    }

    /// The header.
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// Bytes of the ring.
    #[inline]
    pub fn ring_bytes(&self) -> u64 {
        self.header.ring_bytes
    }

    /// Salt of the records' checksums.
    #[inline]
    pub fn salt(&self) -> u64 {
        self.header.salt
    }

    /// State of a record's checksum after the salt.
    #[inline]
    pub(crate) fn salted(&self) -> u32 {
        self.salted
    }

    /// What makes the log durable.
    pub(crate) fn domain(&self) -> Domain {
        Domain::of(&self.map)
    }

    /// The mapping of the file.
    pub(crate) fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// The mapping, as used for the log.
    #[inline]
    pub fn view(&self) -> &MappedRegion {
        self.map.on(Path::Log)
    }

    /// Byte of the file at which position `pos` is.
    #[inline]
    pub(crate) fn place(&self, pos: u64) -> usize {
        place(self.header.ring_bytes, pos)
    }

    /// Copies bytes of a record's payload out of the ring: `into.len()` bytes from
    /// `skip` bytes behind `at`, the position of the payload's (or an overlay
    /// pointer's) first byte. The caller makes sure that the record is still kept.
    ///
    /// # Panics
    /// If the range goes over the end of the ring; no record does.
    #[inline]
    pub fn read(&self, at: LogPos, skip: u64, into: &mut [u8]) {
        self.view().load(self.place(at.0 + skip), into);
    }

    /// The durable tail, for a log that goes on at or after `highest` and whose records
    /// before `lowest` may be gone.
    ///
    /// # Errors
    /// A word in the file that is not such a position.
    pub fn tail(&self, lowest: LogPos, highest: LogPos) -> Result<LogPos, OplogError> {
        let found = self.view().load_u64(TAIL_AT);
        let legal =
            (lowest.0..=highest.0).contains(&found) && found.is_multiple_of(RECORD_ALIGN as u64);
        if !legal {
            return Err(OplogError::Tail {
                lowest: lowest.0,
                highest: highest.0,
                found,
            });
        }
        Ok(LogPos(found))
    }

    /// The word of the durable tail, unchecked.
    pub fn tail_word(&self) -> u64 {
        self.view().load_u64(TAIL_AT)
    }

    /// Makes the tail durable. The space before it may be reused when this returns.
    pub(crate) fn store_tail(&self, tail: LogPos) {
        let view = self.view();
        view.store_u64(TAIL_AT, tail.0);
        view.flush(TAIL_AT, size_of::<u64>());
        view.fence();
    }

    /// Makes a log that a crash cut off at `head` fit to go on there: records behind
    /// `head` that were complete, while an earlier one was not, must never be taken for
    /// successors of new records. Wipes each line in the free space, from `head` to
    /// `tail` one lap later, that could be a header there. Returns how many.
    ///
    /// Runs at the speed of reading the ring. A crash in it changes nothing.
    pub fn seal(&self, tail: LogPos, head: LogPos) -> u64 {
        const CHUNK: usize = 64 << 10;
        const POS_AT: usize = std::mem::offset_of!(RecordHeader, pos);
        let (view, end) = (self.view(), tail.0 + self.ring_bytes());
        let mut chunk = vec![0; CHUNK];
        let (mut pos, mut wiped) = (head.0, 0);
        while pos < end {
            let ring_left = self.ring_bytes() - pos % self.ring_bytes();
            let bytes = ring_left.min(end - pos).min(CHUNK as u64) as usize;
            view.load(self.place(pos), &mut chunk[..bytes]);
            for (n, line) in chunk[..bytes].chunks_exact(LINE_BYTES).enumerate() {
                let line_pos = pos + (n * LINE_BYTES) as u64;
                if line[POS_AT..POS_AT + 8] == line_pos.to_le_bytes() {
                    view.zero_nt(self.place(line_pos), LINE_BYTES);
                    wiped += 1;
                }
            }
            pos += bytes as u64;
        }
        view.fence();
        wiped
    }
}

/// Byte of a log file at which position `pos` is.
#[inline]
pub(crate) fn place(ring_bytes: u64, pos: u64) -> usize {
    RING_AT + in_ring(ring_bytes, pos) as usize
}

fn check_length(map: &Map, header: &LogHeader) -> Result<(), OplogError> {
    let expected = RING_AT as u64 + header.ring_bytes;
    let found = map.bytes() as u64;
    if found < expected {
        return Err(OplogError::Short { expected, found });
    }
    Ok(())
}
