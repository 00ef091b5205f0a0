//! Hardening of a volume whose memory tier and logs lie in shared memory: what makes records survive a power cut, and what
//! lets the staging area be used again (StageFS §3; DESIGN "Volumes without NVM").
//!
//! | Module | What it does |
//! | --- | --- |
//! | [`hardener`] | appends records of logs to the staging area, one durable write for all who wait (group commit) |
//! | [`checkpointer`] | writes the pages of the memory tier that have changed, so that batches before them are not needed any more |
//! | `waiters` | who waits for which log |
//! | `taken` | what a batch has of one log |
//! | [`commit_times`] | how long batches take, as percentiles |
//!
//! **Order.** A log is digested only as far as it is hardened: before the chunk, or in it, between its data and its transaction ([`hardener::Hardener::harden_placed`]). A lease moves, and a number or a
//! block is used again, only after what was done under it is digested. So of two records of which one builds on the other, the
//! first is in the same batch piece or in an earlier batch, and a restore that digests batches in their order sees every record in a
//! state that it could have been logged in. An image of the memory tier holds nothing that is not hardened.
//!
//! **Space.** Batches are free once a checkpoint holds all that their records did. Where the staging area is full, logs are digested as
//! far as they are hardened (that takes no staging space), then a checkpoint frees it (`daemon`, `digest_scheduler/staging.rs`).
//!
//! Called by `daemon`, which says when; what is hardened and when a checkpoint is due is decided here. Lock order: the one of a
//! checkpoint, then the volume's transaction; the state of [`hardener`], then those of the clients; all others are leaves. No batch is written
//! with one of them held.
#![forbid(unsafe_code)]

pub mod checkpointer;
pub mod commit_times;
pub mod hardener;
mod staged;
mod taken;
mod waiters;

pub use staged::Staged;
pub use taken::NotHardened;
