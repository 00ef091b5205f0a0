//! Pages of one file that the kernel has filled, and changes that have to do with them.
//!
//! **Changes that bypass the page cache** (`O_DIRECT`, `fallocate`, `copy_file_range`). For a write the kernel drops its
//! pages before the request and after the answer; for the others after it. In between somebody may read the file through
//! the pages: the kernel asks, gets the bytes from before, and keeps them until the answer has come. Meanwhile the change
//! is done, and a reader that bypasses the page cache sees it. So such a change drops the pages itself, and is done only
//! if none has been filled since; what would fill one while it is done waits. Bytes that were given out before are then in
//! a page that was dropped, or under the lock of one, for which dropping waits (DESIGN §31). Not a change of the size by
//! `truncate`: during that the kernel keeps dirty pages of mappings back, and dropping would wait for them.
//!
//! **Writes that a read overtakes on their way.** What a program writes the kernel puts into a page, lets go of the page,
//! and then asks. If a notification drops the page in between (another client wanted the file) and somebody reads, the
//! kernel asks for the page again. That read may be answered before the write is done, and its page is kept: all FUSE
//! clients would read the bytes from before, long after the write has returned. (Memory pressure drops no such page: the
//! write refers to it.) So drops and what was filled after them are noted, and a write whose pages may have been filled
//! since they were dropped has them dropped once more, before it is answered ([`super::page_dropper`]). Two requests of one
//! file that come through the pages are never under way at once, but reads: the kernel has the inode locked for a write.
//!
//! A file is known by the stamp of the last request that filled pages. A file of which nothing is known has a new stamp:
//! its pages are dropped once too often.

use std::time::{Duration, Instant};

/// What the kernel has put into a page it asks for within this time.
pub(super) const RECENT: Duration = Duration::from_secs(1);
/// A question for attributes that was asked before a notification came is answered within this time after it, mostly.
const MOMENT: Duration = Duration::from_millis(20);
/// Ranges of a file that are noted apart from each other; more become one.
const RANGES_MAX: usize = 32;
pub(super) const PAGE: u64 = 4096;

/// Bytes from the first to before the second.
pub(super) type Range = (u64, u64);

/// See the module.
#[derive(Debug)]
pub(super) struct FilePages {
    /// The last request that filled pages.
    filled: u64,
    /// The last one whose pages were dropped.
    dropped: u64,
    /// Changes that bypass the page cache and are being done.
    bypasses: u32,
    /// When a request came last that changes the file in the kernel when it is answered, if there was one.
    changed: Option<Instant>,
    /// Of the last drop by a notification, if there was one.
    since_drop: Option<Box<SinceDrop>>,
}

#[derive(Debug)]
struct SinceDrop {
    at: Instant,
    /// Pages that reads have filled since, or may have.
    filled: Vec<Range>,
}

/// The pages that a range of bytes touches, in bytes.
fn whole_pages(offset: u64, bytes: u64) -> Range {
    let end = offset.saturating_add(bytes);
    (
        offset / PAGE * PAGE,
        end.div_ceil(PAGE).saturating_mul(PAGE),
    )
}

impl SinceDrop {
    fn now() -> Box<Self> {
        Box::new(Self {
            at: Instant::now(),
            filled: Vec::new(),
        })
    }

    fn fills(&mut self, new: Range) {
        if self.filled.len() < RANGES_MAX {
            return self.filled.push(new);
        }
        let all = self.filled.drain(..);
        let hull = all.fold(new, |a, b| (a.0.min(b.0), a.1.max(b.1)));
        self.filled.push(hull);
    }
}

impl FilePages {
    /// Of a file of which nothing is known; `stamp` is a new one.
    pub(super) fn unknown(stamp: u64) -> Self {
        Self {
            filled: stamp,
            dropped: 0,
            bypasses: 0,
            changed: None,
            since_drop: None,
        }
    }

    /// Whether what is known here must not be forgotten yet.
    pub(super) fn must_stay(&self) -> bool {
        let recent = |drop: &SinceDrop| drop.at.elapsed() < RECENT;
        self.is_bypassed() || self.since_drop.as_deref().is_some_and(recent)
    }

    /// A request came that changes the file in the kernel when it is answered.
    pub(super) fn changes(&mut self) {
        self.changed = Some(Instant::now());
    }

    /// Whether such a request came recently, or pages were dropped a moment ago.
    pub(super) fn have_changed(&self) -> bool {
        let changed = self.changed.is_some_and(|at| at.elapsed() < RECENT);
        let dropped = self.since_drop.as_deref();
        changed || dropped.is_some_and(|drop| drop.at.elapsed() < MOMENT)
    }

    /// Whether a change is being done that bypasses the page cache.
    pub(super) fn is_bypassed(&self) -> bool {
        self.bypasses > 0
    }

