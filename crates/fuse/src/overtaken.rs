//! Writes that a read overtakes on their way.
//!
//! What a program writes the kernel puts into a page, lets go of the page, and then asks. If a
//! notification drops the page in between (another client wanted the file) and somebody reads, the
//! kernel asks for the page anew. That read may be answered before the write is done, and its page
//! is kept: all programs on the mount would read the bytes from before, long after the write has
//! returned. (Memory pressure drops no such page: the write refers to it.)
//!
//! So drops and what was filled after them are noted, and when a write is done whose pages may have
//! been filled since they were dropped, they are dropped once more, before it is answered.
//! Two requests of one file that come through the pages are never under way at once, but reads: the
//! kernel has the inode locked for a write.
//!
//! Dropping waits for the lock of a page. The last page of a write is locked until the answer if it
//! was not read before and is not covered wholly. Then no read can have filled it since, and it
//! is not noted; but for memory pressure, and a read that came just while it was dropped. So the
//! answer waits [`WAIT_MAX`] at most (DESIGN §31).
//!
//! Lock order: the files are a leaf.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use crate::notify::{Inval, Notifier, keeps_nothing};

/// Threads that drop pages.
pub(crate) const DROP_THREADS: usize = 2;
/// What the kernel has put into a page it asks for within this time.
const RECENT: Duration = Duration::from_secs(1);
/// Ranges of a file that are noted apart from each other; more become one.
const RANGES_MAX: usize = 32;
/// Files whose entries are looked through for old ones when there are so many.
const FILES_MAX: usize = 1 << 12;
/// An answer waits so long at most for its pages to be dropped.
const WAIT_MAX: Duration = Duration::from_millis(20);
const PAGE: u64 = 4096;

/// Bytes from the first to before the second.
type Range = (u64, u64);

struct File {
    dropped: Instant,
    /// Pages that reads have filled since, or may have.
    filled: Vec<Range>,
}

/// See the module.
pub(crate) struct Overtaken {
    files: Mutex<HashMap<u64, File>>,
    begun: Instant,
    /// Nanoseconds after `begun` at which pages were dropped last, and one; 0: never.
    last: AtomicU64,
    /// A process before this one may have dropped pages of any file.
    continues: bool,
}

fn pages(offset: u64, bytes: u64) -> Range {
    let end = offset.saturating_add(bytes);
    (
        offset / PAGE * PAGE,
        end.div_ceil(PAGE).saturating_mul(PAGE),
    )
}

impl Overtaken {
    /// `continues`: the mount was served by another process before.
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            files: Mutex::default(),
            begun: Instant::now(),
            last: AtomicU64::new(0),
            continues,
        }
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether pages of any file were dropped lately.
    fn any(&self) -> bool {
        let last = self.last.load(Ordering::Acquire);
        let recent = |since: u64| self.nanos().saturating_sub(since) < RECENT.as_nanos() as u64;
        (last != 0 && recent(last)) || self.inherits()
    }

    /// Whether a process before this one may have dropped pages lately.
    fn inherits(&self) -> bool {
        self.continues && self.begun.elapsed() < RECENT
    }

    /// Before pages are dropped; all of the file's or some.
    pub(crate) fn dropping(&self, ino: u64, all: bool) {
        let mut files = self.files.lock();
        if files.len() >= FILES_MAX && !files.contains_key(&ino) {
            files.retain(|_, file| file.dropped.elapsed() < RECENT);
        }
        let file = files.entry(ino).or_insert_with(|| File {
            dropped: Instant::now(),
            filled: Vec::new(),
        });
        file.dropped = Instant::now();
        if all {
            file.filled.clear();
        }
        self.last.store(self.nanos() + 1, Ordering::Release);
    }

    /// They are dropped.
    pub(crate) fn dropped(&self, ino: u64) {
        if let Some(file) = self.files.lock().get_mut(&ino) {
            file.dropped = Instant::now();
        }
        self.last.store(self.nanos() + 1, Ordering::Release);
    }

    /// Before a read that fills pages is served.
    pub(crate) fn fills(&self, ino: u64, offset: u64, bytes: u64) {
        if !self.any() {
            return;
        }
        let mut files = self.files.lock();
        if self.inherits() {
            files.entry(ino).or_insert_with(|| File {
                dropped: Instant::now(),
                filled: Vec::new(),
            });
        }
        let Some(file) = files.get_mut(&ino) else {
            return;
        };
        let new = pages(offset, bytes);
        if file.filled.len() < RANGES_MAX {
            file.filled.push(new);
        } else {
            let all = file.filled.drain(..);
            let hull = all.fold(new, |a, b| (a.0.min(b.0), a.1.max(b.1)));
            file.filled.push(hull);
        }
    }

    /// After a write through the pages was done: whether a read may have filled some of its pages since
    /// they were dropped.
    pub(crate) fn overtakes(&self, ino: u64, offset: u64, bytes: u64) -> bool {
        if bytes == 0 || !self.any() {
            return false;
        }
        let (from, to) = pages(offset, bytes);
        let files = self.files.lock();
        files.get(&ino).is_some_and(|file| {
            let recent = file.dropped.elapsed() < RECENT;
            recent && file.filled.iter().any(|f| f.0 < to && from < f.1)
        })
    }
}

