//! The daemon: its own files as they are, and what stands for the rest of it.
#![allow(dead_code, reason = "the model needs only a part of those files")]

#[path = "../../../../server/daemon/src/asked.rs"]
mod asked;
#[path = "../../../../server/daemon/src/evict.rs"]
mod evict;
#[path = "../../../../server/daemon/src/gate.rs"]
mod gate;
#[path = "../../../../server/daemon/src/halt.rs"]
pub(crate) mod halt;
#[path = "../../../../server/daemon/src/idle.rs"]
mod idle;
#[path = "../../../../server/daemon/src/lease.rs"]
pub(crate) mod lease;
#[path = "../../../../server/daemon/src/pass.rs"]
mod pass;
#[path = "../../../../server/daemon/src/progress.rs"]
mod progress;
#[path = "../../../../server/daemon/src/revoke.rs"]
mod revoke;

pub(crate) mod client;
pub(crate) mod shared;

use crate::sync;

mod barrier {
    /// `membarrier`.
    #[derive(Clone, Copy)]
    pub(crate) struct Barrier;

    impl Barrier {
        pub(crate) fn run(self) {
            crate::memory::barrier();
        }
    }
}

mod page {
    pub(crate) use super::client::ClientPage;
}

mod log_bytes {
    pub(crate) use super::client::set_word;
}

mod space {
    pub(crate) const LEFT_LOGS: u32 = u32::MAX;
}
