//! What client and daemon say to each other.
//!
//! Seldom things are [`message`]s over a Unix socket with descriptors, or a plain
//! call when both live in one process ([`transport`]). Frequent things are words
//! in two shared pages per client ([`control`]). The daemon trusts neither. Clients find the
//! daemon of a mount by the mount's device number ([`mounts`]), and open files by inode number through the
//! mount ([`open_name`]).
#![forbid(unsafe_code)]

pub mod commits;
pub mod error;
pub mod lease;
pub mod message;
pub mod mounts;
pub mod open_name;
pub mod shared_pages;
pub mod transport;

pub use error::ProtoError;
pub use lease::{ASKED_FILES, LeaseMode};
pub use message::{LeaseRequestMode, Reply, Request};
pub use transport::{Channel, Handler, InProcess, PeerIdentity, SocketChannel, SocketPeer};
