//! Writes the bytes of one claimed record into the ring.
//!
//! Invariants: only whole lines are stored, all of them past the cache; a checksum that
//! covers the payload is computed over the very bytes that are stored, on their way from
//! the caller's buffer, since that may be changing under another of its threads and a
//! record whose checksum fails would end the log.
//!
//! Checksum order is salt, header, body, payload, so the header's part comes first; but
//! its line, which holds the result, is written last. One fence covers them all.

use crate::encode::Part;
use crate::log::Log;
use shale_format::limits::CHECKSUM_BYTES_MAX;
use shale_format::record::{Kind, RecordHeader, StealBody, flag};
use shale_nvm::{LINE_BYTES, LINE_WORDS, crc32c};
use zerocopy::IntoBytes;

const _: () = assert!(RecordHeader::BYTES == LINE_BYTES, "a header is one line");

/// Where a steal's body holds the checksum of its data.
const DATA_CRC_AT: usize = std::mem::offset_of!(StealBody, data_crc);

/// Whether a record's data is made durable by a fence of its own before the header.
#[inline]
pub(crate) fn needs_two_fences(part: &Part<'_>) -> bool {
    part.header.payload_bytes as usize > CHECKSUM_BYTES_MAX
}

/// The header's words with no checksum in them, and the checksum's state after salt and header.
#[inline]
fn begin(log: &Log, part: &mut Part<'_>) -> ([u64; LINE_WORDS], u32) {
    part.header.crc = 0;
    let words = part.header.words();
    let state = crc32c::update(log.salted(), words.as_bytes());
    (words, state)
}

/// Writes a record whose checksum covers everything. Durable after the next fence.
#[inline]
pub(crate) fn covered(log: &Log, part: &mut Part<'_>) {
    if let Some(stolen) = part.stolen {
        let state = stolen
            .to
            .copy_nt_crc32c(stolen.at, &[stolen.data], crc32c::START);
        let crc = crc32c::finish(state).to_le_bytes();
        part.body[DATA_CRC_AT..DATA_CRC_AT + crc.len()].copy_from_slice(&crc);
        let bytes = stolen.data.len();
        stolen.to.expect(stolen.at + bytes, bytes);
    }
    let (mut words, state) = begin(log, part);
    let body = &part.body[..part.header.body_bytes as usize];
    let behind = [body, part.payload[0], part.payload[1]];
    let at = log.place(part.header.pos);
    let header = &mut part.header;
    log.view().copy_nt_sealed(at, &behind, state, |state| {
        header.crc = crc32c::finish(state);
        words[0] |= u64::from(header.crc);
        words
    });
    // Has the addresses looked up of pages that a record like this one, behind it, would
    // be the first to need (with pages of 4 KiB that is most of what a miss costs).
    let bytes = header.bytes as usize;
    log.view().expect(at + bytes, bytes);
}

/// Writes all lines but the header's of a record whose checksum covers header and body
/// only, and completes the header. Durable after the next fence; the header is to be
/// written after that.
pub(crate) fn data(log: &Log, part: &mut Part<'_>) {
    const ZEROS: [u8; LINE_BYTES] = [0; LINE_BYTES];
    part.header.flags |= flag::FENCED;
    let (_, state) = begin(log, part);
    let body = &part.body[..part.header.body_bytes as usize];
    part.header.crc = crc32c::finish(crc32c::update(state, body));
    let [first, second] = part.payload;
    let bytes = body.len() + first.len() + second.len();
    let padding = &ZEROS[..bytes.next_multiple_of(LINE_BYTES) - bytes];
    let at = log.place(part.header.pos) + LINE_BYTES;
    log.view().expect(at, bytes);
    log.view().copy_nt_with(at, &[body, first, second, padding]);
}

/// Writes the header of a record that is complete. Durable after the next fence, which
/// for data outside the checksum must not be the first after it.
pub(crate) fn header(log: &Log, part: &Part<'_>) {
    log.view()
        .copy_nt(log.place(part.header.pos), part.header.as_bytes());
}

/// Writes a record that fills [`start`, `end`) and does nothing. Durable after the next fence.
pub(crate) fn pad(log: &Log, start: u64, end: u64) {
    let mut header = RecordHeader::new(Kind::Pad, 0, 0, 0, 0);
    header.bytes = u32::try_from(end - start).expect("a pad is shorter than a ring's quarter");
    header.pos = start;
    header.crc = header.checksum(log.salt(), &[], &[]);
    log.view().copy_nt(log.place(start), header.as_bytes());
}
