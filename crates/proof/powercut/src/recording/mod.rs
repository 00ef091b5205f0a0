//! Workloads that run: each store, flush and fence of theirs is noted, and the model says what may be found.

pub mod buffered;
pub mod clients;
pub mod doer;
pub mod legs;
pub mod losses;
pub mod mount;
pub mod orders;
pub mod record;
pub mod run;
pub(crate) mod synced;
pub mod track;
pub mod turned;
