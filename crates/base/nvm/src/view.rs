//! Access to mapped NVM on behalf of one path: copies out, stores, flushes, fences.
//!
//! Invariants: every range is checked before it is touched; every access is counted;
//! with hooks attached every access goes through `recorded`. Runs of several slices are in `gather`, atomic words in `words`.

mod gather;
mod recorded;
mod words;

use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _mm_prefetch};
use std::sync::Arc;

use crate::counters::{Count, Local, Path};
use crate::instrumentation::Hooks;
use crate::isa::Isa;
use crate::map::Shared;
use crate::mapping::Access;
use crate::{LINE_BYTES, isa};

/// Bytes of the smallest page, for hints only.
const PAGE_BYTES: usize = 4096;

/// A mapping as used by one path. Cheap to clone; keeps the mapping alive.
///
/// Offsets and lengths are bytes from the start of the mapping. A range that is not
/// inside it panics, and so does a store to a piece that is mapped read-only.
#[derive(Clone)]
pub struct MappedRegion {
    pub(crate) base: *mut u8,
    bytes: usize,
    access: Access,
    pub(crate) path: Path,
    pub(crate) hooks: Option<Arc<Hooks>>,
    pub(crate) isa: Isa,
    shared: Arc<Shared>,
}

// SAFETY: `base` points into the mapping that `shared` keeps alive; that mapping may
// be used from any thread, and all that can be done through a view is a copy, an
// atomic operation or a flush.
unsafe impl Send for MappedRegion {}
// SAFETY: as above.
unsafe impl Sync for MappedRegion {}
// A panic in an access happens before anything is touched, so there is nothing half done
// to be seen afterwards.
impl std::panic::UnwindSafe for MappedRegion {}
impl std::panic::RefUnwindSafe for MappedRegion {}

/// How a run of bytes falls on lines: a part of the first, whole ones, a part of the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) head: usize,
    pub(crate) body: usize,
    pub(crate) tail: usize,
}

impl Split {
    #[inline(always)]
    pub(crate) fn new(offset: usize, bytes: usize) -> Split {
        let head = (offset.wrapping_neg() % LINE_BYTES).min(bytes);
        let body = (bytes - head) / LINE_BYTES * LINE_BYTES;
        Split {
            head,
            body,
            tail: bytes - head - body,
        }
    }

    /// Lines that are written in part and so through the cache.
    #[inline(always)]
    pub(crate) fn partial_lines(self) -> usize {
        usize::from(self.head > 0) + usize::from(self.tail > 0)
    }
}

