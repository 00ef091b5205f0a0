//! Shale: NVM as mapped memory: one file, or several side by side in one address range.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`Map`], [`MappedRegion`] | a mapping of NVM: stores, non-temporal copies, flushes, fences, and the types that order them |
//! | [`counters`] | how many bytes, lines and fences each path cost; counts compare across machines, times do not |
//! | [`crc32c`] | the state of a checksum that a copy to NVM computes on the way |
//! | [`timing`] | models that slow a mapping down to those of the papers |
//! | [`Recorder`] | gets every store, flush and fence |
//!
//! [`Map`] owns the mapping; it dereferences to the [`MappedRegion`] of its default path, and
//! `map.on(Path::Structure)` is the view that counts for another path. All access
//! goes through views.
//!
//! Invariants: a range outside the mapping, a store to a read-only piece and a
//! misaligned word are mistakes of ours and panic; no reference into mapped memory is
//! ever lent out; views keep the mapping alive.
//!
//! # What is assumed of NVM
//!
//! * An aligned store of 8 bytes is atomic: after a power cut it is there whole or not at all.
//! * A store is certain to survive once its line was flushed (or it was non-temporal)
//!   **and** the same thread then executed a fence. Before that each 8-byte unit may
//!   or may not survive, except that single words stored to one line survive in
//!   program order.
//! * A line may reach the medium at any time without being asked to (eviction).
//!
//! Each of these is a switch of `MediaRules` in `shale-record`.
//!
//! # Shared memory
//!
//! Another process may be storing into any mapping. Nothing here lends out a
//! reference into one: bytes are copied out with [`MappedRegion::load`], words are atomics.

mod copy_crc;
pub mod counters;
pub mod crc32c;
mod error;
mod guard;
mod instrumentation;
mod isa;
mod map;
mod mapping;
mod shared;
pub mod timing;
mod unnamed;
mod view;
mod writable;

pub use counters::{Path, PathCounts, Snapshot};
pub use error::NvmError;
pub use instrumentation::{Event, Recorder, Sink, StoreKind};
pub use isa::{LINE_BYTES, LINE_WORDS};
pub use map::{Map, MapOptions};
pub use mapping::{Access, Piece};
pub use shared::SharedWords;
pub use timing::{Model, Pace, Timing};
pub use unnamed::{create_unnamed, name_unnamed, rename_file};
pub use view::MappedRegion;

#[cfg(test)]
mod tests;
