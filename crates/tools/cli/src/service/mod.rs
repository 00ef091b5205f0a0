//! The processes that serve a mount.
//!
//! * `supervise`: outlives daemons, and starts them; `deaths` says when, and when no more;
//! * `daemon`: owns the volume, and serves clients and the kernel; `kernel_caches` is between the two;
//! * `metrics`: numbers for Prometheus; `termination`: signals that end a mount in order.

pub mod between;
pub mod daemon;
mod deaths;
pub mod kernel_caches;
pub mod metrics;
pub mod supervise;
mod termination;
