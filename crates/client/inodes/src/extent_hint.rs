//! The run of blocks in which a file was looked up last, to be read without a lock.
//!
//! Readers come and go while one of them notes another run, so a reader reads the sequence before and
//! after: odd, or not the same, means that what it saw may be of two runs.
//!
//! Invariants: those who change it hold the lock of the file's leaves. Who asks or notes holds the
//! lock of the inode's state; who forgets, because the volume's roots are others now, holds it alone.

use shale_format::{BlockAddr, FileBlock};
use shale_sys::mutants;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Blocks `first..end` of a file, which lie from `addr` on; none if `end` is 0.
#[derive(Default)]
pub(crate) struct ExtentHint {
    sequence: AtomicU64,
    first: AtomicU64,
    end: AtomicU64,
    addr: AtomicU64,
}

impl ExtentHint {
    /// Where block `fb` lies, and how many blocks follow one another from there on.
    #[inline]
    pub(crate) fn get(&self, fb: FileBlock) -> Option<(BlockAddr, u64)> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let first = self.first.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let addr = self.addr.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let one = sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        if !one || fb.0 < first || fb.0 >= end {
            return None;
        }
        let addr = BlockAddr::from_raw(addr).plus(fb.0 - first);
        Some((addr, end - fb.0))
    }

    /// Notes that `len` blocks from `fb` on lie from `addr` on.
    pub(crate) fn note(&self, fb: FileBlock, addr: BlockAddr, len: u64) {
        self.set(fb.0, fb.0.saturating_add(len), addr.raw());
    }

    /// Nothing is known.
    pub(crate) fn forget(&self) {
        if !mutants::is_on("extent-hint-kept") {
            self.set(0, 0, 0);
        }
    }

    fn set(&self, first: u64, end: u64, addr: u64) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.first.store(first, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.addr.store(addr, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn the_last_run_answers_and_is_forgotten() {
        let extent_hint = ExtentHint::default();
        assert_eq!(extent_hint.get(FileBlock(0)), None);
        extent_hint.note(FileBlock(10), BlockAddr::nvm(100), 4);
        let at = |fb| extent_hint.get(FileBlock(fb));
        assert_eq!(at(10), Some((BlockAddr::nvm(100), 4)));
        assert_eq!(at(13), Some((BlockAddr::nvm(103), 1)));
        assert_eq!((at(9), at(14)), (None, None));
        extent_hint.forget();
        assert_eq!(at(10), None);
    }

    /// Of runs that are noted in turn a reader never sees parts of two.
    #[test]
    fn nobody_sees_parts_of_two_runs() {
        let (extent_hint, stop) = (ExtentHint::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let mut seen = 0u64;
                while !stop.load(Ordering::Relaxed) || seen == 0 {
                    for fb in 0..8 {
                        if let Some((addr, len)) = extent_hint.get(FileBlock(fb)) {
                            let run = addr.index() / 1_000;
                            assert_eq!(addr.index(), run * 1_000 + fb, "run {run}");
                            assert_eq!(len, run + 8 - fb, "run {run}");
                            seen += 1;
                        }
                    }
                }
                seen
            });
            for sequence in 0..2_000_000u64 {
                let run = sequence % 7 + 1;
                extent_hint.note(FileBlock(0), BlockAddr::nvm(run * 1_000), run + 8);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(seen.join().unwrap() > 0);
        });
    }
}
