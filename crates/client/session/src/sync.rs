//! Atomics, locks and waiting of the lease protocol, in one place so that the model check
//! (`crates/proof/harness/tests/leases`) can compile its files against its own: read sections, leases, whether
//! the client is still served.

pub(crate) use parking_lot::Mutex;
pub(crate) use shale_nvm::SharedWords;
pub(crate) use shale_sys::{failpoints, mutants};
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
pub(crate) use std::thread::sleep;
