//! Leases as a client holds them: the word in each inode's memory, and getting one.
//!
//! A node's word has the generation of the lease and its mode. It stands as long as the
//! daemon's word for the inode has the same generation; a call looks inside the read section, so
//! that the daemon waits for it before somebody else gets the lease. The daemon's words
//! are shared by several inodes: when one of them is taken away all have to be asked for
//! again, and most learn that nothing was lost.
//!
//! Invariant: who says that a node's word stands has brought the node up to date. So
//! asking, loading and setting the word are one step: one thread at a time per inode.

use super::daemon_link::DaemonLink;
use super::errno::{ELSEWHERE, Errno, Result, Stop};
use super::node::{Node, Nodes};
use super::read_section::ReadSection;
use super::sync::{Mutex, Ordering, SharedWords, failpoints};
use super::volume_reader::VolumeReader;
use shale_proto::{LeaseMode, LeaseRequestMode, Reply, Request};
use std::sync::Arc;

const TURNS: usize = 64;

/// The leases of one client.
pub(crate) struct Leases {
    daemon: DaemonLink,
    /// The client page, which says who is inside of a call.
    sections: SharedWords,
    /// Locks of which one is held while a lease on an inode is asked for.
    acquiring: [Mutex<()>; TURNS],
}

impl Leases {
    /// `sections`: the client page.
    pub(crate) fn new(daemon: DaemonLink, sections: SharedWords) -> Self {
        Self {
            daemon,
            sections,
            acquiring: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn lock_of(&self, ino: u64) -> &Mutex<()> {
        &self.acquiring[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % TURNS]
    }

    /// Whether the lease on a node in memory stands and suffices. True as long as the
    /// caller stays inside the read section.
    #[inline]
    pub(crate) fn holds(&self, node: &Node, mode: LeaseMode) -> bool {
        node.lease.covers(self.daemon.lease_word(node.ino), mode)
    }

    /// Gives a lease back. What was written under it is in the volume when this returns.
    pub(crate) fn give_back(&self, nodes: &Nodes, ino: u64) -> Result<()> {
        let _acquiring = self.lock_of(ino).lock();
        if let Some(node) = nodes.get(ino) {
            node.lease.clear();
        }
        self.daemon.ask(Request::Unlease { ino })?;
        Ok(())
    }

    /// Gets a lease and brings the inode in memory up to date. Outside of the read section.
    /// `false`: others have the lease, and the caller does not insist.
    pub(crate) fn acquire(
        &self,
        nodes: &Nodes,
        volume: &VolumeReader,
        ino: u64,
        mode: LeaseMode,
        request_mode: LeaseRequestMode,
    ) -> Result<bool> {
        let _acquiring = self.lock_of(ino).lock();
        let node = nodes.get(ino);
        // Who does not insist wants to know about others, too.
        let asks = matches!(
            request_mode,
            LeaseRequestMode::Try | LeaseRequestMode::GrowOrDefer
        );
        if !asks && node.is_some_and(|n| self.holds(&n, mode)) {
            return Ok(true);
        }
        let (generation, fresh, mode, used, watched, shared) =
            match self.daemon.ask(Request::Lease {
                ino,
                mode,
                request_mode,
            })? {
                Reply::Leased {
                    generation,
                    fresh,
                    mode,
                    used,
                    watched,
                    shared,
                } => (generation, fresh, mode, used, watched, shared),
                Reply::NotLeased => return Ok(false),
                Reply::Elsewhere { .. } => return Err(ELSEWHERE),
                _ => return Err(Errno::PROTO),
            };
        failpoints::reach("lease-given");
        loop {
            let inside = ReadSection::enter(&self.sections);
            let node = match nodes.get(ino) {
                Some(node) => self.up_to_date(nodes, volume, node, fresh),
                None => self.load(nodes, volume, ino),
            };
            match node {
                Ok(node) => {
                    node.used_elsewhere.store(used, Ordering::Release);
                    node.watched.store(watched, Ordering::Release);
                    node.shared.store(
                        shared && request_mode != LeaseRequestMode::GrowOrDefer,
                        Ordering::Release,
                    );
                    node.lease.set(generation, mode);
                    return Ok(true);
                }
                Err(stop) => {
                    drop(inside);
                    volume.get_lacking(stop)?;
                }
            }
        }
    }

    fn load(
        &self,
        nodes: &Nodes,
        volume: &VolumeReader,
        ino: u64,
    ) -> std::result::Result<Arc<Node>, Stop> {
        let node = Node::load(volume, ino, self.daemon.epoch())?;
        Ok(nodes.add(node, self.daemon.digested()))
    }

    fn up_to_date(
        &self,
        nodes: &Nodes,
        volume: &VolumeReader,
        node: Arc<Node>,
        fresh: bool,
    ) -> std::result::Result<Arc<Node>, Stop> {
        if fresh {
            // Should loading fail, the next one to ask will not be notified again.
            node.lease.clear();
        }
        if !node.lease.was_set() {
            node.reload(volume, self.daemon.epoch())?;
            // Who found it dead may have taken it out meanwhile. There must be no second node
            // for the inode while this one's lease stands.
            return Ok(nodes.add(node, self.daemon.digested()));
        }
        Ok(node)
    }

    /// Whether the volume may be asked about an inode that is not in memory, for once: gets
    /// a shared lease if nobody has to lose one, and calls `f` inside the read section while it stands.
    pub(crate) fn glance<T>(
        &self,
        nodes: &Nodes,
        ino: u64,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        let _acquiring = self.lock_of(ino).lock();
        if nodes.get(ino).is_some() {
            return Ok(None);
        }
        let ask = Request::Lease {
            ino,
            mode: LeaseMode::Shared,
            request_mode: LeaseRequestMode::Try,
        };
        let generation = match self.daemon.ask(ask) {
            Ok(Reply::Leased { generation, .. }) => generation,
            Ok(Reply::NotLeased) | Err(Errno::NOENT) => return Ok(None),
            Ok(_) => return Err(Errno::PROTO),
            Err(e) => return Err(e),
        };
        let _inside = ReadSection::enter(&self.sections);
        if self.daemon.lease_word(ino) == generation {
            f().map(Some)
        } else {
            Ok(None)
        }
    }
}
