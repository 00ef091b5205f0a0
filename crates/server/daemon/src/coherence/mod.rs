//! Coherence: who may read and write which inode, and when freed blocks may be reused (DESIGN §9, §15, Strata §3.4).
//!
//! | Module | What it owns |
//! | --- | --- |
//! | [`lease_table`] | which client has which lease; decides, and reaches no client |
//! | [`lease_manager`] | revokes leases as the table decided |
//! | [`lease_trimmer`] | when unused leases go |
//! | [`readers`], [`barrier`], [`page`] | the control pages of a client; whether its threads are in a read section |
//! | [`grace`] | waiting for a grace period, with a time limit |
//! | [`reclaimer`] | freed blocks, which are reused after a grace period |
//! | [`fence`] | cutting off a client that does not leave its read section in time |
//! | [`digest_stop`] | digesting a log up to a position; why that stops before |
//! | [`asked`] | the last files that a client asked for |
//! | `sync` | locks and atomics, which the model checker (`harness/tests/leases`) replaces |
//!
//! Called by `connections` (requests of clients), `digest_scheduler` and `tiering` (grace periods, deferred frees). Each
//! service knows those before it: [`fence::Fence`], [`grace::GracePeriods`], then [`reclaimer::Reclaimer`] and
//! [`lease_manager::LeaseManager`]. A holder's log is digested through a trait of this module
//! ([`lease_manager::LogFlusher`]), which `digest_scheduler` implements.
//!
//! Locks here are leaves, but for the lease table's check whether a number is free; none is held during a grace period
//! or a digest. Leases are in memory: after a crash all clients attach again and hold none.

pub(crate) mod asked;
pub(crate) mod barrier;
pub(crate) mod digest_stop;
pub(crate) mod fence;
pub(crate) mod grace;
pub(crate) mod lease_manager;
pub(crate) mod lease_table;
#[cfg(test)]
mod lease_table_tests;
pub(crate) mod lease_trimmer;
pub(crate) mod page;
pub(crate) mod readers;
#[cfg(test)]
mod readers_tests;
pub(crate) mod reclaimer;
pub(crate) mod sync;

// Under these names the model checker has its own.
use crate::connections::client;
use crate::connections::clients;
use crate::connections::digest_queue::Queue;
use crate::space;