    /// Before a read that fills pages is served, with a new stamp. `inherits`: a process before this one may have dropped
    /// pages a moment ago.
    pub(super) fn fills(&mut self, stamp: u64, (offset, bytes): (u64, u64), inherits: bool) {
        self.filled = stamp;
        if inherits {
            self.since_drop.get_or_insert_with(SinceDrop::now);
        }
        // What was dropped long ago no write is on its way from.
        self.since_drop.take_if(|drop| drop.at.elapsed() >= RECENT);
        if let Some(drop) = &mut self.since_drop {
            drop.fills(whole_pages(offset, bytes));
        }
    }

    /// The last request that filled pages, for [`Self::bypass`] after they were dropped.
    pub(super) fn last_fill(&self) -> u64 {
        self.filled
    }

    /// Begins a change if no page has been filled since they were dropped; gives the last request that filled one.
    pub(super) fn bypass_if_dropped(&mut self) -> Option<u64> {
        let is_dropped = self.filled == self.dropped;
        self.bypasses += u32::from(is_dropped);
        is_dropped.then_some(self.dropped)
    }

    /// Begins a change if no request filled pages after `last`, or if it has to be; whether it did.
    pub(super) fn bypass(&mut self, last: u64, has_to: bool) -> bool {
        let begins = has_to || self.filled == last;
        self.bypasses += u32::from(begins);
        begins
    }

    /// A change is done. `true`: pages were filled since `last` all the same.
    pub(super) fn end_bypass(&mut self, last: u64) -> bool {
        assert!(self.is_bypassed(), "a change that was begun");
        self.bypasses -= 1;
        let filled = self.filled != last;
        if !filled {
            self.dropped = last;
        }
        filled
    }

    /// Before a notification drops pages; all of the file's or some.
    pub(super) fn dropping(&mut self, all: bool) {
        let drop = self.since_drop.get_or_insert_with(SinceDrop::now);
        drop.at = Instant::now();
        if all {
            drop.filled.clear();
        }
    }

    /// It has dropped them.
    pub(super) fn dropped(&mut self) {
        if let Some(drop) = &mut self.since_drop {
            drop.at = Instant::now();
        }
    }

    /// After a write through the pages was done: whether a read may have filled some of its pages since they were dropped.
    pub(super) fn overtakes(&self, offset: u64, bytes: u64) -> bool {
        let (from, to) = whole_pages(offset, bytes);
        self.since_drop.as_deref().is_some_and(|drop| {
            let recent = drop.at.elapsed() < RECENT;
            recent && drop.filled.iter().any(|f| f.0 < to && from < f.1)
        })
    }

    /// What was known is as old as can be.
    #[cfg(test)]
    pub(super) fn age(&mut self) {
        if let Some(drop) = &mut self.since_drop {
            drop.at = drop.at.checked_sub(2 * RECENT).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_begins_only_if_no_page_was_filled_since_they_were_dropped() {
        let mut pages = FilePages::unknown(1);
        assert_eq!(pages.bypass_if_dropped(), None, "there may be pages");
        let last = pages.last_fill();
        pages.fills(2, (0, 1), false);
        assert!(!pages.bypass(last, false));
        let last = pages.last_fill();
        assert!(pages.bypass(last, false) && pages.must_stay());
        assert!(!pages.end_bypass(last) && !pages.must_stay());
        assert_eq!(pages.bypass_if_dropped(), Some(last));
        assert!(!pages.end_bypass(last));
        pages.fills(3, (0, 1), false);
        assert_eq!(pages.bypass_if_dropped(), None);
        assert!(pages.bypass(last, true), "it has to be");
        assert!(pages.end_bypass(last), "the page may be old");
    }

    #[test]
    fn a_write_is_overtaken_by_reads_after_a_drop_only() {
        let mut pages = FilePages::unknown(1);
        pages.fills(2, (0, 4096), false);
        assert!(!pages.overtakes(0, 10), "nothing was dropped");
        pages.dropping(true);
        pages.dropped();
        assert!(!pages.overtakes(0, 10), "nothing was filled since");
        pages.fills(3, (5000, 10), false);
        assert!(!pages.overtakes(0, 4096), "another page");
        assert!(pages.overtakes(4095, 2) && pages.overtakes(8191, 1));
        assert!(!pages.overtakes(8192, 1));
        pages.dropping(false);
        assert!(pages.overtakes(5000, 1), "perhaps not of this page");
        assert!(pages.must_stay());
        pages.age();
        assert!(!pages.overtakes(5000, 1) && !pages.must_stay());
        pages.dropping(true);
        assert!(!pages.overtakes(5000, 1));
    }

    #[test]
    fn a_process_before_this_one_may_have_dropped_pages() {
        let mut pages = FilePages::unknown(1);
        pages.fills(2, (0, 1), true);
        assert!(pages.overtakes(0, 1) && !pages.overtakes(PAGE, 1));
    }

    #[test]
    fn ranges_are_bounded() {
        let mut pages = FilePages::unknown(1);
        pages.dropping(true);
        for n in 0..10 * RANGES_MAX as u64 {
            pages.fills(2, ((n + 1) * 2 * PAGE, 1), false);
        }
        assert!(pages.since_drop.as_ref().unwrap().filled.len() <= RANGES_MAX);
        assert!(pages.overtakes(2 * PAGE, 1) && !pages.overtakes(0, PAGE));
    }
}
