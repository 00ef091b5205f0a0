//! The device, the mount, and the threads that serve it; what is said on the wire.

pub(crate) mod mount;
pub(crate) mod negotiate;
pub(crate) mod notify;
pub(crate) mod requests;
pub(crate) mod senders;
pub mod session;
pub(crate) mod transport;
pub(crate) mod wire;
