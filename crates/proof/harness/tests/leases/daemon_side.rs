//! The daemon: its own files as they are, and what stands for the rest of it.
#![allow(dead_code, reason = "the model needs only a part of those files")]

#[path = "../../../../server/daemon/src/coherence/asked.rs"]
mod asked;
#[path = "../../../../server/daemon/src/coherence/digest_stop.rs"]
pub(crate) mod digest_stop;
#[path = "../../../../server/daemon/src/coherence/fence.rs"]
pub(crate) mod fence;
#[path = "../../../../server/daemon/src/coherence/grace.rs"]
pub(crate) mod grace;
#[path = "../../../../server/daemon/src/coherence/lease_manager/mod.rs"]
pub(crate) mod lease_manager;
#[path = "../../../../server/daemon/src/coherence/lease_table.rs"]
pub(crate) mod lease_table;
#[path = "../../../../server/daemon/src/coherence/readers.rs"]
mod readers;

pub(crate) mod client;
pub(crate) mod clients;
pub(crate) mod shared;

use crate::sync;
use shared::Queue;

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

mod log_reader {
    pub(crate) use super::client::set_word;
}

mod space {
    pub(crate) const LEFT_LOGS: u32 = u32::MAX;
}
