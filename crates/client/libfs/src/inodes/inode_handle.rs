//! An inode that a caller names by its number again and again, and what finding it came to.

use crate::client::session::Session;
use crate::errno::Result;
use crate::inodes::attr::Caller;
use crate::inodes::node::Node;
use crate::io::write::WriteFlags;
use shale_proto::LeaseMode;
use std::sync::Arc;

/// An inode by number, with a short way to it: a caller that keeps this from call to call
/// has the inode looked up only when the lease on it has been elsewhere.
///
/// It belongs to the session that it is used with first. It keeps no inode alive: should the
/// number come to be another inode's, the next call is about that one, as with the number.
#[derive(Default)]
pub struct InodeHandle {
    ino: u64,
    node: Option<Arc<Node>>,
    /// Where the last read ended.
    next: u64,
}

impl InodeHandle {
    /// Inode `ino`, not looked up yet.
    pub fn new(ino: u64) -> Self {
        Self {
            ino,
            ..Self::default()
        }
    }

    /// Its number.
    #[inline]
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// The inode in memory, if it is there. A node whose lease does not stand may have been
    /// replaced by another one, so it is looked up.
    #[inline]
    fn node(&mut self, session: &Session) -> Option<&Node> {
        let stands = |node: &Arc<Node>| session.holds(node, LeaseMode::Shared);
        if !self.node.as_ref().is_some_and(stands) {
            self.look_up(session);
        }
        self.node.as_deref()
    }

    #[cold]
    fn look_up(&mut self, session: &Session) {
        self.node = session.nodes.get(self.ino);
    }
}

impl Session {
    /// As [`Session::read`].
    pub fn read_found(
        &self,
        caller: &Caller,
        found: &mut InodeHandle,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        let (ino, sequential) = (found.ino, found.next == offset);
        let node = found.node(self);
        let n = self.read_known(caller, ino, node, sequential, offset, into)?;
        found.next = offset + n as u64;
        Ok(n)
    }

    /// As [`Session::write_at`]; `at` is where to begin, then where the write ended.
    pub fn write_handle(
        &self,
        caller: &Caller,
        found: &mut InodeHandle,
        at: &mut u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let ino = found.ino;
        self.write_with_node(caller, ino, found.node(self), at, data, flags)
    }
}
