//! Write locks on the inodes of one operation on names, in the order that all use:
//! ascending inode numbers.

use crate::client::call::CallContext;
use shale_inodes::node::{Node, NodeState};
use shale_session::errno::{Errno, Stop};
use shale_sys::biased_rwlock::WriteGuard;
use std::ops::{Index, IndexMut};

/// Most inodes that one operation changes: a rename has two directories and two children.
const NODES_MAX: usize = 4;

/// States of some inodes, locked for changing, by inode number.
pub(crate) struct Locked<'n> {
    guards: [Option<WriteGuard<'n, NodeState>>; NODES_MAX],
}

impl<'n> Locked<'n> {
    /// Locks `nodes`, of which some may be the same. An inode that was freed since it
    /// was looked up gives [`Stop::Again`].
    pub(crate) fn take(
        op: &CallContext<'_>,
        nodes: &[&'n Node],
    ) -> std::result::Result<Self, Stop> {
        let mut order = [None; NODES_MAX];
        for (place, node) in order.iter_mut().zip(nodes) {
            *place = Some(*node);
        }
        order[..nodes.len()].sort_unstable_by_key(|n| n.map(|n| n.ino));
        let mut locked = Self {
            guards: [const { None }; NODES_MAX],
        };
        let mut last = None;
        for (place, node) in locked.guards.iter_mut().zip(order.into_iter().flatten()) {
            if last != Some(node.ino) {
                *place = Some(op.write(node).map_err(again_if_gone)?);
            }
            last = Some(node.ino);
        }
        Ok(locked)
    }
}

fn again_if_gone(stop: Stop) -> Stop {
    match stop {
        Stop::Errno(Errno::NOENT) => Stop::Again,
        other => other,
    }
}

impl Index<u64> for Locked<'_> {
    type Output = NodeState;

    fn index(&self, ino: u64) -> &NodeState {
        let mut all = self.guards.iter().flatten();
        all.find(|s| s.inode.ino == ino)
            .expect("the operation locked this inode")
    }
}

impl IndexMut<u64> for Locked<'_> {
    fn index_mut(&mut self, ino: u64) -> &mut NodeState {
        let mut all = self.guards.iter_mut().flatten();
        all.find(|s| s.inode.ino == ino)
            .expect("the operation locked this inode")
    }
}
