//! Slices written as one contiguous run past the cache, with or without their checksum.
//!
//! Invariant: each byte of a slice is read once, either by a copy of whole lines that
//! checksums what it stores, or into a line of ours of which the rest comes from
//! elsewhere. Store and checksum see the same bytes whatever the caller's memory does.

use super::{MappedRegion, Split};
use crate::LINE_BYTES;
use crate::crc32c;
use crate::instrumentation::Hooks;
use crate::isa::{Isa, LINE_WORDS, stream_words};
use std::sync::Arc;

/// What is done with bytes on their way, besides storing them.
trait Pass {
    /// Streams whole lines.
    ///
    /// # Safety
    /// `to` is a line boundary with `lines` lines mapped writable; `from` has as many
    /// bytes readable; the two do not overlap.
    unsafe fn lines(&mut self, isa: &Isa, to: *mut u8, from: *const u8, lines: usize);

    /// Sees bytes in memory of ours that are stored by other means.
    fn bytes(&mut self, isa: &Isa, bytes: &[u8]);
}

struct Unsummed;

impl Pass for Unsummed {
    #[inline(always)]
    unsafe fn lines(&mut self, isa: &Isa, to: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: the caller's promise.
        unsafe { (isa.stream)(to, from, lines) };
    }

    #[inline(always)]
    fn bytes(&mut self, _isa: &Isa, _bytes: &[u8]) {}
}

/// The state of a CRC-32C.
struct Summed(u32);

impl Pass for Summed {
    #[inline(always)]
    unsafe fn lines(&mut self, isa: &Isa, to: *mut u8, from: *const u8, lines: usize) {
        // SAFETY: the caller's promise.
        self.0 = unsafe { (isa.stream_summed)(to, from, lines, self.0) };
    }

    #[inline(always)]
    fn bytes(&mut self, isa: &Isa, bytes: &[u8]) {
        // SAFETY: the variant was chosen by what the CPU has.
        self.0 = unsafe { (isa.update)(self.0, bytes) };
    }
}

/// How the last line is ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Where the bytes end; what is behind them in the line stays.
    Exact,
    /// With zeros up to the next line.
    Padded,
}

