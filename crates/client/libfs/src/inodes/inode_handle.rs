//! An inode that a caller names by its number again and again, and what finding it came to.

use crate::client::call_runner::CallRunner;
use crate::io::read::read_known;
use crate::io::write::write_with_node;
use crate::io::write::{WriteAccess, WriteFlags};
use shale_inodes::node::Node;
use shale_session::caller::Caller;
use shale_session::errno::Result;
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
    fn node(&mut self, calls: &CallRunner) -> Option<&Node> {
        let stands = |node: &Arc<Node>| calls.holds(node);
        if !self.node.as_ref().is_some_and(stands) {
            self.look_up(calls);
        }
        self.node.as_deref()
    }

    #[cold]
    fn look_up(&mut self, calls: &CallRunner) {
        self.node = calls.in_memory(self.ino);
    }
}

/// See [`crate::Session::read_found`].
pub(crate) fn read_found(
    calls: &CallRunner,
    caller: &Caller,
    found: &mut InodeHandle,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    let (ino, sequential) = (found.ino, found.next == offset);
    let node = found.node(calls);
    let n = read_known(calls, caller, ino, node, sequential, offset, into)?;
    found.next = offset + n as u64;
    Ok(n)
}

/// See [`crate::Session::write_handle`].
pub(crate) fn write_handle(
    w: &WriteAccess<'_>,
    found: &mut InodeHandle,
    at: &mut u64,
    data: &[u8],
    flags: WriteFlags,
) -> Result<usize> {
    let ino = found.ino;
    write_with_node(w, ino, found.node(w.calls), at, data, flags)
}
