//! Leaves of directories and of files' extents below NVM.
//!
//! A tree may have some of its leaves below; its inner nodes are in NVM, and so is all of the inode file's tree. A
//! leaf that lies below is a node like any other: it holds its own address, and never changes there. A
//! transaction that changes one copies it to a new block of NVM, as it does with every node.
//!
//! A root counts its leaves below, the root block all of them for each tier, those of directories and those of
//! extents apart.

use super::{CowTrees, TreeItem};
use crate::error::Result;
use crate::trees::node::Node;
use crate::trees::roots::{bad_level, top};
use shale_allocation::Run;
use shale_format::extent::ExtentRoot;
use shale_format::{BlockAddr, Ino};
use std::collections::HashMap;

/// Leaves on their way: where they lie, and where their copies are.
type Moves = HashMap<BlockAddr, BlockAddr>;

impl CowTrees {
    /// Names the copies of leaves instead of them, below a node; adds those to `moved`. Gives where the node is
    /// then.
    fn move_below<T: TreeItem>(
        &mut self,
        (addr, level): (BlockAddr, u16),
        owner: Ino,
        (moves, moved): (&Moves, &mut Vec<BlockAddr>),
        most_bytes: u64,
    ) -> Result<BlockAddr> {
        if level == 0 {
            let to = moves
                .get(&addr)
                .filter(|_| self.journal_bytes() < most_bytes);
            let Some(&to) = to else {
                return Ok(addr);
            };
            self.free(Run { addr, len: 1 })?;
            self.mark(Run { addr: to, len: 1 })?;
            self.demoted.left(T::KIND, addr);
            self.demoted.add(T::KIND, to, 1);
            moved.push(addr);
            return Ok(to);
        }
        let mut children = match &*self.node::<T>(addr, owner, level)? {
            Node::Inner(_, children) => children.clone(),
            Node::Leaf(_) => return Err(bad_level(addr, owner)),
        };
        let mut changed = false;
        for child in &mut children {
            let below = (BlockAddr::from_raw(child.addr), level - 1);
            let now = self
                .move_below::<T>(below, owner, (moves, moved), most_bytes)?
                .raw();
            changed |= now != child.addr;
            child.addr = now;
        }
        if !changed {
            return Ok(addr);
        }
        let (addr, _) = self.open::<T>(addr, owner, level)?;
        self.put::<T>(addr, owner, Node::Inner(level, children));
        Ok(addr)
    }

    /// Has leaves of a tree lie where `moves` says; adds those that move to `moved`.
    pub(crate) fn move_leaves<T: TreeItem>(
        &mut self,
        root: &mut ExtentRoot,
        owner: Ino,
        (moves, moved): (&Moves, &mut Vec<BlockAddr>),
        most_bytes: u64,
    ) -> Result<()> {
        let at = top(root, owner)?;
        root.addr = self
            .move_below::<T>(at, owner, (moves, moved), most_bytes)?
            .raw();
        self.count(root);
        Ok(())
    }
}
