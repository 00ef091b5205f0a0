//! What a batch has of one log: read from its ring, cut behind a transaction.

use shale_clients::client::Client;
use shale_format::LogPos;
use shale_format::log::RING_AT;
use shale_format::staged::PlacedEntry;
use shale_oplog::Scan;
use shale_persist::staged::{LogIdentity, Piece};
use std::ops::Range;
use std::sync::Arc;

/// Why records are not hardened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotHardened {
    /// The staging area is full: a checkpoint has to come first.
    Full,
    /// What the client says that it has published is no log: there is no record where one should begin.
    NoRecord,
    /// The device failed, or the log cannot be read; says what.
    Failed(String),
}

/// Bytes of one log for a batch.
pub(crate) struct Taken {
    pub(crate) client: Arc<Client>,
    pub(crate) from: u64,
    /// Where the bytes end, and a transaction.
    pub(crate) end: u64,
    /// Those of them that are not `placed`.
    bytes: Vec<u8>,
    pub(crate) placed: Vec<PlacedEntry>,
}

impl Taken {
    pub(crate) fn piece(&self) -> Piece<'_> {
        Piece {
            log: identity(&self.client),
            from: LogPos(self.from),
            bytes: &self.bytes,
            placed: &self.placed,
        }
    }
}

/// All that is needed to make the slot of a client's log again.
fn identity(client: &Client) -> LogIdentity {
    LogIdentity {
        slot: client.slot,
        uid: client.person.uid,
        salt: client.salt,
        ring_bytes: client.ring_bytes,
        connection: client.connection,
    }
}

/// What a client has published and is not hardened, `most` bytes of it; `None`: there is nothing.
pub(crate) fn take(client: &Arc<Client>, most: usize) -> Result<Option<Taken>, NotHardened> {
    let (from, published) = (client.hardened(), client.published().pos().0);
    assert!(
        from <= published,
        "hardened to {from}, published to {published}"
    );
    let end = match published - from {
        0 => return Ok(None),
        all if all <= most as u64 => published,
        // A transaction takes a quarter of a ring at most, which fits a batch.
        _ => last_end(client, from, from + most as u64).ok_or(NotHardened::NoRecord)?,
    };
    read(client, from..end, Vec::new()).map(Some)
}

/// Reads this range of a log, without what of it is `placed`.
pub(crate) fn read(
    client: &Arc<Client>,
    range: Range<u64>,
    placed: Vec<PlacedEntry>,
) -> Result<Taken, NotHardened> {
    let mut bytes = Vec::new();
    let mut from = range.start;
    for one in &placed {
        read_ring(client, from..one.from, &mut bytes)?;
        from = one.end();
    }
    read_ring(client, from..range.end, &mut bytes)?;
    Ok(Taken {
        client: client.clone(),
        from: range.start,
        end: range.end,
        bytes,
        placed,
    })
}

/// Adds the bytes of this range of a log to `into`.
fn read_ring(client: &Client, range: Range<u64>, into: &mut Vec<u8>) -> Result<(), NotHardened> {
    let begin = into.len();
    into.resize(begin + (range.end - range.start) as usize, 0);
    let bytes = &mut into[begin..];
    let (ring, at) = (client.ring_bytes, range.start % client.ring_bytes);
    let to_end = ((ring - at) as usize).min(bytes.len());
    let (first, second) = bytes.split_at_mut(to_end);
    let read = client.log.load(RING_AT + at as usize, first)
        && (second.is_empty() || client.log.load(RING_AT, second));
    // A file that its process has cut short holds no record there.
    read.then_some(()).ok_or(NotHardened::NoRecord)
}

/// The end of the last transaction that ends at or before `limit`, if one begins at `from`.
fn last_end(client: &Client, from: u64, limit: u64) -> Option<u64> {
    let scan = Scan::new(&*client.log, client.salt, client.ring_bytes, LogPos(from));
    let ends = scan
        .take_while(|record| record.end().0 <= limit)
        .filter(|record| !record.more());
    ends.last().map(|record| record.end().0)
}
