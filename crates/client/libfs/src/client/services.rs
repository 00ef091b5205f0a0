//! The services of a client, of which each owns its state.
//!
//! A run of a call reaches them through [`crate::client::call::CallContext`], which is what an operation may touch; only this
//! folder sees them as they are.

use crate::client::connection_state::ConnectionState;
use crate::client::daemon_link::DaemonLink;
use crate::client::lease::Leases;
use crate::client::log::client_log::ClientLog;
use crate::client::options::SessionOptions;
use crate::client::space::granted_space::GrantedSpace;
use crate::client::space::grants::InodeNumbers;
use crate::client::volume_reader::VolumeReader;
use crate::inodes::kernel_refs::KernelRefs;
use crate::inodes::node::Nodes;
use shale_nvm::{Map, SharedWords};
use shale_proto::shared_pages::client_page;
use shale_sys::clock::Clock;
use std::sync::Arc;

/// See the module. In the order of their dependence.
pub(crate) struct Services {
    pub(super) options: SessionOptions,
    pub(super) clock: Arc<dyn Clock>,
    /// The client page: who is inside of a call, what is open.
    pub(super) sections: SharedWords,
    pub(super) page: Arc<Map>,
    pub(super) daemon: DaemonLink,
    pub(super) connection: ConnectionState,
    pub(super) volume: VolumeReader,
    pub(super) nodes: Nodes,
    pub(super) leases: Leases,
    pub(super) kernel: KernelRefs,
    pub(super) numbers: InodeNumbers,
    pub(super) space: GrantedSpace,
    pub(super) log: ClientLog,
}

impl Services {
    /// Counts an open file of inode `ino` where the daemon sees it.
    pub(super) fn count_open(&self, ino: u64, by: i32) {
        let word = client_page::uses(ino);
        self.page.fetch_add_u32(word, by.cast_unsigned());
    }
}
