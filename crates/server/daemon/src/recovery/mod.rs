//! What a crash left: logs, requests, inodes without a name.

pub(crate) mod kept_requests;
pub(crate) mod left_log;
pub(crate) mod orphans;
pub mod recover;
