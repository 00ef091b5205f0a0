//! Who may read and write which inode, and when what was freed may be used again (DESIGN §9, Strata §3.4).
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`lease_table`] | decides who may hold a lease; knows of nobody |
//! | [`lease_manager`] | does what was decided: takes leases from their holders |
//! | [`lease_trimmer`] | leases that nobody uses go |
//! | [`readers`], [`barrier`], [`page`] | the shared pages of a client, and how one knows that it is outside of calls |
//! | [`grace`] | waits until calls of clients have ended |
//! | [`reclaimer`] | gives out again what was freed, once no reader can hold it |
//! | [`halt`] | digesting a log up to a position, and why that can stop |
//! | [`fence`] | cutting a client off |
//! | [`asked`] | files that a client has asked for |
//! | `sync` | locks and atomics, which the model checker (`harness/tests/leases`) replaces |
//!
//! Each service knows those before it: [`fence::Fence`], [`grace::GracePeriods`], then [`reclaimer::Reclaimer`] and
//! [`lease_manager::LeaseManager`]. Digesting a log comes from above ([`lease_manager::LogFlusher`]).

pub(crate) mod asked;
pub(crate) mod barrier;
pub(crate) mod fence;
pub(crate) mod grace;
pub(crate) mod halt;
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
