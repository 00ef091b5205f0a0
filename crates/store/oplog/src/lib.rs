//! One client's update log: an append-only ring of operations in NVM (Strata §3.2, DESIGN §5), or in memory with a
//! copy in NVM of what has to survive a power cut (HiNFS §3, DESIGN §10).
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`log`] | the file: header, durable tail, ring |
//! | [`encode`], [`op`] | operations to records and back |
//! | [`ring`] | who owns which bytes: admit, reserve, publish, release |
//! | [`append`], `write_record` | the writing end |
//! | [`scan`], [`source`] | the reading end: digest and recovery |
//! | [`hardened_copy`] | of a log that is appended to in memory: its copy in NVM |
//! | [`overlay`] | which bytes of a file are newer here than in the volume |
//! | [`inflight`], [`reply_cache`] | requests that must be answered exactly once |
//!
//! Positions: `tail` ≤ `digested` ≤ `published` ≤ `reserved` and `hardened` ≤ `published`; see [`ring`].
#![forbid(unsafe_code)]

pub mod append;
pub mod encode;
mod error;
pub mod hardened_copy;
pub mod inflight;
mod interval_map;
pub mod log;
pub mod op;
pub mod overlay;
pub mod reply_cache;
pub mod ring;
pub mod scan;
pub mod source;
mod sync;
mod write_record;

pub use append::{Appended, CHAIN_RECORDS_MAX, PublishedWord, Writer};
pub use encode::{Part, WRITE_BYTES_MAX};
pub use error::OplogError;
pub use hardened_copy::{FreeBlocks, HardenedCopy, Named};
pub use inflight::{InFlight, TailPin};
pub use log::Log;
pub use op::Op;
pub use overlay::{Overlay, Source};
pub use reply_cache::{Done, Recent};
pub use ring::{LogReservation, PERMIT_PART, ParkedPermit};
pub use scan::{Record, Scan};
pub use source::LogReader;