/// Pages to be dropped.
struct Wish {
    ino: u64,
    what: Inval,
    done: SyncSender<()>,
}

/// To who drops pages.
#[derive(Clone)]
pub(crate) struct Dropper(Sender<Wish>);

/// Where wishes come from.
#[derive(Clone)]
pub(crate) struct Wishes(Arc<Mutex<Receiver<Wish>>>);

impl Dropper {
    pub(crate) fn new() -> (Self, Wishes) {
        let (sender, receiver) = channel();
        (Self(sender), Wishes(Arc::new(Mutex::new(receiver))))
    }

    /// Has pages dropped and waits for it, [`WAIT_MAX`] at most.
    pub(crate) fn drop_pages(&self, ino: u64, offset: u64, bytes: u64) {
        let (done, is_done) = sync_channel(1);
        let what = Inval::Range { offset, bytes };
        if self.0.send(Wish { ino, what, done }).is_ok() && is_done.recv_timeout(WAIT_MAX).is_err()
        {
            tracing::debug!(ino, "a write is answered before its pages are dropped");
        }
    }
}

impl Wishes {
    /// Drops pages until nobody can wish it any more.
    pub(crate) fn run(&self, notifier: &Notifier) {
        loop {
            let Ok(wish) = self.0.lock().recv() else {
                return;
            };
            match notifier.inval_inode(wish.ino, wish.what) {
                Err(e) if keeps_nothing(&e) => {}
                Err(error) => tracing::error!(wish.ino, %error, "the kernel keeps old pages"),
                Ok(()) => {}
            }
            // Nobody waits any more: it took too long.
            let _ = wish.done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_overtaken_by_reads_after_a_drop_only() {
        let o = Overtaken::new(false);
        o.fills(5, 0, 4096);
        assert!(!o.overtakes(5, 0, 10), "nothing was dropped");
        o.dropping(5, true);
        o.dropped(5);
        assert!(!o.overtakes(5, 0, 10), "nothing was filled since");
        o.fills(5, 5000, 10);
        o.fills(6, 0, 10);
        assert!(!o.overtakes(5, 0, 4096), "another page");
        assert!(o.overtakes(5, 4095, 2) && o.overtakes(5, 8191, 1));
        assert!(!o.overtakes(5, 8192, 1) && !o.overtakes(5, 5000, 0));
        assert!(!o.overtakes(6, 0, 1), "of this file nothing was dropped");
        o.dropping(5, false);
        assert!(o.overtakes(5, 5000, 1), "perhaps not of this page");
        o.dropping(5, true);
        assert!(!o.overtakes(5, 5000, 1));
    }

    #[test]
    fn a_process_before_this_one_may_have_dropped_pages() {
        let o = Overtaken::new(true);
        o.fills(5, 0, 1);
        assert!(o.overtakes(5, 0, 1) && !o.overtakes(6, 0, 1));
    }

    #[test]
    fn ranges_and_files_are_bounded() {
        let o = Overtaken::new(false);
        o.dropping(5, true);
        for n in 0..10 * RANGES_MAX as u64 {
            o.fills(5, (n + 1) * 2 * PAGE, 1);
        }
        assert!(o.files.lock()[&5].filled.len() <= RANGES_MAX);
        assert!(o.overtakes(5, 2 * PAGE, 1) && !o.overtakes(5, 0, PAGE));
        let old = Instant::now().checked_sub(2 * RECENT).unwrap();
        for ino in 10..10 + FILES_MAX as u64 {
            o.dropping(ino, true);
            o.files.lock().get_mut(&ino).unwrap().dropped = old;
        }
        o.dropping(6, true);
        assert!(o.files.lock().len() < 10);
    }
}
