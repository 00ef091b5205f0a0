//! Which pages of a mapping may be stored to, and which the kernel has mapped writable.
//!
//! The two differ in one case. The kernel keeps a bounded number of ranges of different access for a process
//! (`vm.max_map_count`, 65,530 unless set; then every `mmap` of the process fails, those of `malloc` too), and a client
//! that is granted single blocks in any order would come to one range for every two blocks. From [`RUNS_MAX`] runs of
//! writable pages on, a page that becomes writable is mapped writable together with all up to the nearest run, and one
//! that becomes read-only stays writable where it would cut a run in two: no new run comes to be. What may be stored to
//! is exact all the same, and every store through a view is checked against it; only a stray store of the program, which
//! the MMU would have stopped, has more places to go (a protection key still stops it, where the processor has them).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs of writable pages in a mapping that is otherwise read-only, from which on they are joined.
pub(crate) const RUNS_MAX: usize = 1024;

/// A bit for each page of a mapping.
#[derive(Debug)]
pub(crate) struct WritablePages {
    allowed: Vec<AtomicU64>,
    mapped: Mutex<MappedRuns>,
}

/// The pages that the kernel has mapped writable.
#[derive(Debug)]
pub(crate) struct MappedRuns {
    bits: Vec<u64>,
    /// How many runs of ones there are in `bits`.
    runs: usize,
}

/// Calls `f` with each word of a bitmap that a range of pages touches, and the bits there, until it gives `false`;
/// whether it never did.
#[inline]
fn for_words(pages: &Range<usize>, mut f: impl FnMut(usize, u64) -> bool) -> bool {
    let (mut page, end) = (pages.start, pages.end);
    while page < end {
        let bits = (64 - page % 64).min(end - page);
        let mask = u64::MAX >> (64 - bits) << (page % 64);
        if !f(page / 64, mask) {
            return false;
        }
        page += bits;
    }
    true
}

impl WritablePages {
    /// None of `pages` pages may be stored to.
    pub(crate) fn none(pages: usize) -> Self {
        let words = pages / 64 + 1;
        WritablePages {
            allowed: (0..words).map(|_| AtomicU64::new(0)).collect(),
            mapped: Mutex::new(MappedRuns {
                bits: vec![0; words],
                runs: 0,
            }),
        }
    }

    /// Notes whether pages may be stored to.
    pub(crate) fn allow(&self, pages: &Range<usize>, stores: bool) {
        for_words(pages, |word, mask| {
            match stores {
                true => self.allowed[word].fetch_or(mask, Ordering::SeqCst),
                false => self.allowed[word].fetch_and(!mask, Ordering::SeqCst),
            };
            true
        });
    }

    /// Whether every one of the pages may be stored to.
    #[inline]
    pub(crate) fn is_allowed(&self, pages: &Range<usize>) -> bool {
        for_words(pages, |word, mask| {
            self.allowed[word].load(Ordering::Acquire) & mask == mask
        })
    }

    /// What the kernel has mapped writable; nobody else maps anything until the guard is dropped.
    pub(crate) fn mapped(&self) -> MutexGuard<'_, MappedRuns> {
        // Each change is one call of `set`, which does not panic.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MappedRuns {
    /// The pages to map writable so that `pages` are: these, or more of `within` once there are many runs.
    pub(crate) fn widened(&self, pages: &Range<usize>, within: &Range<usize>) -> Range<usize> {
        debug_assert!(within.start <= pages.start && pages.end <= within.end);
        if self.runs < RUNS_MAX || self.touches(pages) {
            return pages.clone();
        }
        let below = self.last_one(within.start..pages.start);
        let above = self.first_one(pages.end..within.end);
        match (below, above) {
            (None, None) => pages.clone(),
            (Some(below), Some(above)) if above - pages.end < pages.start - below => {
                pages.start..above
            }
            (Some(below), _) => below..pages.end,
            (None, Some(above)) => pages.start..above,
        }
    }

    /// Whether making the pages read-only leaves as many runs as there may be.
    pub(crate) fn may_close(&self, pages: &Range<usize>) -> bool {
        self.runs < RUNS_MAX
            || !(pages.start > 0 && self.is_set(pages.start - 1) && self.is_set(pages.end))
    }

    /// Notes what the kernel has mapped.
    pub(crate) fn set(&mut self, pages: &Range<usize>, writable: bool) {
        self.runs -= self.starts(pages);
        let bits = &mut self.bits;
        for_words(pages, |word, mask| {
            match writable {
                true => bits[word] |= mask,
                false => bits[word] &= !mask,
            }
            true
        });
        self.runs += self.starts(pages);
    }

    #[cfg(test)]
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// How many runs start in `pages` or right after them: those that a change of `pages` can make or end.
    fn starts(&self, pages: &Range<usize>) -> usize {
        let mut starts = 0;
        for_words(&(pages.start..pages.end + 1), |word, mask| {
            let before = word.checked_sub(1).map_or(0, |w| self.word(w) >> 63);
            let ones = self.word(word);
            starts += (ones & !(ones << 1 | before) & mask).count_ones() as usize;
            true
        });
        starts
    }

