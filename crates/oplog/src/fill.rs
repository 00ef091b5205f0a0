//! Writes the bytes of one claimed record into the ring.
//!
//! Invariants: only whole lines are stored, all of them past the cache; the checksum
//! is computed over the very bytes that are stored (a private copy in the first-level
//! cache), since the caller's buffer may be changing under another of its threads and
//! a record whose checksum fails would end the log.
//!
//! The data lines are on their way to memory while their checksum is computed; the
//! header's line follows. That order hides most of the checksum (measured for 4 KiB,
//! copy and fence alone 219 ns: checksum first 334, after 270, in pieces between).

use crate::encode::{BODY_BYTES_MAX, Part};
use crate::log::Log;
use shale_device::{LINE_BYTES, View};
use shale_format::checksum::crc32c;
use shale_format::limits::CHECKSUM_BYTES_MAX;
use shale_format::record::{Kind, RecordHeader, flag};
use std::cell::RefCell;
use zerocopy::IntoBytes;

/// Bytes before the staged record; the last 8 of them hold the salt, so that salt and
/// record are one run for the checksum.
const LEAD: usize = LINE_BYTES;
/// First covered byte of a stage.
const SALT_AT: usize = LEAD - size_of::<u64>();
/// Bytes of a stage: the longest record that a checksum covers.
const STAGE_BYTES: usize =
    LEAD + (RecordHeader::BYTES + BODY_BYTES_MAX + CHECKSUM_BYTES_MAX).next_multiple_of(LINE_BYTES);

type Line = [u8; LINE_BYTES];

/// Where a thread puts a record together.
#[repr(align(64))]
struct Stage([u8; STAGE_BYTES]);

thread_local! {
    /// Kept so that it need not be zeroed for each record.
    static STAGE: RefCell<Stage> = const { RefCell::new(Stage([0; STAGE_BYTES])) };
}

/// Runs `with` on a stage of arbitrary contents. A signal handler that appends while
/// its thread does gets one of its own.
#[inline]
fn staged<T>(with: impl FnOnce(&mut [u8; STAGE_BYTES]) -> T) -> T {
    STAGE.with(|stage| match stage.try_borrow_mut() {
        Ok(mut stage) => with(&mut stage.0),
        Err(_) => with(&mut [0; STAGE_BYTES]),
    })
}

/// Whether a record's data is made durable by a fence of its own before the header.
#[inline]
pub(crate) fn needs_two_fences(part: &Part<'_>) -> bool {
    part.header.payload_bytes as usize > CHECKSUM_BYTES_MAX
}

/// Puts salt, header and body at the start of a stage; returns where the body ends.
#[inline]
fn begin(stage: &mut [u8; STAGE_BYTES], salt: u64, part: &mut Part<'_>) -> usize {
    part.header.crc = 0;
    stage[SALT_AT..LEAD].copy_from_slice(&salt.to_le_bytes());
    stage[LEAD..LEAD + RecordHeader::BYTES].copy_from_slice(part.header.as_bytes());
    let body_at = LEAD + RecordHeader::BYTES;
    stage[body_at..body_at + BODY_BYTES_MAX].copy_from_slice(&part.body);
    body_at + part.header.body_bytes as usize
}

/// Zeroes what is left of the last line; returns where it ends.
#[inline]
fn pad_line(stage: &mut [u8; STAGE_BYTES], end: usize) -> usize {
    let padded = end.next_multiple_of(LINE_BYTES);
    stage[end..padded].fill(0);
    padded
}

/// Writes a record whose checksum covers everything. Durable after the next fence.
#[inline]
pub(crate) fn covered(log: &Log, part: &mut Part<'_>) {
    staged(|stage| {
        let mut end = begin(stage, log.salt(), part);
        for slice in part.payload {
            stage[end..end + slice.len()].copy_from_slice(slice);
            end += slice.len();
        }
        let padded = pad_line(stage, end);
        let (view, at) = (log.view(), log.place(part.header.pos));
        view.copy_nt(at + LINE_BYTES, &stage[LEAD + LINE_BYTES..padded]);
        part.header.crc = crc32c(&stage[SALT_AT..end]);
        view.copy_nt(at, part.header.as_bytes());
    });
}

/// Writes all lines but the header's of a record whose checksum covers header and body
/// only, and completes the header. Durable after the next fence; the header is to be
/// written after that.
pub(crate) fn data(log: &Log, part: &mut Part<'_>) {
    part.header.flags |= flag::FENCED;
    let (view, at) = (log.view(), log.place(part.header.pos));
    staged(|stage| {
        let end = begin(stage, log.salt(), part);
        part.header.crc = crc32c(&stage[SALT_AT..end]);
        if part.header.body_bytes == 0 && part.payload[1].is_empty() {
            // Nothing checks these bytes, so they may come straight from the caller.
            return straight(view, at + LINE_BYTES, part.payload[0]);
        }
        let (mut at, mut filled) = (at + LINE_BYTES, end);
        let mut from = LEAD + LINE_BYTES;
        for mut slice in part.payload {
            while !slice.is_empty() {
                let taken = slice.len().min(STAGE_BYTES - filled);
                stage[filled..filled + taken].copy_from_slice(&slice[..taken]);
                (slice, filled) = (&slice[taken..], filled + taken);
                if filled == STAGE_BYTES {
                    view.copy_nt(at, &stage[from..]);
                    at += STAGE_BYTES - from;
                    (from, filled) = (LEAD, LEAD);
                }
            }
        }
        let padded = pad_line(stage, filled);
        view.copy_nt(at, &stage[from..padded]);
    });
}

/// Writes the header of a record whose data is durable. Durable after the next fence.
pub(crate) fn header(log: &Log, part: &Part<'_>) {
    log.view()
        .copy_nt(log.place(part.header.pos), part.header.as_bytes());
}

/// Writes whole lines from where they are and a padded last one.
fn straight(view: &View, at: usize, data: &[u8]) {
    let (whole, rest) = data.split_at(data.len() / LINE_BYTES * LINE_BYTES);
    view.copy_nt(at, whole);
    if !rest.is_empty() {
        let mut line: Line = [0; LINE_BYTES];
        line[..rest.len()].copy_from_slice(rest);
        view.copy_nt(at + whole.len(), &line);
    }
}

/// Writes a record that fills [`start`, `end`) and does nothing. Durable after the next fence.
pub(crate) fn pad(log: &Log, start: u64, end: u64) {
    let mut header = RecordHeader::new(Kind::Pad, 0, 0, 0, 0);
    header.bytes = u32::try_from(end - start).expect("a pad is shorter than a ring's quarter");
    header.pos = start;
    header.crc = header.checksum(log.salt(), &[], &[]);
    log.view().copy_nt(log.place(start), header.as_bytes());
}
