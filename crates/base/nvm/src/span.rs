//! The order "stored, flushed, fenced" in the types.
//!
//! Invariant: only this module moves a span from one state to the next. A span that is
//! in flight cannot leave its thread, because a fence covers only the thread's own flushes.

use std::marker::PhantomData;

use crate::view::MappedRegion;

/// Stored through the cache; may or may not survive a power cut.
#[derive(Debug)]
pub struct Dirty(());

/// On its way to the medium; may or may not survive a power cut. Bound to its thread.
#[derive(Debug)]
pub struct InFlight(PhantomData<*mut ()>);

/// On the medium: survives a power cut.
#[derive(Debug)]
pub struct Clean(());

/// A range of a mapping and how far it is on its way to the medium.
#[must_use = "a span that is not taken to Clean may be lost in a power cut"]
pub struct Span<'n, State> {
    view: &'n MappedRegion,
    offset: usize,
    bytes: usize,
    state: PhantomData<State>,
}

impl<'n, State> Span<'n, State> {
    #[inline(always)]
    pub(crate) fn new(view: &'n MappedRegion, offset: usize, bytes: usize) -> Self {
        Span {
            view,
            offset,
            bytes,
            state: PhantomData,
        }
    }

    /// Where the range starts, in bytes from the start of the mapping.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its length in bytes.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline(always)]
    fn now<Next>(self) -> Span<'n, Next> {
        Span::new(self.view, self.offset, self.bytes)
    }
}

impl<'n> Span<'n, Dirty> {
    /// Starts the write-back of the lines.
    #[inline]
    pub fn flush(self) -> Span<'n, InFlight> {
        self.view.flush(self.offset, self.bytes);
        self.now()
    }
}

impl<'n> Span<'n, InFlight> {
    /// Waits until the range is on the medium.
    #[inline]
    pub fn fence(self) -> Span<'n, Clean> {
        self.view.fence();
        self.now()
    }

    /// Puts another span under the same fence, also one of another mapping.
    #[inline(always)]
    pub fn join(self, other: Span<'n, InFlight>) -> Joined<'n> {
        Joined {
            first: self,
            second: other,
        }
    }

    /// Waits once until all are on the medium. `N` must not be 0.
    #[inline]
    pub fn fence_all<const N: usize>(spans: [Span<'n, InFlight>; N]) -> [Span<'n, Clean>; N] {
        const { assert!(N > 0, "a fence covers at least one span") };
        spans[0].view.fence();
        spans.map(Span::now)
    }
}

/// Two spans under one fence.
#[must_use = "a span that is not taken to Clean may be lost in a power cut"]
pub struct Joined<'n> {
    first: Span<'n, InFlight>,
    second: Span<'n, InFlight>,
}

impl<'n> Joined<'n> {
    /// Waits once until both are on the medium. The fence counts for the first.
    #[inline]
    pub fn fence(self) -> (Span<'n, Clean>, Span<'n, Clean>) {
        self.first.view.fence();
        (self.first.now(), self.second.now())
    }
}

impl<State> std::fmt::Debug for Span<'_, State> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Span")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .field("state", &std::any::type_name::<State>())
            .finish()
    }
}
