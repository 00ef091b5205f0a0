//! Passing gates: how the daemon knows that no thread of a client still uses what it
//! saw before a change (DESIGN §9).
//!
//! A client's thread makes its gate odd with a plain store, then looks at the daemon
//! page. The daemon changes its page, runs a barrier on all processors, then
//! waits until every gate that was odd has moved. So a thread either is seen
//! inside, or sees the change. A client that is outside of calls costs nothing
//! and is never woken.
//!
//! Client processes must be registered (`MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`)
//! before they attach; this process registers when the daemon starts.

use crate::error::{DaemonError, Result};
use crate::page::ClientPage;
use parking_lot::{Condvar, Mutex};
use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};
use shale_proto::control::client_page::GATES;
use std::collections::BTreeSet;
use std::time::Duration;

/// The barrier that orders the daemon's stores before its look at the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// Interrupts only processors that run a registered process: about 2 µs.
    Expedited,
    /// Waits until every processor has passed the scheduler: milliseconds.
    Global,
}

impl Barrier {
    /// Registers this process and chooses the cheapest barrier there is.
    pub(crate) fn register() -> Result<Barrier> {
        let offers = membarrier_query();
        let register = MembarrierCommand::RegisterGlobalExpedited;
        if offers.contains_command(MembarrierCommand::GlobalExpedited)
            && membarrier(register).is_ok()
        {
            return Ok(Barrier::Expedited);
        }
        membarrier(MembarrierCommand::Global).map_err(|e| DaemonError::Membarrier(e.into()))?;
        Ok(Barrier::Global)
    }

    /// Orders every store of this thread before every later load, as seen by any
    /// thread of a registered process.
    pub(crate) fn run(self) {
        let command = match self {
            Barrier::Expedited => MembarrierCommand::GlobalExpedited,
            Barrier::Global => MembarrierCommand::Global,
        };
        // It has worked once with the same arguments; without it nothing here is sound.
        if let Err(e) = membarrier(command) {
            panic!("membarrier {command:?} failed after it had worked: {e}");
        }
    }
}

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

    /// Waits until each has moved, at most `limit`; whether they have. First spins
    /// (most calls last microseconds), then sleeps ever longer.
    pub(crate) fn wait(&mut self, page: &ClientPage, limit: Duration) -> bool {
        const SPINS: u32 = 200;
        const NAP_MAX: Duration = Duration::from_millis(2);
        for _ in 0..SPINS {
            if self.passed(page) {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut slept = Duration::ZERO;
        let mut nap = Duration::from_micros(20);
        while slept < limit {
            std::thread::sleep(nap);
            if self.passed(page) {
                return true;
            }
            slept += nap;
            nap = (nap * 2).min(NAP_MAX);
        }
        self.passed(page)
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
    fn entered(&self) -> u64 {
        self.inside.lock().0
    }

    /// Waits until the first `entered` readers have ended.
    fn wait_for(&self, entered: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use shale_device::{Access, Map, nvm::Piece};
    use shale_proto::control::client_page;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn client_side(page: &ClientPage) -> Map {
        let piece = Piece {
            fd: page.fd().unwrap(),
            bytes: client_page::BYTES,
        };
        Map::open(vec![piece], Access::ReadWrite).unwrap()
    }

    #[test]
    fn waits_for_who_is_inside_and_for_nobody_else() {
        let barrier = Barrier::register().unwrap();
        let page = ClientPage::new().unwrap();
        let client = client_side(&page);
        let last = client_page::gate(GATES - 1);
        client.store_u64(client_page::gate(3), 8);
        barrier.run();
        assert!(Inside::look(&page).passed(&page), "even: outside");
        client.store_u64(last, 5);
        barrier.run();
        let mut inside = Inside::look(&page);
        assert!(!inside.wait(&page, Duration::from_millis(5)), "odd: inside");
        client.store_u64(last, 7);
        assert!(inside.passed(&page), "inside of another call: passed");
    }

    #[test]
    fn own_readers_hold_back_only_who_came_after() {
        let readers = Arc::new(OwnReaders::default());
        let first = readers.enter();
        let before = readers.entered();
        let later = readers.enter();
        let passed = Arc::new(AtomicBool::new(false));
        let (r, p) = (readers.clone(), passed.clone());
        let waiter = std::thread::spawn(move || {
            r.wait_for(before);
            p.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!passed.load(Ordering::SeqCst));
        drop(first);
        waiter.join().unwrap();
        drop(later);
    }
}
