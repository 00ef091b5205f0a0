//! Coherence: who may read and write which inode, and when freed blocks may be reused (DESIGN §9, §15, Strata §3.4).
//!
//! | Module | What it owns |
//! | --- | --- |
//! | [`lease_table`] | which client has which lease; decides, and reaches no client |
//! | [`lease_manager`] | revokes leases as the table decided |
//! | [`lease_trimmer`] | when unused leases go |
//! | [`readers`] | whether threads of a client, or of the daemon, are in a read section |
//! | [`grace`] | waiting for a grace period, with a time limit |
//! | [`reclaimer`] | freed blocks, which are reused after a grace period |
//! | [`fence`] | cutting off a client that does not leave its read section in time |
//! | [`digest_stop`] | digesting a log up to a position; why that stops before |
//! | [`digest_queue`] | logs that wait for a digest thread |
//! | `sync` | locks and atomics, which the model checker (`harness/tests/leases`) replaces |
//!
//! Called by `daemon` (requests of clients, digests, and grace periods on behalf of `tiering`). Each service knows those before
//! it: [`fence::Fence`], [`grace::GracePeriods`], then [`reclaimer::Reclaimer`] and [`lease_manager::LeaseManager`]. A holder's log is
//! digested through a trait ([`lease_manager::LogFlusher`]), which the daemon's digest scheduler implements.
//!
//! Locks here are leaves, but for the lease table's check whether a number is free; none is held during a grace period
//! or a digest. Leases are in memory: after a crash all clients attach again and hold none.
#![forbid(unsafe_code)]

pub mod digest_queue;
pub mod digest_stop;
pub mod fence;
pub mod grace;
pub mod lease_manager;
pub mod lease_table;
#[cfg(test)]
mod lease_table_tests;
pub mod lease_trimmer;
pub mod readers;
#[cfg(test)]
mod readers_tests;
pub mod reclaimer;
mod sync;

// Under these names the model checker has its own.
use digest_queue::Queue;
use shale_clients::barrier;
use shale_clients::client;
use shale_clients::clients;
use shale_clients::page;
