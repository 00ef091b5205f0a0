//! What may be attached to a mapping: a recorder of stores and a timing model.
//!
//! The plain path pays one predictable branch for both. With a recorder every
//! access happens *inside* its lock, so that the order it notes is the order in
//! which memory changed.

use std::sync::Arc;

use crate::Timing;
use crate::counters::Path;

/// How bytes were stored, which decides what a power cut may leave of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// One aligned store of 4 or 8 bytes. Those to one line reach it in program order.
    Word,
    /// A memory copy through the cache, in no particular order.
    Copy,
    /// Non-temporal stores, past the cache, in no particular order.
    Nt,
}

/// Something a mapping did to its medium. Offsets are bytes from the start of the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// Bytes were stored.
    Store {
        /// How.
        kind: StoreKind,
        /// Where.
        offset: usize,
        /// What.
        bytes: &'a [u8],
    },
    /// Write-back of lines was started.
    Flush {
        /// Start of the first line.
        offset: usize,
        /// How many lines of 64 bytes.
        lines: usize,
    },
    /// The calling thread waited for its flushes and non-temporal stores.
    Fence,
}

/// Takes the events of one access, in order.
pub trait Sink {
    /// Notes one event.
    fn note(&mut self, event: Event<'_>);
}

/// Watches one medium. `Medium` of `shale-record` is the one used by tests.
pub trait Recorder: Send + Sync {
    /// Called once when a mapping of the medium is made: its length in bytes, and a
    /// function that copies the present contents into a buffer of that length.
    fn attached(&self, bytes: usize, read: &dyn Fn(&mut [u8]));

    /// Runs `act` with no other access in between. `act` performs the access and
    /// notes it in the sink. It must run exactly once.
    fn record(&self, path: Path, act: &mut dyn FnMut(&mut dyn Sink));
}

/// Recorder and timing model of one mapping.
pub(crate) struct Hooks {
    pub(crate) recorder: Option<Arc<dyn Recorder>>,
    pub(crate) timing: Option<Arc<Timing>>,
}

/// A sink for mappings that are timed but not recorded.
struct NullSink;

impl Sink for NullSink {
    fn note(&mut self, _event: Event<'_>) {}
}

impl Hooks {
    /// Runs an access under the recorder, if there is one.
    pub(crate) fn act(&self, path: Path, act: &mut dyn FnMut(&mut dyn Sink)) {
        match &self.recorder {
            Some(recorder) => recorder.record(path, act),
            None => act(&mut NullSink),
        }
    }

    /// Waits as long as the model says for a read of `bytes`.
    pub(crate) fn delay_read(&self, bytes: usize) {
        if let Some(timing) = &self.timing {
            timing.read(bytes);
        }
    }

    /// Waits as long as the model says for `lines` of 64 bytes on their way to the medium.
    pub(crate) fn delay_write(&self, lines: usize, bytes: usize) {
        if let Some(timing) = &self.timing {
            timing.write(lines, bytes);
        }
    }
}