/// First byte of the first line and number of lines that a range touches.
#[inline(always)]
pub(crate) fn lines_of(offset: usize, bytes: usize) -> (usize, usize) {
    let first = offset / LINE_BYTES * LINE_BYTES;
    let end = (offset + bytes).next_multiple_of(LINE_BYTES);
    if bytes == 0 {
        (first, 0)
    } else {
        (first, (end - first) / LINE_BYTES)
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn outside(offset: usize, bytes: usize, end: usize) -> ! {
    panic!("range of {bytes} bytes at {offset} is not inside a mapping of {end} bytes")
}

impl MappedRegion {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        path: Path,
        (access, isa): (Access, &Isa),
        hooks: Option<Arc<Hooks>>,
    ) -> MappedRegion {
        MappedRegion {
            base: shared.mapping.base(),
            bytes: shared.mapping.bytes(),
            access,
            path,
            hooks,
            isa: *isa,
            shared: Arc::clone(shared),
        }
    }

    /// Length of the mapping in bytes.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The path this view counts for.
    pub fn path(&self) -> Path {
        self.path
    }

    /// What the mapping was opened for. Single pieces of a read-only one may have been
    /// made writable since.
    pub fn access(&self) -> Access {
        self.access
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn check(&self, offset: usize, bytes: usize) {
        if bytes > self.bytes || offset > self.bytes - bytes {
            outside(offset, bytes, self.bytes);
        }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn check_store(&self, offset: usize, bytes: usize) {
        self.check(offset, bytes);
        if self.access == Access::ReadOnly {
            assert!(
                self.shared.mapping.is_writable(offset, bytes),
                "store of {bytes} bytes at {offset} into a read-only mapping"
            );
        }
    }

    #[inline(always)]
    pub(crate) fn local(&self) -> Local<'_> {
        self.shared.counters.local()
    }

    /// Copies bytes out. Another process may be storing there: the copy may mix old
    /// and new bytes, and nothing in it is to be trusted before it was checked.
    #[inline]
    #[track_caller]
    pub fn load(&self, offset: usize, into: &mut [u8]) {
        self.peek(offset, into);
        self.local().add(self.path, Count::BytesLoaded, into.len());
        if let Some(hooks) = &self.hooks {
            hooks.delay_read(into.len());
        }
    }

    /// Copies `N` bytes out, as [`MappedRegion::load`] does.
    #[inline]
    #[track_caller]
    pub fn load_array<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.load(offset, &mut bytes);
        bytes
    }

    /// Copies bytes out without counting or delaying: for recorders, which are not part
    /// of what is measured.
    #[inline(always)]
    #[track_caller]
    pub fn peek(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: the source range is mapped (checked above), the target is a slice of
        // ours outside the mapping. The copy is foreign code behind a pointer, so bytes
        // that change meanwhile are garbage in `into`, never a broken assumption of the compiler.
        unsafe {
            (self.isa.copy)(
                into.as_mut_ptr().cast(),
                self.base.add(offset).cast(),
                into.len(),
            )
        };
    }

    /// Stores through the cache. Survives a power cut only after [`MappedRegion::flush`] and
    /// [`MappedRegion::fence`]; before that any of its 8-byte units may or may not.
    #[inline]
    #[track_caller]
    pub fn store(&self, offset: usize, bytes: &[u8]) {
        self.check_store(offset, bytes.len());
        self.local().add(self.path, Count::BytesStored, bytes.len());
        match &self.hooks {
            // SAFETY: checked above.
            None => unsafe { self.raw_store(offset, bytes.as_ptr(), bytes.len()) },
            Some(hooks) => self.recorded_store(hooks, offset, bytes),
        }
    }

    /// Copies past the cache, whole lines with non-temporal stores, a part of a line
    /// at either end through the cache with its write-back started. After **one**
    /// [`MappedRegion::fence`] of the same thread all of it survives a power cut; before that
    /// any of its 8-byte units may or may not.
    #[inline]
    #[track_caller]
    pub fn copy_nt(&self, offset: usize, bytes: &[u8]) {
        self.check_store(offset, bytes.len());
        self.count_nt(Split::new(offset, bytes.len()));
        match &self.hooks {
            // SAFETY: checked above.
            None => unsafe { self.raw_copy_nt(offset, bytes.as_ptr(), bytes.len()) },
            Some(hooks) => self.recorded_copy_nt(hooks, offset, bytes),
        }
    }

    /// Copies `bytes` from another mapping (or this one) as [`MappedRegion::copy_nt`] does,
    /// without a stop in between. What is copied may be changing: check it afterwards.
    ///
    /// # Panics
    /// Also if the two ranges overlap in memory.
    #[track_caller]
    pub fn copy_nt_from(&self, source: &MappedRegion, from: usize, to: usize, bytes: usize) {
        source.check(from, bytes);
        self.check_store(to, bytes);
        let distance = (source.base.addr() + from).abs_diff(self.base.addr() + to);
        assert!(distance >= bytes, "ranges of {bytes} bytes overlap");
        source.local().add(source.path, Count::BytesLoaded, bytes);
        if let Some(hooks) = &source.hooks {
            hooks.delay_read(bytes);
        }
        self.count_nt(Split::new(to, bytes));
        match &self.hooks {
            // SAFETY: both ranges checked above, no overlap.
            None => unsafe { self.raw_copy_nt(to, source.base.add(from), bytes) },
            Some(hooks) if hooks.recorder.is_none() => {
                // SAFETY: as above.
                unsafe { self.raw_copy_nt(to, source.base.add(from), bytes) };
                self.delay_copy(hooks, to, bytes);
            }
            Some(hooks) => {
                // The recorder must note the very bytes that are written.
                let mut copied = vec![0; bytes];
                source.peek(from, &mut copied);
                self.recorded_copy_nt(hooks, to, &copied);
            }
        }
    }

    /// Writes zeros as [`MappedRegion::copy_nt`] writes bytes.
    #[track_caller]
    pub fn zero_nt(&self, offset: usize, bytes: usize) {
        self.check_store(offset, bytes);
        self.count_nt(Split::new(offset, bytes));
        match &self.hooks {
            // SAFETY: checked above.
            None => unsafe { self.raw_zero_nt(offset, bytes) },
            Some(hooks) => self.recorded_copy_nt(hooks, offset, &vec![0; bytes]),
        }
    }

    /// Zeros the whole mapping past the cache, neither counted nor delayed nor recorded.
    pub(crate) fn raw_clear(&self) {
        self.check_store(0, self.bytes);
        // SAFETY: the whole mapping, checked to be writable.
        unsafe { self.raw_zero_nt(0, self.bytes) };
        isa::fence();
    }

    /// Starts the write-back of every line the range touches. They survive a power cut
    /// after the next [`MappedRegion::fence`] of the same thread.
    #[inline]
    #[track_caller]
    pub fn flush(&self, offset: usize, bytes: usize) {
        self.check(offset, bytes);
        let (first, lines) = lines_of(offset, bytes);
        self.local().add(self.path, Count::LinesFlushed, lines);
        match &self.hooks {
            // SAFETY: the lines lie in pages of the checked range, which are mapped whole.
            None => unsafe { (self.isa.flush)(self.base.add(first), lines) },
            Some(hooks) => self.recorded_flush(hooks, first, lines),
        }
    }

    /// Hints that the range is the next to be written, behind one written now: the CPU
    /// looks up the addresses of the pages that begin in it while the next fence waits.
    /// What is outside the mapping is left out; nothing is changed, counted or recorded.
    #[inline]
    pub fn expect(&self, offset: usize, bytes: usize) {
        let end = offset.saturating_add(bytes).min(self.bytes);
        let first = offset.div_ceil(PAGE_BYTES);
        for page in first..end.div_ceil(PAGE_BYTES) {
            // Of each page the last line: it comes into the cache, which slows down the
            // stores past it, and the later it is stored the more likely it is out again.
            let line = self
                .base
                .wrapping_add(page * PAGE_BYTES + (PAGE_BYTES - LINE_BYTES));
            // SAFETY: a prefetch of any address has no effect that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_NTA>(line.cast()) };
        }
    }

    /// Hints that the range is read soon: its lines begin to come into the cache. What is
    /// outside the mapping is left out; nothing is counted or recorded.
    #[inline]
    pub fn expect_read(&self, offset: usize, bytes: usize) {
        let end = offset.saturating_add(bytes).min(self.bytes);
        for line in (offset..end).step_by(LINE_BYTES) {
            let line = self.base.wrapping_add(line);
            // SAFETY: a prefetch of any address has no effect that a program can see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
        }
    }

    /// Waits for the calling thread's flushes and non-temporal stores, on every mapping.
    #[inline]
    pub fn fence(&self) {
        self.local().add(self.path, Count::Fences, 1);
        match &self.hooks {
            None => isa::fence(),
            Some(hooks) => self.recorded_fence(hooks),
        }
    }

    #[inline(always)]
    pub(crate) fn count_nt(&self, split: Split) {
        let local = self.local();
        let stored = split.head + split.body + split.tail;
        local.add(self.path, Count::BytesStored, stored);
        local.add(self.path, Count::BytesStreamed, split.body);
        if split.partial_lines() > 0 {
            local.add(self.path, Count::LinesFlushed, split.partial_lines());
        }
    }

    /// Counts whole lines that are streamed.
    #[inline(always)]
    pub(crate) fn count_lines(&self, bytes: usize) {
        let local = self.local();
        local.add(self.path, Count::BytesStored, bytes);
        local.add(self.path, Count::BytesStreamed, bytes);
    }

    /// # Safety
    /// The target range is mapped writable; `from` is readable for as many bytes and
    /// does not overlap it.
    #[inline(always)]
    pub(crate) unsafe fn raw_store(&self, offset: usize, from: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { (self.isa.copy)(self.base.add(offset).cast(), from.cast(), bytes) };
    }

    /// Stores a part of one line through the cache and starts its write-back.
    ///
    /// # Safety
    /// As [`MappedRegion::raw_store`]; the range lies in one line.
    #[inline(always)]
    unsafe fn raw_partial(&self, offset: usize, from: *const u8, bytes: usize) {
        // SAFETY: the caller's promise; the line of a mapped byte is mapped.
        unsafe {
            self.raw_store(offset, from, bytes);
            (self.isa.flush)(self.base.add(offset / LINE_BYTES * LINE_BYTES), 1);
        }
    }

    /// # Safety
    /// As [`MappedRegion::raw_store`].
    #[inline(always)]
    pub(crate) unsafe fn raw_copy_nt(&self, offset: usize, from: *const u8, bytes: usize) {
        let split = Split::new(offset, bytes);
        // SAFETY: the three parts cover exactly the promised ranges; the body starts at
        // a line boundary because the base is page-aligned.
        unsafe {
            if split.head > 0 {
                self.raw_partial(offset, from, split.head);
            }
            if split.body > 0 {
                (self.isa.stream)(
                    self.base.add(offset + split.head),
                    from.add(split.head),
                    split.body / LINE_BYTES,
                );
            }
            if split.tail > 0 {
                let done = split.head + split.body;
                self.raw_partial(offset + done, from.add(done), split.tail);
            }
        }
    }

    /// # Safety
    /// The target range is mapped writable.
    unsafe fn raw_zero_nt(&self, offset: usize, bytes: usize) {
        const ZEROS: [u8; LINE_BYTES] = [0; LINE_BYTES];
        let split = Split::new(offset, bytes);
        // SAFETY: as in `raw_copy_nt`; head and tail are shorter than a line.
        unsafe {
            if split.head > 0 {
                self.raw_partial(offset, ZEROS.as_ptr(), split.head);
            }
            if split.body > 0 {
                (self.isa.zero)(self.base.add(offset + split.head), split.body / LINE_BYTES);
            }
            if split.tail > 0 {
                let done = split.head + split.body;
                self.raw_partial(offset + done, ZEROS.as_ptr(), split.tail);
            }
        }
    }
}
