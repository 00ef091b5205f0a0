//! Where a scan reads a log file.
//!
//! A client has the file of its log open for writing, so it can cut it short at any
//! moment. A load through a mapping would then end the reader (SIGBUS). So a thread that
//! reads the log of somebody it does not trust reads it by calls into the kernel, which
//! say what is not there; a client that reads its own log reads the mapping.

use shale_nvm::MappedRegion;

/// The bytes of a log file, for reading.
pub trait LogReader: Send + Sync {
    /// Bytes of the file when it was opened.
    fn bytes(&self) -> usize;
    /// Copies bytes from byte `at` on; `false`: they are not all there (any more), and
    /// what is in `into` means nothing.
    #[must_use]
    fn load(&self, at: usize, into: &mut [u8]) -> bool;
    /// The mapping, if the bytes can be had without a call into the kernel.
    fn mapped(&self) -> Option<&MappedRegion> {
        None
    }
}

impl LogReader for MappedRegion {
    fn bytes(&self) -> usize {
        MappedRegion::bytes(self)
    }
    fn load(&self, at: usize, into: &mut [u8]) -> bool {
        MappedRegion::load(self, at, into);
        true
    }
    fn mapped(&self) -> Option<&MappedRegion> {
        Some(self)
    }
}

/// Bytes that are read ahead where each read is a call into the kernel.
const AHEAD_BYTES: usize = 64 << 10;

/// Reads a log file in order. What was read ahead is a private copy: nobody changes it
/// between two looks.
pub(crate) struct Window<'a> {
    log: &'a dyn LogReader,
    at: usize,
    ahead: Vec<u8>,
    most: usize,
}

impl<'a> Window<'a> {
    pub(crate) fn new(log: &'a dyn LogReader) -> Self {
        Self {
            log,
            at: 0,
            ahead: Vec::new(),
            most: log.mapped().map_or(AHEAD_BYTES, |_| 0),
        }
    }

    /// As [`LogReader::load`].
    pub(crate) fn load(&mut self, at: usize, into: &mut [u8]) -> bool {
        if into.len() >= self.most {
            return self.log.load(at, into);
        }
        let inside = |w: &Self| at >= w.at && at + into.len() <= w.at + w.ahead.len();
        if !inside(self) {
            self.at = at;
            let bytes = self.most.min(self.log.bytes().saturating_sub(at));
            self.ahead.resize(bytes, 0);
            if !self.log.load(at, &mut self.ahead) {
                self.ahead.clear();
                return self.log.load(at, into);
            }
        }
        if !inside(self) {
            return false;
        }
        into.copy_from_slice(&self.ahead[at - self.at..][..into.len()]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A file that somebody cuts short.
    struct Cut {
        calls: AtomicUsize,
        there: AtomicUsize,
    }

    impl LogReader for Cut {
        fn bytes(&self) -> usize {
            1 << 20
        }
        fn load(&self, at: usize, into: &mut [u8]) -> bool {
            self.calls.fetch_add(1, Ordering::Relaxed);
            for (n, b) in into.iter_mut().enumerate() {
                *b = (at + n) as u8;
            }
            at + into.len() <= self.there.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn what_was_read_ahead_stays_and_what_is_gone_is_reported() {
        let cut = Cut {
            calls: AtomicUsize::new(0),
            there: AtomicUsize::new(1 << 20),
        };
        let mut w = Window::new(&cut);
        let mut line = [0; 64];
        assert!(w.load(100, &mut line) && line[0] == 100);
        cut.there.store(0, Ordering::Relaxed);
        assert!(w.load(200, &mut line) && line[0] == 200, "a private copy");
        assert_eq!(cut.calls.load(Ordering::Relaxed), 1);
        assert!(!w.load(100 + AHEAD_BYTES, &mut line));
        assert!(!w.load(1 << 20, &mut line), "behind the end");
    }
}
