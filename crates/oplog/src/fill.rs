//! Writes the bytes of one claimed record into the ring.
//!
//! Invariants: only whole lines are stored, all of them past the cache; the checksum
//! is computed over the very bytes that are stored (a private copy in the first-level
//! cache), since the caller's buffer may be changing under another of its threads and
//! a record whose checksum fails would end the log.

use crate::encode::Part;
use crate::log::Log;
use shale_device::{LINE_BYTES, View};
use shale_format::checksum::{Crc32c, crc32c};
use shale_format::limits::CHECKSUM_BYTES_MAX;
use shale_format::record::{Kind, RecordHeader, flag};
use zerocopy::IntoBytes;

/// Bytes before the staged record; the last 8 of them hold the salt, so that salt and
/// record are one run for the checksum.
const LEAD: usize = LINE_BYTES;
/// First covered byte of a stage.
const SALT_AT: usize = LEAD - size_of::<u64>();
/// Records up to this many bytes are staged whole.
const SMALL_BYTES: usize = 512;
/// Longer ones are staged in pieces: while one drains to memory the next is checksummed.
const CHUNK_BYTES: usize = 2048;

type Line = [u8; LINE_BYTES];

/// Whether a record's data is made durable by a fence of its own before the header.
#[inline]
pub(crate) fn needs_two_fences(part: &Part<'_>) -> bool {
    part.header.payload_bytes as usize > CHECKSUM_BYTES_MAX
}

/// The part's payload, taken from the front.
struct Source<'a>([&'a [u8]; 2]);

impl Source<'_> {
    /// Copies as much as there is room for; returns how much.
    #[inline]
    fn take(&mut self, into: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in &mut self.0 {
            let n = slice.len().min(into.len() - done);
            let (now, later) = slice.split_at(n);
            into[done..done + n].copy_from_slice(now);
            *slice = later;
            done += n;
        }
        done
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.0[0].is_empty() && self.0[1].is_empty()
    }
}

/// Writes a record whose checksum covers everything. Durable after the next fence.
#[inline]
pub(crate) fn covered(log: &Log, part: &mut Part<'_>) {
    if part.header.bytes as usize <= SMALL_BYTES {
        small(log, part);
    } else {
        let header = streamed(log, part);
        log.view().copy_nt(log.place(part.header.pos), &header);
    }
}

/// Puts salt, header and body at the start of a stage; returns where the body ends.
#[inline]
fn begin(stage: &mut [u8], salt: u64, part: &mut Part<'_>) -> usize {
    part.header.crc = 0;
    stage[SALT_AT..LEAD].copy_from_slice(&salt.to_le_bytes());
    stage[LEAD..LEAD + RecordHeader::BYTES].copy_from_slice(part.header.as_bytes());
    let body_at = LEAD + RecordHeader::BYTES;
    stage[body_at..body_at + part.body.len()].copy_from_slice(&part.body);
    body_at + part.header.body_bytes as usize
}

fn small(log: &Log, part: &mut Part<'_>) {
    let mut stage = [0; LEAD + SMALL_BYTES];
    let body_end = begin(&mut stage, log.salt(), part);
    let end = body_end + Source(part.payload).take(&mut stage[body_end..]);
    let crc = crc32c(&stage[SALT_AT..end]);
    part.header.crc = crc;
    stage[LEAD..LEAD + size_of::<u32>()].copy_from_slice(&crc.to_le_bytes());
    let whole = LEAD + part.header.bytes as usize;
    log.view()
        .copy_nt(log.place(part.header.pos), &stage[LEAD..whole]);
}

/// Writes all lines of a record but the header's, which it returns. The checksum
/// covers the payload unless the header says `FENCED`.
pub(crate) fn streamed(log: &Log, part: &mut Part<'_>) -> Line {
    let mut stage = [0; LEAD + CHUNK_BYTES];
    let view = log.view();
    let body_end = begin(&mut stage, log.salt(), part);
    let mut crc = Crc32c::new();
    let mut at = log.place(part.header.pos);
    let mut source = Source(part.payload);
    let cover = part.header.flags & flag::FENCED == 0;
    if !cover {
        crc.update(&stage[SALT_AT..body_end]);
        if part.header.body_bytes == 0 && part.payload[1].is_empty() {
            // Nothing checks these bytes, so they may come straight from the caller.
            straight(view, at + LINE_BYTES, part.payload[0]);
            return finish(part, crc);
        }
    }
    let (mut from, mut covered_from, mut filled) = (LEAD + LINE_BYTES, SALT_AT, body_end);
    loop {
        let end = filled + source.take(&mut stage[filled..]);
        let padded = end.next_multiple_of(LINE_BYTES);
        stage[end..padded].fill(0);
        if cover {
            crc.update(&stage[covered_from..end]);
        }
        view.copy_nt(at + (from - LEAD), &stage[from..padded]);
        if source.is_empty() {
            return finish(part, crc);
        }
        at += padded - LEAD;
        (from, covered_from, filled) = (LEAD, LEAD, LEAD);
    }
}

fn finish(part: &mut Part<'_>, crc: Crc32c) -> Line {
    part.header.crc = crc.finish();
    zerocopy::transmute!(part.header)
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