    /// A word of the bitmap; there are no writable pages after the last.
    fn word(&self, at: usize) -> u64 {
        self.bits.get(at).copied().unwrap_or(0)
    }

    fn touches(&self, pages: &Range<usize>) -> bool {
        pages.start > 0 && self.is_set(pages.start - 1) || self.is_set(pages.end)
    }

    fn is_set(&self, page: usize) -> bool {
        self.word(page / 64) >> (page % 64) & 1 == 1
    }

    /// The first writable page of a range.
    fn first_one(&self, pages: Range<usize>) -> Option<usize> {
        let mut found = None;
        for_words(&pages, |word, mask| {
            let ones = self.bits[word] & mask;
            found = (ones != 0).then(|| word * 64 + ones.trailing_zeros() as usize);
            found.is_none()
        });
        found
    }

    /// The page after the last writable one of a range.
    fn last_one(&self, pages: Range<usize>) -> Option<usize> {
        let mut end = pages.end;
        while end > pages.start {
            let start = (end - 1) / 64 * 64;
            let first = start.max(pages.start);
            let mask = u64::MAX >> (64 - (end - first)) << (first % 64);
            let ones = self.bits[start / 64] & mask;
            if ones != 0 {
                return Some(start + 64 - ones.leading_zeros() as usize);
            }
            end = first;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 16 * RUNS_MAX;

    fn every_fourth() -> WritablePages {
        let pages = WritablePages::none(PAGES);
        for n in 0..RUNS_MAX {
            pages.mapped().set(&(4 * n..4 * n + 1), true);
        }
        assert_eq!(pages.mapped().runs(), RUNS_MAX);
        pages
    }

    /// Runs as they are when counted page by page.
    fn counted(mapped: &MappedRuns) -> usize {
        let starts =
            |page: &usize| mapped.is_set(*page) && (*page == 0 || !mapped.is_set(page - 1));
        (0..PAGES).filter(starts).count()
    }

    #[test]
    fn few_runs_are_mapped_as_they_are() {
        let pages = WritablePages::none(PAGES);
        let mut mapped = pages.mapped();
        assert_eq!(mapped.widened(&(70..72), &(0..PAGES)), 70..72);
        mapped.set(&(70..72), true);
        assert!(mapped.may_close(&(70..71)));
        mapped.set(&(100..300), true);
        mapped.set(&(140..150), false);
        assert_eq!((mapped.runs(), counted(&mapped)), (3, 3));
        mapped.set(&(60..400), true);
        assert_eq!((mapped.runs(), counted(&mapped)), (1, 1));
    }

    #[test]
    fn many_runs_grow_to_the_nearest_and_none_comes_to_be() {
        let pages = every_fourth();
        let mut mapped = pages.mapped();
        let last = 4 * (RUNS_MAX - 1);
        assert_eq!(
            mapped.widened(&(2..3), &(0..PAGES)),
            1..3,
            "below, as far as above"
        );
        assert_eq!(
            mapped.widened(&(7..8), &(0..PAGES)),
            7..8,
            "touches one above"
        );
        assert_eq!(mapped.widened(&(6..8), &(5..PAGES)), 6..8);
        assert_eq!(
            mapped.widened(&(6..7), &(5..PAGES)),
            6..8,
            "none below within the piece"
        );
        assert_eq!(
            mapped.widened(&(last + 700..last + 701), &(0..PAGES)),
            last + 1..last + 701,
            "over words"
        );
        assert_eq!(
            mapped.widened(&(PAGES - 8..PAGES), &(PAGES - 64..PAGES)),
            PAGES - 8..PAGES
        );
        for page in (0..PAGES).step_by(3) {
            let wide = mapped.widened(&(page..page + 1), &(0..PAGES));
            mapped.set(&wide, true);
            assert!(mapped.runs() <= RUNS_MAX, "{page}: {} runs", mapped.runs());
        }
        assert_eq!(mapped.runs(), counted(&mapped));
    }

    #[test]
    fn a_run_is_not_cut_when_there_are_many() {
        let pages = every_fourth();
        let mut mapped = pages.mapped();
        mapped.set(&(8..16), true);
        assert!(mapped.runs() < RUNS_MAX && mapped.may_close(&(10..11)));
        for n in 0..2 {
            mapped.set(&(PAGES - 4 * n - 2..PAGES - 4 * n - 1), true);
        }
        assert!(mapped.runs() >= RUNS_MAX && !mapped.may_close(&(10..11)));
        assert!(mapped.may_close(&(8..9)) && mapped.may_close(&(PAGES - 2..PAGES - 1)));
    }

    #[test]
    fn what_may_be_stored_to_is_exact() {
        let pages = WritablePages::none(PAGES);
        pages.allow(&(60..70), true);
        assert!(
            pages.is_allowed(&(60..70))
                && !pages.is_allowed(&(59..61))
                && !pages.is_allowed(&(69..71))
        );
        pages.allow(&(64..65), false);
        assert!(
            !pages.is_allowed(&(60..70))
                && pages.is_allowed(&(60..64))
                && pages.is_allowed(&(65..70))
        );
    }
}
