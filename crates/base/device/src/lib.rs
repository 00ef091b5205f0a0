//! Shale: media and time, knowing nothing of file systems.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`nvm`] | a mapping of NVM: stores, non-temporal copies, flushes, fences, and the types that order them |
//! | [`counters`] | how many bytes, lines and fences each path cost; counts compare across machines, times do not |
//! | [`crc32c`] | the state of a checksum that a copy to NVM computes on the way |
//! | [`timing`] | models that slow a mapping or a medium down to those of the papers |
//! | [`block`] | block devices and image files of the tiers below NVM |
//! | [`block_device`] | what can be read, written, discarded and flushed by byte range; files |
//! | [`host_managed`] | host-managed zoned block devices: the kernel's, and emulated ones |
//! | [`zoned`] | an open-channel SSD: raw flash in units, erase blocks and pages |
//! | [`ftl`] | a page-mapped translation layer, which makes a block device of it |
//! | [`asymmetric`] | a lock that is left without waiting for what was stored before |
//! | [`clock`] | time as a value handed in, and the calibrated time stamp counter |
//! | [`memory`] | an allocator that keeps some memory for when there is no more |
//! | [`protect`] | the processor's protection keys |
//! | [`mutants`] | deliberate mistakes, in test builds only |
//! | [`threads`] | which threads of the process still live, and what its children begin with |
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
pub mod block_device;
pub mod clock;
pub mod counters;
pub mod crc32c;
mod error;
pub mod failpoints;
pub mod ftl;
mod fused;
mod hooks;
pub mod host_managed;
mod isa;
mod lone;
pub mod memory;
pub mod mutants;
pub mod nvm;
mod peer;
pub mod printable;
pub mod private;
pub mod protect;
pub mod sim;
pub mod threads;
pub mod timing;
pub mod zoned;

pub use block::{
    AbsentBlocks, BlockCounts, BlockFile, BlockReader, Buffer, FlashBlocks, ManagedBlocks,
    ManagedShape, MemoryBlocks, ModelCounts, TierDevice, UNIT_DEFAULT, Unit, lcm,
};
pub use block_device::{BlockDevice, FileDevice};
pub use clock::{Clock, ManualClock, SystemClock};
pub use counters::{Path, PathCounts, Snapshot};
pub use error::DeviceError;
pub use ftl::Ftl;
pub use hooks::{Event, Recorder, Sink, StoreKind};
pub use memory::Memory;
pub use nvm::{
    Access, Clean, Dirty, InFlight, LINE_BYTES, LINE_WORDS, Map, MapOptions, Persistence, Piece,
    SharedWords, Span, View, create_unnamed, name_unnamed,
};
pub use peer::peer_groups;
pub use protect::{LibraryKey, ProtectionKey};
pub use timing::{BlockModel, Model, Pace, Timed, Timing, UnitTimes};
pub use zoned::Zoned;
