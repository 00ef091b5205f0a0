//! Accesses with hooks attached: performed under the recorder, then delayed by the model.
//!
//! Invariant: the events noted are exactly what the plain path would have done, in the
//! same order, so that counts and crash states hold for it too.

use std::sync::Arc;

use super::{MappedRegion, Split, lines_of};
use crate::instrumentation::{Event, Hooks, Sink, StoreKind};
use crate::{LINE_BYTES, isa};
use shale_sys::mutants;

impl MappedRegion {
    #[cold]
    #[inline(never)]
    pub(crate) fn recorded_store(&self, hooks: &Arc<Hooks>, offset: usize, bytes: &[u8]) {
        hooks.act(self.path, &mut |sink| {
            // SAFETY: the caller checked the range; the source is a slice outside the mapping.
            unsafe { self.raw_store(offset, bytes.as_ptr(), bytes.len()) };
            note_store(sink, StoreKind::Copy, offset, bytes);
        });
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn recorded_copy_nt(&self, hooks: &Arc<Hooks>, offset: usize, bytes: &[u8]) {
        let split = Split::new(offset, bytes.len());
        hooks.act(self.path, &mut |sink| {
            // SAFETY: as in `recorded_store`.
            unsafe { self.raw_copy_nt(offset, bytes.as_ptr(), bytes.len()) };
            let (head, rest) = bytes.split_at(split.head);
            let (body, tail) = rest.split_at(split.body);
            note_partial(sink, offset, head);
            note_store(sink, StoreKind::Nt, offset + split.head, body);
            note_partial(sink, offset + split.head + split.body, tail);
        });
        self.delay_copy(hooks, offset, bytes.len());
    }

    /// Waits as long as the model says for bytes that were written past the cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn delay_copy(&self, hooks: &Hooks, offset: usize, bytes: usize) {
        let split = Split::new(offset, bytes);
        let lines = split.partial_lines() + split.body / LINE_BYTES;
        if lines > 0 {
            hooks.delay_write(lines, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn recorded_flush(&self, hooks: &Arc<Hooks>, first: usize, lines: usize) {
        if lines == 0 {
            return;
        }
        hooks.act(self.path, &mut |sink| {
            // SAFETY: the caller checked the range.
            unsafe { (self.isa.flush)(self.base.add(first), lines) };
            sink.note(Event::Flush {
                offset: first,
                lines,
            });
        });
        hooks.delay_write(lines, lines * LINE_BYTES);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn recorded_fence(&self, hooks: &Arc<Hooks>) {
        hooks.act(self.path, &mut |sink| {
            isa::fence();
            sink.note(Event::Fence);
        });
    }

    /// Runs `step`, which stores a word of `bytes` bytes or nothing, and says which.
    #[cold]
    #[inline(never)]
    pub(crate) fn recorded_word(
        &self,
        hooks: &Arc<Hooks>,
        offset: usize,
        step: &mut dyn FnMut() -> Option<u64>,
        bytes: usize,
    ) {
        hooks.act(self.path, &mut |sink| {
            if let Some(value) = step() {
                note_store(sink, StoreKind::Word, offset, &value.to_le_bytes()[..bytes]);
            }
        });
    }
}

fn note_store(sink: &mut dyn Sink, kind: StoreKind, offset: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        sink.note(Event::Store {
            kind,
            offset,
            bytes,
        });
    }
}

/// A part of a line: stored through the cache, write-back started.
fn note_partial(sink: &mut dyn Sink, offset: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        note_store(sink, StoreKind::Copy, offset, bytes);
        if mutants::is_on("partial-line-flush") {
            return;
        }
        let (first, lines) = lines_of(offset, bytes.len());
        sink.note(Event::Flush {
            offset: first,
            lines,
        });
    }
}
