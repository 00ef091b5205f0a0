//! Shale: media and time, knowing nothing of file systems.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`nvm`] | a mapping of NVM: stores, non-temporal copies, flushes, fences, and the types that order them |
//! | [`counters`] | how many bytes, lines and fences each path cost; counts compare across machines, times do not |
//! | [`crc32c`] | the state of a checksum that a copy to NVM computes on the way |
//! | [`block`] | block devices and image files of the tiers below NVM |
//! | [`timing`] | models that slow a mapping down to the NVM of Strata §5 or HiNFS §5.1 |
//! | [`asymmetric`] | a lock that is left without waiting for what was stored before |
//! | [`clock`] | time as a value handed in, and the calibrated time stamp counter |
//! | [`protect`] | the processor's protection keys |
//! | [`mutants`] | deliberate mistakes, in test builds only |
//! | [`sim`] | a recorder of every store, flush and fence, and the images a power cut could leave |
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
//! Each of these is a switch of [`sim::MediaRules`].
//!
//! # Shared memory
//!
//! Another process may be storing into any mapping. Nothing here lends out a
//! reference into one: bytes are copied out with [`nvm::View::load`], words are atomics.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("Shale runs on x86-64 Linux");

pub mod asymmetric;
pub mod block;
pub mod clock;
pub mod counters;
pub mod crc32c;
mod error;
pub mod failpoints;
mod fused;
mod hooks;
mod isa;
pub mod mutants;
pub mod nvm;
mod peer;
pub mod protect;
pub mod sim;
pub mod timing;

pub use block::{BlockCounts, BlockDevice, BlockFile, MemoryBlocks};
pub use clock::{Clock, ManualClock, SystemClock};
pub use counters::{Path, PathCounts, Snapshot};
pub use error::DeviceError;
pub use hooks::{Event, Recorder, Sink, StoreKind};
pub use nvm::{
    Access, Clean, Dirty, InFlight, LINE_BYTES, LINE_WORDS, Map, MapOptions, Persistence, Piece,
    SharedWords, Span, View, create_unnamed, name_unnamed,
};
pub use peer::peer_groups;
pub use protect::{LibraryKey, ProtectionKey};
pub use timing::{Model, Timing};
