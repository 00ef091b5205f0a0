//! Dropping pages that a read has filled with what was there before a write, before the write is answered: see
//! [`super::pages`].
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

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use super::pages::{PAGE, Range};
use super::peek::Peeks;
use crate::serving::notify::{Inval, Notifier, keeps_nothing};

/// Threads that drop pages.
pub(crate) const DROP_THREADS: usize = 2;
/// An answer waits so long at most for its pages to be dropped.
const WAIT_MAX: Duration = Duration::from_millis(20);

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
}
