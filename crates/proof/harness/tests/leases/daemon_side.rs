//! The daemon: its own files as they are, and what stands for the rest of it.
#![allow(dead_code, reason = "the model needs only a part of those files")]

#[path = "../../../../server/clients/src/asked.rs"]
mod asked;
#[path = "../../../../server/coherence/src/digest_stop.rs"]
pub(crate) mod digest_stop;
#[path = "../../../../server/coherence/src/fence.rs"]
pub(crate) mod fence;
#[path = "../../../../server/coherence/src/grace.rs"]
pub(crate) mod grace;
#[path = "../../../../server/coherence/src/lease_manager/mod.rs"]
pub(crate) mod lease_manager;
#[path = "../../../../server/coherence/src/lease_table.rs"]
pub(crate) mod lease_table;
#[path = "../../../../server/coherence/src/readers.rs"]
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
