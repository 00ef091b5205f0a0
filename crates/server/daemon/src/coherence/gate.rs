//! Passing gates: how the daemon knows that no thread of a client still uses what it
//! saw before a change (DESIGN §9).
//!
//! A client's thread makes its gate odd with a plain store, then looks at the daemon
//! page. The daemon changes its page, runs a barrier on all processors ([`super::barrier`]), then
//! waits until every gate that was odd has moved. So a thread either is seen
//! inside, or sees the change. A client that is outside of calls costs nothing
//! and is never woken.

use super::page::ClientPage;
use super::sync::{Condvar, Mutex, SPINS, nap, pause};
use shale_proto::control::client_page::GATES;
use std::collections::BTreeSet;
use std::time::Duration;

/// Gates of one client that were odd after a barrier.
#[derive(Debug)]
pub(crate) struct Inside {
    odd: Vec<(usize, u64)>,
}

impl Inside {
    /// Looks at all gates. The barrier comes before.
    pub(crate) fn look(page: &ClientPage) -> Inside {
        let odd = (0..GATES)
            .map(|n| (n, page.gate(n)))
            .filter(|(_, sequence)| sequence % 2 == 1)
            .collect();
        Inside { odd }
    }

    /// Whether each of them has moved since.
    pub(crate) fn passed(&mut self, page: &ClientPage) -> bool {
        self.odd.retain(|&(n, sequence)| page.gate(n) == sequence);
        self.odd.is_empty()
    }
}

/// How long calls have been waited for.
#[derive(Default)]
pub(crate) struct Waiting {
    spins: u32,
    nap: Duration,
    counted: Duration,
}

impl Waiting {
    /// Waits a little: at first with a pause instruction (most calls last microseconds), then
    /// sleeps ever longer. `false`: `limit` is over.
    pub(crate) fn turn(&mut self, limit: Duration) -> bool {
        const NAP: Duration = Duration::from_micros(20);
        const NAP_MAX: Duration = Duration::from_millis(2);
        if self.spins < SPINS {
            self.spins += 1;
            pause();
            return true;
        }
        if self.counted >= limit {
            return false;
        }
        self.nap = (self.nap * 2).clamp(NAP, NAP_MAX);
        self.counted += nap(self.nap);
        true
    }
}

/// The daemon's own readers of the volume: a digest that plans from old trees must
/// end before their blocks are given out again, just like a client's call.
#[derive(Default)]
pub(crate) struct OwnReaders {
    inside: Mutex<(u64, BTreeSet<u64>)>,
    left: Condvar,
}

/// A reader of the daemon's own, until dropped.
pub(crate) struct OwnReader<'a> {
    readers: &'a OwnReaders,
    number: u64,
}

impl OwnReaders {
    /// Begins to read.
    pub(crate) fn enter(&self) -> OwnReader<'_> {
        let mut inside = self.inside.lock();
        let number = inside.0;
        inside.0 += 1;
        inside.1.insert(number);
        OwnReader {
            readers: self,
            number,
        }
    }

    /// Waits until everyone who is reading now has ended.
    pub(crate) fn pass(&self) {
        self.wait_for(self.entered());
    }

    /// Number of readers that have ever begun.
    pub(crate) fn entered(&self) -> u64 {
        self.inside.lock().0
    }

    /// Waits until the first `entered` readers have ended.
    pub(crate) fn wait_for(&self, entered: u64) {
        let mut inside = self.inside.lock();
        while inside.1.first().is_some_and(|&oldest| oldest < entered) {
            self.left.wait(&mut inside);
        }
    }
}

impl Drop for OwnReader<'_> {
    fn drop(&mut self) {
        self.readers.inside.lock().1.remove(&self.number);
        self.readers.left.notify_all();
    }
}
