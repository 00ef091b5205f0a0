//! What the requests whose records are still in the log did, so that one which is sent
//! again after a crash is answered without being done again.

use crate::scan::Record;
use parking_lot::RwLock;
use shale_format::limits::BLOCK_BYTES;
use shale_format::record::{Kind, StealBody};
use shale_format::{Ino, LogPos};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Done requests by their number. Clones are the same: what one forgets all have forgotten.
///
/// As long as it lives it takes 65 to 130 bytes for each request in the log, which may be hundreds of thousands.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Whether there is any: most of the time there is none, and each call asks.
    any: AtomicBool,
    /// Whether all requests that are sent again have been read.
    are_read: AtomicBool,
    /// A leaf among the locks.
    done: RwLock<HashMap<u64, Done>>,
}

impl Recent {
    /// Takes down the records of a scan from the tail. Records without a request are
    /// passed over.
    pub fn collect(records: impl IntoIterator<Item = Record>) -> Self {
        let recent = Self::default();
        for record in records {
            recent.add(&record);
        }
        recent
    }

    /// Takes down one record; they come in the order of the log.
    pub fn add(&self, record: &Record) {
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
        let mut done = self.shared.done.write();
        done.entry(h.request)
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
        self.shared.any.store(true, Ordering::Release);
    }

    /// What request `request` did, if the log knows.
    pub fn get(&self, request: u64) -> Option<Done> {
        self.shared.done.read().get(&request).copied()
    }

    /// All requests that are sent again have been read: those who read them look here soon.
    pub fn resent_are_read(&self) {
        self.shared.are_read.store(true, Ordering::Release);
    }

    /// Whether that is so.
    pub fn are_resent_read(&self) -> bool {
        self.shared.are_read.load(Ordering::Acquire)
    }

    /// Forgets all of them: each has been answered.
    pub fn forget(&self) {
        self.shared.any.store(false, Ordering::Release);
        *self.shared.done.write() = HashMap::new();
    }

    /// Number of requests known.
    pub fn len(&self) -> usize {
        self.shared.done.read().len()
    }

    /// Whether none is known.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.shared.any.load(Ordering::Acquire)
    }
}
