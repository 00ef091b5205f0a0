//! The update log of a client: its writer and the permits that threads keep, requests that hold its tail, and what slows a writer.
//!
//! [`client_log::ClientLog`] is the door; the rest is what it is made of.

pub mod benefit_model;
pub mod client_log;
pub(crate) mod fsync_pace;
pub(crate) mod permit_cache;
pub(crate) mod prefault;
pub mod requests;
pub mod throttle;
