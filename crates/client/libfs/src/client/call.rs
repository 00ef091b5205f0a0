//! One run of a call: inside the read section, with a permit for the log, on inodes in memory.

use shale_format::LogPos;
use shale_format::inode::flag::SYNCS;
use shale_inodes::node::{Node, NodeState, Nodes};
use shale_proto::LeaseMode;
use shale_session::call_frame::CallFrame;
use shale_session::errno::{Errno, Stop};
use shale_sys::biased_rwlock::{ReadGuard, WriteGuard};
use shale_sys::mutants;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What an operation may touch within a run: the inodes in memory, and what the run holds of the session (as [`CallFrame`] has it).
pub(crate) struct CallContext<'s> {
    frame: CallFrame<'s>,
    nodes: &'s Nodes,
}

impl<'s> Deref for CallContext<'s> {
    type Target = CallFrame<'s>;

    #[inline(always)]
    fn deref(&self) -> &CallFrame<'s> {
        &self.frame
    }
}

impl DerefMut for CallContext<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.frame
    }
}

impl<'s> CallContext<'s> {
    /// A call that has yet to enter the read section.
    #[inline(always)]
    pub(crate) fn new(frame: CallFrame<'s>, nodes: &'s Nodes) -> Self {
        Self { frame, nodes }
    }

    /// The inode, loaded and leased. `ENOENT` if there is none.
    pub(crate) fn node(&self, ino: u64) -> std::result::Result<Arc<Node>, Stop> {
        self.leased(ino, LeaseMode::Shared)
    }

    /// As [`Self::node`], for a call that changes the inode.
    pub(crate) fn node_to_change(&self, ino: u64) -> std::result::Result<Arc<Node>, Stop> {
        self.leased(ino, LeaseMode::Exclusive)
    }

    /// The inode, loaded and leased in this mode.
    pub(crate) fn leased(&self, ino: u64, mode: LeaseMode) -> std::result::Result<Arc<Node>, Stop> {
        let missing = Stop::Lease(ino, mode);
        match self.nodes.get(ino) {
            Some(node) if self.may_use(&*node, mode) => Ok(node),
            _ => Err(missing),
        }
    }

    /// Whether a call may change this node at once: the lease on it stands.
    #[inline]
    pub(crate) fn may_change(&self, node: &Node) -> bool {
        self.may_use(node, LeaseMode::Exclusive)
    }

    /// Whether a call may read this node at once: the lease on it stands.
    #[inline]
    pub(crate) fn may_read(&self, node: &Node) -> bool {
        self.may_use(node, LeaseMode::Shared)
    }

    /// The node of an inode, if it is in memory, whatever lease there is on it.
    pub(crate) fn in_memory(&self, ino: u64) -> Option<Arc<Node>> {
        self.nodes.get(ino)
    }

    /// Whether the lease on a node stands, for reading.
    pub(crate) fn holds(&self, node: &Node) -> bool {
        self.lease_stands(node, LeaseMode::Shared)
    }

    /// Puts an inode that was just made, and is open from then on or not, into memory. Its number was
    /// granted to this client, and with it the lease.
    pub(crate) fn add_new(&self, state: NodeState, opened: bool) -> Arc<Node> {
        let ino = state.inode.ino;
        let node: Arc<Node> = Node::new(ino, state);
        if opened {
            self.open(&node);
        }
        self.note_use(ino);
        node.lease.set(self.lease_word(ino), LeaseMode::Exclusive);
        let digested = self.digested_now();
        self.nodes.replace(node.clone(), digested);
        node
    }

    /// An inode was freed by the record that ends at `end`.
    pub(crate) fn bury(&self, node: &Arc<Node>, end: LogPos) {
        let digested = self.digested_now();
        self.nodes.bury(node, end, digested);
    }

    /// Counts an open file; the call holds a lease on the node.
    pub(crate) fn open(&self, node: &Node) {
        node.handles.fetch_add(1, Ordering::AcqRel);
        self.count_open(node.ino);
    }

    /// The state of a node, for reading, in the call's epoch.
    #[inline(always)]
    pub(crate) fn read<'n>(
        &self,
        node: &'n Node,
    ) -> std::result::Result<ReadGuard<'n, NodeState>, Stop> {
        loop {
            let state = node.state.read();
            if state.epoch >= self.epoch || mutants::is_on("epoch-read") {
                return self.usable(node, &state).map(|()| state);
            }
            drop(state);
            node.refresh(self.volume(), self.epoch, self.digested)?;
        }
    }

    /// The state of a node, for changing, in the call's epoch.
    #[inline]
    pub(crate) fn write<'n>(
        &self,
        node: &'n Node,
    ) -> std::result::Result<WriteGuard<'n, NodeState>, Stop> {
        if !self.lease_stands(node, LeaseMode::Exclusive) {
            return Err(Stop::Lease(node.ino, LeaseMode::Exclusive));
        }
        self.lock(node)
    }

    /// Stops a call that would make a file longer, to `end`, which others use through the mount: the
    /// kernel does that, so that it never knows such a file too small.
    #[inline(always)]
    pub(crate) fn may_end_at(
        &self,
        node: &Node,
        state: &NodeState,
        end: u64,
    ) -> std::result::Result<(), Stop> {
        if end > state.inode.size && self.yields() {
            return self.may_grow(node);
        }
        Ok(())
    }

    fn may_grow(&self, node: &Node) -> std::result::Result<(), Stop> {
        match node.shared.load(Ordering::Acquire) {
            true => Err(Stop::Grow(node.ino)),
            false => Ok(()),
        }
    }

    /// The state of a node, for keeping more of what the volume says in memory.
    #[inline(always)]
    pub(crate) fn lock<'n>(
        &self,
        node: &'n Node,
    ) -> std::result::Result<WriteGuard<'n, NodeState>, Stop> {
        loop {
            let state = node.state.write();
            if state.epoch >= self.epoch {
                if state.inode.flags & SYNCS != 0 && !mutants::is_on("flag-unsynced") {
                    self.changes_synced(true);
                }
                return self.usable(node, &state).map(|()| state);
            }
            drop(state);
            node.refresh(self.volume(), self.epoch, self.digested)?;
        }
    }

    /// Whether a call may work with this state now.
    #[inline(always)]
    fn usable(&self, node: &Node, state: &NodeState) -> std::result::Result<(), Stop> {
        if state.dead || state.shifting {
            return Err(self.unusable(node, state));
        }
        Ok(())
    }

    #[cold]
    fn unusable(&self, node: &Node, state: &NodeState) -> Stop {
        if state.dead && state.newest <= self.digested {
            // The number is free again, so another client may have made an inode of it.
            self.nodes.remove(node);
            // Who still has the node looks the inode up again.
            node.lease.clear();
            return Stop::Lease(node.ino, LeaseMode::Shared);
        }
        if state.dead { self.gone() } else { Stop::Again }
    }

    /// Refuses what is no directory (`ENOTDIR`), and one that was removed ([`Self::gone`]).
    pub(crate) fn live_dir(&self, state: &NodeState) -> std::result::Result<(), Stop> {
        if !state.inode.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if state.orphan {
            Err(self.gone())
        } else {
            Ok(())
        }
    }

    /// Ends a shift of a file's blocks: the volume has it now.
    pub(crate) fn end_shift(&self, node: &Node) -> std::result::Result<(), Stop> {
        if !node.state.read().shifting {
            // The lease was elsewhere meanwhile, and what came with it may be changed already.
            return Ok(());
        }
        node.reload(self.volume(), self.epoch)
    }
}
