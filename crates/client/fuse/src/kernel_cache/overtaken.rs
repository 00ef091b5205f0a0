//! Writes that a read overtakes on their way.
//!
//! What a program writes the kernel puts into a page, lets go of the page, and then asks. If a
//! notification drops the page in between (another client wanted the file) and somebody reads, the
//! kernel asks for the page again. That read may be answered before the write is done, and its page
//! is kept: all FUSE clients would read the bytes from before, long after the write has
//! returned. (Memory pressure drops no such page: the write refers to it.)
//!
//! So drops and what was filled after them are noted, and when a write is done whose pages may have
//! been filled since they were dropped, they are dropped once more, before it is answered.
//! Two requests of one file that come through the pages are never under way at once, but reads: the
//! kernel has the inode locked for a write.
//!
//! Dropping waits for the lock of a page, and the kernel keeps the last folio of a write, which may be many pages, locked
//! until the answer if it had not been read before and is not covered wholly. Who waits for that before the
//! answer waits for itself, and if it is killed then, its thread never ends, nor does the process. So what is kept
//! is looked at first, which waits for nobody ([`Peeks`]). Of each page there is
//!
//! * what was written: nobody has filled the page since;
//! * something else: somebody has, so this write has no lock on it, and it is dropped before the answer;
//! * nothing, since the kernel keeps no such page, or ends at the end of the file that it knows, which an append
//!   moves by its answer only: nothing is done. So of an append that was overtaken zeros may be read until the page is
//!   dropped next. To drop it after the answer, unseen, is worse: the next append is on its way by then, and loses its
//!   page by that.
//!
//! Lock order: the files are a leaf.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use crate::kernel_cache::peek::Peeks;
use crate::serving::notify::{Inval, Notifier, keeps_nothing};

/// Threads that drop pages.
pub(crate) const DROP_THREADS: usize = 2;
/// What the kernel has put into a page it asks for within this time.
const RECENT: Duration = Duration::from_secs(1);
/// Ranges of a file that are noted apart from each other; more become one.
const RANGES_MAX: usize = 32;
/// Files whose entries are scanned for old ones when there are so many.
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

    /// Whether pages of any file were dropped recently.
    fn any(&self) -> bool {
        let last = self.last.load(Ordering::Acquire);
        let recent = |since: u64| self.nanos().saturating_sub(since) < RECENT.as_nanos() as u64;
        (last != 0 && recent(last)) || self.inherits()
    }

    /// Whether a process before this one may have dropped pages recently.
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

/// Pages to be dropped, and who waits for it.
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

/// A write through the pages that was done and is not answered yet.
pub(crate) struct Done<'a> {
    pub(crate) ino: u64,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
}

/// Looks at one write at most. A look ends where a page is missing.
const LOOKS_MAX: usize = 8;

impl Done<'_> {
    /// The part from `offset` on that is on one page: its end.
    fn page_end(&self, offset: u64) -> u64 {
        let end = self.offset + self.data.len() as u64;
        end.min((offset / PAGE + 1) * PAGE)
    }

    fn bytes(&self, (from, to): Range) -> &[u8] {
        &self.data[(from - self.offset) as usize..(to - self.offset) as usize]
    }

    /// Parts of the write by page of which something else is kept than what was written, where `look` gives what the kernel
    /// keeps in a range, from its begin to the first byte that is not kept.
    fn old(&self, mut look: impl FnMut(Range) -> Option<Vec<u8>>) -> Vec<Range> {
        let end = self.offset + self.data.len() as u64;
        let mut at = self.offset;
        let mut old = Vec::new();
        for _ in 0..LOOKS_MAX {
            let kept = look((at, end)).unwrap_or_default();
            let mut kept = &kept[..];
            // The page on which it ends, too: the next look begins behind that.
            while at < end {
                let part = (at, self.page_end(at));
                let here;
                (here, kept) = kept.split_at(kept.len().min((part.1 - part.0) as usize));
                if !self.bytes(part).starts_with(here) {
                    old.push(part);
                }
                at = part.1;
                if kept.is_empty() {
                    break;
                }
            }
            if at == end {
                break;
            }
        }
        old
    }
}

impl Dropper {
    pub(crate) fn new() -> (Self, Wishes) {
        let (sender, receiver) = channel();
        (Self(sender), Wishes(Arc::new(Mutex::new(receiver))))
    }

    /// Has pages dropped that reads have filled with what was there before a write.
    pub(crate) fn resolve(&self, peeks: &Peeks, notifier: &Notifier, done: &Done<'_>) {
        let ino = done.ino;
        let look = |(from, to): Range| peeks.look(notifier, ino, from, (to - from) as u32);
        for (from, to) in done.old(look) {
            self.drop_and_wait(ino, from, to - from);
        }
    }

    /// Has pages dropped and waits for it, [`WAIT_MAX`] at most.
    fn drop_and_wait(&self, ino: u64, offset: u64, bytes: u64) {
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
            let _ = wish.done.try_send(());
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
    fn every_page_of_a_write_is_looked_at() {
        let data = [b'n'; 4 * PAGE as usize];
        let done = Done {
            ino: 5,
            offset: 1000,
            data: &data,
        };
        // Page 0 is new, 1 is missing, 2 is old, 3 ends early with something old, 4 is missing.
        let kept = |(from, _): Range| match from {
            1000 => Some(vec![b'n'; (PAGE - 1000) as usize]),
            PAGE => Some(Vec::new()),
            n if n == 2 * PAGE => Some([vec![b'o'; PAGE as usize], vec![b'n', b'o']].concat()),
            _ => None,
        };
        let page = |n: u64| (n * PAGE, (n + 1) * PAGE);
        assert_eq!(done.old(kept), [page(2), page(3)]);
        // A page that ends early and has what was written, as at the end of an append.
        assert_eq!(done.old(|_| Some(vec![b'n'; 10])), []);
        let mut looks = 0;
        let long = [0; 100 * PAGE as usize];
        let none = |_| {
            looks += 1;
            None
        };
        let done = Done {
            data: &long,
            ..done
        };
        assert_eq!((done.old(none), looks), (vec![], LOOKS_MAX));
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
