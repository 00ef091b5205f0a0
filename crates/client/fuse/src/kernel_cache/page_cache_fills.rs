//! Pages that the kernel fills while a file is written past them.
//!
//! A write bypassing the kernel's page cache (`O_DIRECT`) has the kernel drop its pages before the request and
//! after the answer; `fallocate` and `copy_file_range` after it. In between somebody may read the file
//! through the pages: the kernel asks, gets the bytes from before, and keeps them until the answer has
//! come. Meanwhile the change is done, and a reader that bypasses the page cache sees it. So such a change drops
//! the pages itself, and is done only if none has been filled since; what would fill one while it is
//! done waits. Bytes that were given out before are then in a page that was dropped, or under the
//! lock of one, for which dropping waits (DESIGN §31).
//!
//! Not a change of the size by `truncate`: during that the kernel keeps dirty pages of mappings back, and
//! dropping would wait for them.
//!
//! Files are known by the stamp of the last request that filled pages. Of files that are not known
//! any more pages are dropped once too often.
//!
//! Lock order: the shards are leaves.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
/// Files of a shard that are known.
const FILES_MAX: usize = 1 << 10;
/// Who fills a page waits so long at most. The write may wait for somebody who has the pages dropped
/// (a client that wants the file), who in turn waits for this page.
const HELD_MAX: Duration = Duration::from_millis(20);

struct File {
    /// The last request that filled pages.
    filled: u64,
    /// The last one whose pages were dropped.
    dropped: u64,
    /// Writes that are being done.
    held: u32,
}

#[derive(Default)]
struct Shard {
    files: Mutex<HashMap<u64, File>>,
    let_go: Condvar,
}

/// See the module.
#[derive(Default)]
pub(crate) struct PageFillTracker {
    shards: [Shard; SHARDS],
    stamps: AtomicU64,
}

impl PageFillTracker {
    fn shard(&self, ino: u64) -> &Shard {
        &self.shards[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn file<'f>(
        &self,
        files: &'f mut MutexGuard<'_, HashMap<u64, File>>,
        ino: u64,
    ) -> &'f mut File {
        if files.len() >= FILES_MAX && !files.contains_key(&ino) {
            files.retain(|_, file| file.held > 0);
        }
        files.entry(ino).or_insert_with(|| File {
            filled: self.stamp(),
            dropped: 0,
            held: 0,
        })
    }

    /// Before a request that fills pages is served.
    pub(crate) fn fill(&self, ino: u64) {
        let shard = self.shard(ino);
        let mut files = shard.files.lock();
        if files.get(&ino).is_some_and(|file| file.held > 0) {
            let until = Instant::now() + HELD_MAX;
            let held = |files: &mut HashMap<u64, File>| files.get(&ino).is_some_and(|f| f.held > 0);
            let _ = shard.let_go.wait_while_until(&mut files, held, until);
        }
        self.file(&mut files, ino).filled = self.stamp();
    }

    /// Holds as [`Self::hold`] does if no page has been filled since they were dropped; gives the last
    /// request that did.
    pub(crate) fn hold_dropped(&self, ino: u64) -> Option<u64> {
        let mut files = self.shard(ino).files.lock();
        let file = self.file(&mut files, ino);
        let holds = file.filled == file.dropped;
        file.held += u32::from(holds);
        holds.then_some(file.dropped)
    }

    /// The last request that filled pages, for [`Self::hold`] after they were dropped.
    pub(crate) fn last(&self, ino: u64) -> u64 {
        let mut files = self.shard(ino).files.lock();
        self.file(&mut files, ino).filled
    }

    /// Has requests that would fill pages wait for a write, if none came since `last`, or if it has
    /// to be. [`Self::let_go`] follows if it did.
    pub(crate) fn hold(&self, ino: u64, last: u64, has_to: bool) -> bool {
        let mut files = self.shard(ino).files.lock();
        let file = self.file(&mut files, ino);
        let holds = has_to || file.filled == last;
        file.held += u32::from(holds);
        holds
    }

    /// The write is done. `true`: pages were filled since `last` all the same.
    pub(crate) fn let_go(&self, ino: u64, last: u64) -> bool {
        let shard = self.shard(ino);
        let mut files = shard.files.lock();
        let file = self.file(&mut files, ino);
        file.held -= 1;
        let filled = file.filled != last;
        if !filled {
            file.dropped = last;
        }
        shard.let_go.notify_all();
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_write_holds_only_if_no_page_was_filled_since_they_were_dropped() {
        let fills = PageFillTracker::default();
        assert!(
            fills.hold_dropped(5).is_none(),
            "of a file that is not known there may be pages"
        );
        let last = fills.last(5);
        fills.fill(5);
        assert!(!fills.hold(5, last, false));
        let last = fills.last(5);
        assert!(fills.hold(5, last, false) && !fills.let_go(5, last));
        assert_eq!(
            (fills.hold_dropped(5), fills.hold_dropped(6)),
            (Some(last), None)
        );
        assert!(!fills.let_go(5, last));
        fills.fill(5);
        assert_eq!(fills.hold_dropped(5), None);
    }

    #[test]
    fn who_fills_a_page_waits_for_the_write_but_not_for_ever() {
        let fills = Arc::new(PageFillTracker::default());
        let last = fills.last(5);
        assert!(fills.hold(5, last, false));
        let begun = Instant::now();
        fills.fill(6);
        assert!(begun.elapsed() < HELD_MAX, "another file");
        fills.fill(5);
        assert!(begun.elapsed() >= HELD_MAX);
        assert!(fills.let_go(5, last), "the page may be old");
        let last = fills.last(5);
        assert!(fills.hold(5, last, false));
        let other = fills.clone();
        let filling = std::thread::spawn(move || other.fill(5));
        std::thread::sleep(Duration::from_millis(2));
        let filled = fills.let_go(5, last);
        filling.join().unwrap();
        assert!(filled || fills.last(5) != last);
    }

    #[test]
    fn files_that_were_forgotten_for_want_of_space_count_as_filled() {
        let fills = PageFillTracker::default();
        let last = fills.last(5);
        assert!(fills.hold(5, last, false) && !fills.let_go(5, last));
        (0..200_000).for_each(|ino| fills.fill(ino + 10));
        assert!(fills.hold_dropped(5).is_none() && fills.last(5) != last);
        let known: usize = fills.shards.iter().map(|s| s.files.lock().len()).sum();
        assert!(known <= SHARDS * FILES_MAX);
    }
}
