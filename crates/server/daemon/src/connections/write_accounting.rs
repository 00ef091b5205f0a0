//! Who wrote what to which tier: by client, including what digest and migration wrote for it.
//!
//! What a digest writes is its client's, since a log has one writer. What migration moves is put
//! down to the client whose log brought bytes of that file last; files that nobody alive has
//! written since the start, and clients that have left, are *others*. Structure (trees, inodes,
//! the journal) is nobody's: it is in the counts of the device.
//!
//! Locks: `others`, `writers` and a client's tally are leaves below `clients`.

use parking_lot::Mutex;
use shale_clients::client::Client;
use shale_clients::clients::Clients;
use shale_clients::tally::{Tally, Written};
use shale_digest::ChunkDone;
use shale_format::TierId;
use shale_format::limits::BLOCK_BYTES;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Inodes whose last writer is known, in each of two generations.
const WRITERS_MAX: usize = 1 << 18;

/// Last writers of inodes; the older half is forgotten when there are many.
#[derive(Default)]
struct Writers {
    young: HashMap<u64, u32>,
    old: HashMap<u64, u32>,
}

impl Writers {
    fn note(&mut self, ino: u64, client: u32) {
        if self.young.len() >= WRITERS_MAX && !self.young.contains_key(&ino) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, client);
    }

    fn forget(&mut self, ino: u64) {
        self.young.remove(&ino);
        self.old.remove(&ino);
    }

    fn of(&self, ino: u64) -> Option<u32> {
        self.young.get(&ino).or_else(|| self.old.get(&ino)).copied()
    }
}

/// Accounts of who is not there any more, and who wrote which file last.
pub(crate) struct WriteAccounting {
    clients: Arc<Clients>,
    others: Mutex<Tally>,
    writers: Mutex<Writers>,
}

impl WriteAccounting {
    pub(crate) fn new(clients: Arc<Clients>) -> Self {
        Self {
            clients,
            others: Mutex::default(),
            writers: Mutex::default(),
        }
    }

    /// Inodes that are no more have no writer.
    pub(crate) fn forget(&self, inos: impl Iterator<Item = u64>) {
        let mut writers = self.writers.lock();
        inos.for_each(|ino| writers.forget(ino));
    }
}

impl WriteAccounting {
    /// A chunk of a client's log is in the volume.
    pub(crate) fn add_chunk(&self, client: &Client, done: &ChunkDone) {
        let unused: u64 = done.unused.iter().map(|run| run.len).sum();
        let below: u64 = done.below.iter().map(|(_, run)| run.len).sum();
        *client.tally.lock() += Tally {
            logged: done.stats.bytes_logged,
            in_memory: 0,
            stolen: (done.stats.blocks_linked + unused) * BLOCK,
            copied: (done.stats.blocks_written - below) * BLOCK + done.stats.bytes_stored,
            moved: [0; 3],
        };
        if !done.touched.is_empty() {
            let inos: BTreeSet<u64> = done.touched.iter().map(|(ino, _)| *ino).collect();
            let mut writers = self.writers.lock();
            for ino in inos {
                writers.note(ino, client.id);
            }
        }
    }

    /// Migration has written blocks of these inodes to a tier.
    pub(crate) fn add_moved(&self, moved: &[(u64, u64)], to: TierId) {
        // A client that leaves meanwhile has its account taken over before or after this.
        let clients = self.clients.attached();
        for &(ino, blocks) in moved {
            let mut tally = Tally::default();
            tally.moved[to as usize] = blocks * BLOCK;
            let writer = self.writers.lock().of(ino);
            match writer.and_then(|id| clients.get(&id)) {
                Some(client) => *client.tally.lock() += tally,
                None => *self.others.lock() += tally,
            }
        }
    }

    /// Takes a client out of the list, and its account over.
    pub(crate) fn remove(&self, client: &Client) {
        self.clients.remove(client, || {
            *self.others.lock() += client.tally(0);
            *client.tally.lock() = Tally::default();
        });
    }

    /// Bytes of clients that have left, and of files whose writer is not known.
    pub(crate) fn of_others(&self) -> Written {
        self.others.lock().written(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_writers_are_forgotten_first() {
        let mut writers = Writers::default();
        for ino in 0..2 * WRITERS_MAX as u64 {
            writers.note(ino, 1);
        }
        writers.note(5, 2);
        assert_eq!(writers.of(5), Some(2));
        writers.note(u64::MAX, 3);
        assert_eq!(writers.of(WRITERS_MAX as u64), Some(1));
        assert_eq!(writers.of(6), None);
        assert!(writers.young.len() + writers.old.len() <= 2 * WRITERS_MAX);
    }
}
