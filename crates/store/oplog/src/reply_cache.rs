//! What the requests whose records are still in the log did, so that one which is sent
//! again after a crash is answered without being done again.

use crate::scan::Record;
use shale_format::limits::BLOCK_BYTES;
use shale_format::record::{Kind, StealBody};
use shale_format::{Ino, LogPos};
use std::collections::HashMap;
use zerocopy::FromBytes;

/// What one request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Position of its first record.
    pub pos: LogPos,
    /// What its first record does.
    pub kind: Kind,
    /// The inode that it made, named, unnamed or changed.
    pub ino: Ino,
    /// The directory of the name, for operations on names; else `NONE`.
    pub dir: Ino,
    /// Lowest byte offset that it wrote; for other kinds 0, or the new size for a truncate.
    pub offset: u64,
    /// Bytes of file data that it wrote: what `write` answers. A call that was split
    /// when the power went may have written fewer than it was asked to.
    pub bytes: u64,
    /// Number of its records.
    pub records: u32,
}

/// Done requests by their number.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    done: HashMap<u64, Done>,
}

impl Recent {
    /// Takes down the records of a scan from the tail. Records without a request are
    /// passed over.
    pub fn collect(records: impl IntoIterator<Item = Record>) -> Self {
        let mut recent = Self::default();
        for record in records {
            recent.add(&record);
        }
        recent
    }

    /// Takes down one record; they come in the order of the log.
    pub fn add(&mut self, record: &Record) {
        let h = &record.header;
        if h.request == 0 {
            return;
        }
        let names = matches!(
            record.kind(),
            Kind::Create | Kind::Link | Kind::Unlink | Kind::Rename
        );
        let (dir, ino, offset) = if names {
            (Ino(h.ino), Ino(h.offset), 0)
        } else {
            (Ino::NONE, Ino(h.ino), h.offset)
        };
        let bytes = match record.kind() {
            Kind::Write => h.payload_bytes.into(),
            Kind::Steal => StealBody::read_from_prefix(record.body()).map_or(0, |(body, _)| {
                let full = u64::from(body.blocks) * BLOCK_BYTES as u64;
                full.min(body.end.saturating_sub(h.offset))
            }),
            _ => 0,
        };
        self.done
            .entry(h.request)
            .and_modify(|done| {
                if bytes > 0 && done.bytes > 0 {
                    done.offset = done.offset.min(offset);
                } else if bytes > 0 {
                    done.offset = offset;
                }
                done.bytes += bytes;
                done.records += 1;
            })
            .or_insert(Done {
                pos: record.pos(),
                kind: record.kind(),
                ino,
                dir,
                offset,
                bytes,
                records: 1,
            });
    }

    /// What request `request` did, if the log knows.
    pub fn get(&self, request: u64) -> Option<&Done> {
        self.done.get(&request)
    }

    /// Forgets a request, once it was answered; says what it did.
    pub fn take(&mut self, request: u64) -> Option<Done> {
        self.done.remove(&request)
    }

    /// Number of requests known.
    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }
}
