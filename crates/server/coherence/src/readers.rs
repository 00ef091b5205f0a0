//! Active readers, and waiting for them: how the daemon knows that no thread of a client still uses what it
//! saw before a change (DESIGN §9).
//!
//! A client's thread makes its reader slot odd with a plain store, then looks at the daemon
//! page. The daemon changes its page, runs a barrier on all processors ([`super::barrier`]), then
//! waits until every slot that was odd has moved. So a thread either is seen
//! inside, or sees the change. A client that is outside of calls costs nothing
//! and is never woken.

use super::page::ClientPage;
use super::sync::{Condvar, Mutex, SPINS, backoff_sleep, pause};
use shale_proto::shared_pages::client_page::READER_SLOTS;
use std::collections::BTreeSet;
use std::time::Duration;

/// Reader slots of one client that were odd after a barrier.
#[derive(Debug)]
pub struct ActiveReaders {
    odd: Vec<(usize, u64)>,
}

impl ActiveReaders {
    /// Reads all reader slots. The barrier comes before.
    pub fn snapshot(page: &ClientPage) -> ActiveReaders {
        let odd = (0..READER_SLOTS)
            .map(|n| (n, page.reader_slot(n)))
            .filter(|(_, sequence)| sequence % 2 == 1)
            .collect();
        ActiveReaders { odd }
    }

    /// Whether each of them has moved since.
    pub fn passed(&mut self, page: &ClientPage) -> bool {
        self.odd
            .retain(|&(n, sequence)| page.reader_slot(n) == sequence);
        self.odd.is_empty()
    }
}

/// How long calls have been waited for.
#[derive(Default)]
pub struct Backoff {
    spins: u32,
    sleep: Duration,
    counted: Duration,
}

impl Backoff {
    /// Waits a little: at first with a pause instruction (most calls last microseconds), then
    /// sleeps ever longer. `false`: `limit` is over.
    pub fn step(&mut self, limit: Duration) -> bool {
        const SLEEP_MIN: Duration = Duration::from_micros(20);
        const SLEEP_MAX: Duration = Duration::from_millis(2);
        if self.spins < SPINS {
            self.spins += 1;
            pause();
            return true;
        }
        if self.counted >= limit {
            return false;
        }
        self.sleep = (self.sleep * 2).clamp(SLEEP_MIN, SLEEP_MAX);
        self.counted += backoff_sleep(self.sleep);
        true
    }
}

/// In-process readers: the daemon's own readers of the volume: a digest that plans from old trees must
/// end before their blocks are given out again, just like a client's call.
#[derive(Default)]
pub struct LocalReaders {
    inside: Mutex<(u64, BTreeSet<u64>)>,
    left: Condvar,
}

/// A reader of the daemon's own, until dropped.
pub struct ReadGuard<'a> {
    readers: &'a LocalReaders,
    number: u64,
}

impl LocalReaders {
    /// Begins to read.
    pub fn enter(&self) -> ReadGuard<'_> {
        let mut inside = self.inside.lock();
        let number = inside.0;
        inside.0 += 1;
        inside.1.insert(number);
        ReadGuard {
            readers: self,
            number,
        }
    }

    /// Waits until everyone who is reading now has ended.
    pub fn wait_for_all(&self) {
        self.wait_for(self.entered());
    }

    /// Number of readers that have ever begun.
    pub fn entered(&self) -> u64 {
        self.inside.lock().0
    }

    /// Waits until the first `entered` readers have ended.
    pub fn wait_for(&self, entered: u64) {
        let mut inside = self.inside.lock();
        while inside.1.first().is_some_and(|&oldest| oldest < entered) {
            self.left.wait(&mut inside);
        }
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.readers.inside.lock().1.remove(&self.number);
        self.readers.left.notify_all();
    }
}