#[inline(always)]
fn bytes_of(slices: &[&[u8]]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

impl MappedRegion {
    /// Writes slices one after the other as one contiguous run, as [`MappedRegion::copy_nt`]
    /// does: lines that two slices share are put together first and written once.
    #[inline]
    #[track_caller]
    pub fn copy_nt_with(&self, offset: usize, slices: &[&[u8]]) {
        let bytes = bytes_of(slices);
        self.check_store(offset, bytes);
        self.count_nt(Split::new(offset, bytes));
        match &self.hooks {
            // SAFETY: checked above.
            None => unsafe { self.raw_gather(offset, slices, End::Exact, &mut Unsummed) },
            Some(hooks) if hooks.recorder.is_none() => {
                // SAFETY: as above.
                unsafe { self.raw_gather(offset, slices, End::Exact, &mut Unsummed) };
                self.delay_copy(hooks, offset, bytes);
            }
            Some(hooks) => self.recorded_copy_nt(hooks, offset, &slices.concat()),
        }
    }

    /// Writes slices as [`MappedRegion::copy_nt_with`] does and returns the CRC-32C of the very
    /// bytes that were stored, going on from `state`: the raw state, that is
    /// [`crc32c::START`] before the first byte, and to be given to [`crc32c::finish`]
    /// after the last.
    ///
    /// If the slices are memory of a caller who changes it meanwhile, then what is
    /// stored is some mixture, and the checksum is that of this mixture.
    #[inline]
    #[track_caller]
    pub fn copy_nt_crc32c(&self, offset: usize, slices: &[&[u8]], state: u32) -> u32 {
        let bytes = bytes_of(slices);
        self.check_store(offset, bytes);
        self.count_nt(Split::new(offset, bytes));
        if let Some(hooks) = &self.hooks {
            return self.summed_with_hooks(hooks, (offset, End::Exact), slices, bytes, state);
        }
        let mut sum = Summed(state);
        // SAFETY: checked above.
        unsafe { self.raw_gather(offset, slices, End::Exact, &mut sum) };
        sum.0
    }

    /// Writes slices as [`MappedRegion::copy_nt_crc32c`] does, from the line **behind** `offset` on,
    /// and fills the last line up with zeros, which the checksum does not cover. Then
    /// writes the line at `offset`, which `first` makes of the state: a header with the
    /// checksum of all. Everything goes past the cache in whole lines.
    ///
    /// # Panics
    /// Also if `offset` is not a multiple of [`LINE_BYTES`].
    #[inline]
    #[track_caller]
    pub fn copy_nt_sealed(
        &self,
        offset: usize,
        slices: &[&[u8]],
        state: u32,
        first: impl FnOnce(u32) -> [u64; LINE_WORDS],
    ) {
        let bytes = bytes_of(slices);
        let padded = bytes.next_multiple_of(LINE_BYTES);
        assert!(offset.is_multiple_of(LINE_BYTES), "lines at {offset}");
        self.check_store(offset, LINE_BYTES + padded);
        self.count_lines(LINE_BYTES + padded);
        let behind = offset + LINE_BYTES;
        if let Some(hooks) = &self.hooks {
            let to = (behind, End::Padded);
            let line = first(self.summed_with_hooks(hooks, to, slices, padded, state));
            let bytes = line.map(u64::to_le_bytes);
            return self.recorded_copy_nt(hooks, offset, bytes.as_flattened());
        }
        let mut sum = Summed(state);
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        // SAFETY: checked above, to the end of the last line.
        unsafe {
            match (filled.next(), filled.next()) {
                (Some(one), None) => self.raw_lines(behind, one, &mut sum),
                _ => self.raw_gather(behind, slices, End::Padded, &mut sum),
            }
        }
        let line = first(sum.0);
        // SAFETY: the first line of the range that was checked.
        unsafe { stream_words(self.base.add(offset), &line) };
    }

    /// Writes one slice to a line boundary and fills its last line up with zeros.
    ///
    /// # Safety
    /// The lines that it fills from `at` are mapped writable; `at` is a line boundary.
    #[inline]
    unsafe fn raw_lines(&self, at: usize, slice: &[u8], pass: &mut impl Pass) {
        let lines = slice.len() / LINE_BYTES;
        let rest = &slice[lines * LINE_BYTES..];
        if lines > 0 {
            // SAFETY: the caller's promise.
            unsafe { pass.lines(&self.isa, self.base.add(at), slice.as_ptr(), lines) };
        }
        if !rest.is_empty() {
            let mut line = [0; LINE_BYTES];
            self.keep(&mut line[..rest.len()], rest);
            pass.bytes(&self.isa, &line[..rest.len()]);
            let to = at + lines * LINE_BYTES;
            // SAFETY: the last of the lines.
            unsafe { (self.isa.stream)(self.base.add(to), line.as_ptr(), 1) };
        }
    }

    #[cold]
    #[inline(never)]
    fn summed_with_hooks(
        &self,
        hooks: &Arc<Hooks>,
        (offset, end): (usize, End),
        slices: &[&[u8]],
        bytes: usize,
        state: u32,
    ) -> u32 {
        if hooks.recorder.is_none() {
            let mut sum = Summed(state);
            // SAFETY: the caller has checked all `bytes` bytes, to the line boundary where lines are padded.
            unsafe { self.raw_gather(offset, slices, end, &mut sum) };
            self.delay_copy(hooks, offset, bytes);
            return sum.0;
        }
        // The recorder must note the very bytes that are written.
        let mut run = slices.concat();
        let state = crc32c::update(state, &run);
        run.resize(bytes, 0);
        self.recorded_copy_nt(hooks, offset, &run);
        state
    }

    /// # Safety
    /// The target range, of the slices' lengths together and for `End::Padded` up to the
    /// next line boundary, is mapped writable.
    #[inline]
    unsafe fn raw_gather(&self, offset: usize, slices: &[&[u8]], end: End, pass: &mut impl Pass) {
        // Bytes that wait for the rest of their line; they belong just before `at`.
        let mut waiting = [0_u8; LINE_BYTES];
        let mut count = 0;
        let mut at = offset;
        for slice in slices {
            let mut rest = *slice;
            if rest.is_empty() {
                continue;
            }
            let line_left = LINE_BYTES - at % LINE_BYTES;
            if count > 0 || line_left < LINE_BYTES {
                let taken = line_left.min(rest.len());
                self.keep(&mut waiting[count..count + taken], &rest[..taken]);
                count += taken;
                at += taken;
                rest = &rest[taken..];
                if taken < line_left {
                    continue;
                }
                pass.bytes(&self.isa, &waiting[..count]);
                // SAFETY: `count` bytes end at `at` and start no earlier than `offset`.
                unsafe { self.raw_copy_nt(at - count, waiting.as_ptr(), count) };
            }
            let whole = rest.len() / LINE_BYTES * LINE_BYTES;
            if whole > 0 {
                // SAFETY: `at` is a line boundary here; the lines lie in the range.
                unsafe {
                    pass.lines(
                        &self.isa,
                        self.base.add(at),
                        rest.as_ptr(),
                        whole / LINE_BYTES,
                    );
                }
                at += whole;
            }
            let left = &rest[whole..];
            count = left.len();
            if count > 0 {
                self.keep(&mut waiting[..count], left);
                at += count;
            }
        }
        if count > 0 {
            pass.bytes(&self.isa, &waiting[..count]);
            let start = at - count;
            if end == End::Padded {
                let padded = at.next_multiple_of(LINE_BYTES) - start;
                waiting[count..padded].fill(0);
                count = padded;
            }
            // SAFETY: as above, or up to the line boundary that the caller promised too.
            unsafe { self.raw_copy_nt(start, waiting.as_ptr(), count) };
        }
    }

    /// Copies to memory of ours by code the compiler cannot see through: it must not
    /// take the later reads of `into` for reads of `from`, which may have changed by then.
    #[inline(always)]
    fn keep(&self, into: &mut [u8], from: &[u8]) {
        assert_eq!(into.len(), from.len());
        // SAFETY: two slices of the same length; one is exclusive, so they do not overlap.
        unsafe { (self.isa.copy)(into.as_mut_ptr().cast(), from.as_ptr().cast(), from.len()) };
    }
}
