//! Which pages of a mapping were stored to since somebody asked.
//!
//! A page is marked after the store to it: who takes the marks and then copies the pages has every store in
//! the copy, or finds its page marked the next time.

use super::PAGE_BYTES;
use super::page_set::bits;
use shale_nvm::{Event, Path, Recorder, Sink};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of a mapping that were stored to: a [`Recorder`] for [`shale_nvm::MapOptions::recorder`]. Several mappings of one
/// file may have the same one. What [`shale_nvm::Map`] does not record (its whole mapping zeroed) is not noted.
pub struct DirtyPages {
    bytes: u64,
    words: Vec<AtomicU64>,
}

impl DirtyPages {
    /// None, of a mapping of at most `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        let words = bytes.div_ceil(PAGE_BYTES as u64 * 64);
        Self {
            bytes,
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Takes them out, ascending.
    pub fn take(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (n, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) != 0 {
                let taken = word.swap(0, Ordering::AcqRel);
                pages.extend(bits(taken).map(|bit| n as u64 * 64 + bit));
            }
        }
        pages
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.words.iter().map(ones).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Always one locked instruction, also where the mark is there: it makes the store before it visible first.
    fn mark(&self, page: usize) {
        self.words[page / 64].fetch_or(1 << (page % 64), Ordering::AcqRel);
    }
}

/// The range of bytes that one access stored to.
#[derive(Default)]
struct Stored {
    from: usize,
    end: usize,
}

impl Sink for Stored {
    fn note(&mut self, event: Event<'_>) {
        let Event::Store { offset, bytes, .. } = event else {
            return;
        };
        let end = offset + bytes.len();
        (self.from, self.end) = match self.end {
            0 => (offset, end),
            _ => (self.from.min(offset), self.end.max(end)),
        };
    }
}

impl Recorder for DirtyPages {
    fn attached(&self, bytes: usize, _read: &dyn Fn(&mut [u8])) {
        assert!(
            bytes as u64 <= self.bytes,
            "a mapping of {bytes} bytes, and marks for {}",
            self.bytes
        );
    }

    /// Accesses of several threads run at once: marks need no order.
    fn record(&self, _path: Path, act: &mut dyn FnMut(&mut dyn Sink)) {
        let mut stored = Stored::default();
        act(&mut stored);
        if stored.end > 0 {
            let last = (stored.end - 1) / PAGE_BYTES;
            (stored.from / PAGE_BYTES..=last).for_each(|page| self.mark(page));
        }
    }
}
