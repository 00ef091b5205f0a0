//! A client of the daemon: the session, calls as attempts, leases, space in log and volume.

pub(crate) mod grants;
pub(crate) mod kept;
pub(crate) mod lease;
#[cfg(test)]
mod lease_tests;
pub(crate) mod op;
pub(crate) mod options;
pub(crate) mod pace;
pub(crate) mod present;
pub(crate) mod read_section;
pub(crate) mod reader_slot;
pub(crate) mod reports;
pub(crate) mod requests;
pub(crate) mod reservation;
pub(crate) mod search;
pub(crate) mod served;
pub(crate) mod session;
pub(crate) mod sync;

// Under these names the model checker has its own.
use crate::errno;
use crate::inodes::node;
