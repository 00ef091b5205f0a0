//! The mount, `/dev/fuse`, and the threads that serve it.
//!
//! Owns the mount and the descriptor, the first request (INIT) and what of its answer outlives the process, buffers,
//! 2 to 4 threads that take requests and where they run, threads that answer once a promise is kept, and threads that send notifications and have nothing else open. Called by `cli`
//! (mount, adopt, serve); calls `adapter` with each request. The structs of the wire are `wire`.
//!
//! Locks are leaves, each taken alone. All `unsafe` of the crate is in `transport`.
//!
//! Two processes never serve one mount at the same time: the supervisor waits for the end of the first.

pub(crate) mod durable_replies;
pub(crate) mod mount;
pub(crate) mod negotiate;
pub(crate) mod notify;
pub(crate) mod placement;
pub(crate) mod requests;
pub(crate) mod senders;
pub mod session;
pub(crate) mod transport;
pub(crate) mod wire;
pub mod workers;
