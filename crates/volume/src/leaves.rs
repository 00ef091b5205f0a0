//! Leaves of directories below NVM.
//!
//! A tree may have some of its leaves below; its inner nodes, and all nodes of extents, are in NVM. A leaf that
//! lies below is a node like any other: it holds its own address, and never changes there. A
//! transaction that changes one copies it to a new block of NVM, as it does with every node.
//!
//! A root counts its leaves below, the root block all of them for each tier.

use crate::error::{Result, VolumeError};
use crate::inode::is_in_nvm;
use crate::media::Block;
use crate::node::{Dirent, Node};
use crate::space::Run;
use crate::tree::{Draft, bad_level, top};
use crate::txn::Txn;
use crate::view::View;
use shale_format::extent::{ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::RootBlock;
use shale_format::tree::{self, TreeKind};
use shale_format::{BlockAddr, FormatError, Ino};
use std::collections::HashMap;
use std::sync::Arc;

/// Leaves that may come back at once: of a directory with more none goes below.
pub const LEAVES_AT_ONCE: u64 = 1024;

/// Leaves below NVM that a process without devices has been given.
pub trait Given: Send + Sync {
    /// The block that lay at `addr` when its zone had been erased `generation` times; `None`: it has
    /// to be got first.
    ///
    /// # Errors
    /// It could not be read.
    fn block(&self, addr: BlockAddr, generation: u32) -> Option<Result<Arc<[u8; BLOCK_BYTES]>>>;
}

/// Leaves below NVM that a transaction has more than there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sunk {
    /// In the tree of the operation in progress.
    tree: i32,
    tiers: [i64; 2],
}

impl Sunk {
    fn add(&mut self, addr: BlockAddr, n: i32) -> bool {
        let tier = addr.tier().map_or(0, |t| t as usize);
        let below = tier.checked_sub(1).map(|t| &mut self.tiers[t]);
        let is_below = below.is_some();
        if let Some(count) = below {
            self.tree += n;
            *count += i64::from(n);
        }
        is_below
    }

    /// A leaf goes away from a block; whether that is below NVM.
    pub(crate) fn left(&mut self, addr: BlockAddr) -> bool {
        self.add(addr, -1)
    }

    /// Those of the operation in progress, which ends.
    pub(crate) fn of_tree(&mut self) -> i32 {
        std::mem::take(&mut self.tree)
    }

    /// Counts them in the root block.
    pub(crate) fn count(&self, root: &mut RootBlock) {
        for (count, &n) in root.leaves_below.iter_mut().zip(&self.tiers) {
            *count = count.saturating_add_signed(n);
        }
    }
}

impl View {
    /// Reads a block that should be a node of a tree of this kind, at this level. `following`: leaves from there on
    /// that follow one another.
    pub(crate) fn load_node(
        &self,
        addr: BlockAddr,
        (kind, level): (TreeKind, u16),
        following: u64,
        into: &mut Block,
    ) -> Result<()> {
        if is_in_nvm(addr) || level > 0 || kind != TreeKind::Entries || self.lower().is_none() {
            return self.media().load_block(addr, into);
        }
        let Some(given) = self.given() else {
            return self.read_at(addr, 0, into);
        };
        let generation = self.generation(addr)?;
        match given.block(addr, generation) {
            Some(block) => *into = *block?,
            None => {
                return Err(VolumeError::Lacking {
                    addr,
                    generation,
                    blocks: following,
                });
            }
        }
        Ok(())
    }

    /// Where the leaves of a directory lie, in the order of their keys. Reads none of them.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn leaves(&self, dir: &Inode) -> Result<Vec<BlockAddr>> {
        let (root, owner) = (&dir.root[0], Ino(dir.ino));
        let mut leaves = Vec::new();
        if !dir.is_dir() || root.kind == root_kind::EMPTY {
            return Ok(leaves);
        }
        let mut open = vec![top(root, owner)?];
        while let Some((addr, level)) = open.pop() {
            if level == 0 {
                leaves.push(addr);
            } else if let Node::Inner(_, children) = Node::<Dirent>::load(self, addr, owner, level)?
            {
                let below = |c: &tree::ChildEntry| (BlockAddr::from_raw(c.addr), level - 1);
                open.extend(children.iter().rev().map(below));
            }
        }
        Ok(leaves)
    }

    /// Reads the leaf of a directory at `addr`, to be put elsewhere.
    ///
    /// # Errors
    /// It cannot be read, or is no leaf of that directory.
    pub fn leaf(&self, dir: Ino, addr: BlockAddr) -> Result<Box<[u8; BLOCK_BYTES]>> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        self.load_node(addr, (TreeKind::Entries, 0), 1, &mut block)?;
        let header = tree::check(&block, addr, dir, TreeKind::Entries)?;
        match header.level {
            0 => Ok(block),
            level => Err(VolumeError::Format(FormatError::Field {
                what: "leaf of a directory",
                at: addr.index(),
                field: "level",
                found: level.into(),
            })),
        }
    }
}

/// Leaves on their way: where they lie, and where their copies are.
type Moves = HashMap<BlockAddr, BlockAddr>;

impl Draft {
    /// Names the copies of leaves instead of them, below a node; adds those to `moved`. Gives where the node is
    /// then.
    fn move_below(
        &mut self,
        (addr, level): (BlockAddr, u16),
        owner: Ino,
        (moves, moved): (&Moves, &mut Vec<BlockAddr>),
        room: u64,
    ) -> Result<BlockAddr> {
        if level == 0 {
            let to = moves.get(&addr).filter(|_| self.journal_bytes() < room);
            let Some(&to) = to else {
                return Ok(addr);
            };
            self.free(Run { addr, len: 1 })?;
            self.mark(Run { addr: to, len: 1 })?;
            self.sunk.left(addr);
            self.sunk.add(to, 1);
            moved.push(addr);
            return Ok(to);
        }
        let mut children = match &*self.node::<Dirent>(addr, owner, level)? {
            Node::Inner(_, children) => children.clone(),
            Node::Leaf(_) => return Err(bad_level(addr, owner)),
        };
        let mut changed = false;
        for child in &mut children {
            let below = (BlockAddr::from_raw(child.addr), level - 1);
            let now = self.move_below(below, owner, (moves, moved), room)?.raw();
            changed |= now != child.addr;
            child.addr = now;
        }
        if !changed {
            return Ok(addr);
        }
        let (addr, _) = self.open::<Dirent>(addr, owner, level)?;
        self.put::<Dirent>(addr, owner, Node::Inner(level, children));
        Ok(addr)
    }

    fn move_leaves(
        &mut self,
        root: &mut ExtentRoot,
        owner: Ino,
        moves: &Moves,
        room: u64,
    ) -> Result<Vec<BlockAddr>> {
        let mut moved = Vec::new();
        let at = top(root, owner)?;
        root.addr = self.move_below(at, owner, (moves, &mut moved), room)?.raw();
        self.count(root);
        Ok(moved)
    }
}

impl Txn<'_> {
    /// Has leaves of a directory lie where `moves` says, by where they lie: there the caller has written
    /// copies of them, as nodes of those places. Gives those that move, by where they lay: not what is somewhere else by
    /// now, and as many as the journal takes.
    ///
    /// # Errors
    /// Damaged tree, `NoSpace` for inner nodes.
    pub fn move_leaves(
        &mut self,
        dir: Ino,
        moves: &HashMap<BlockAddr, BlockAddr>,
    ) -> Result<Vec<BlockAddr>> {
        let Some(mut inode) = self.inode(dir)?.filter(Inode::is_dir) else {
            return Ok(Vec::new());
        };
        if inode.root[0].kind == root_kind::EMPTY {
            return Ok(Vec::new());
        }
        let room = self.journal_room() / 4 * 3;
        let result = self
            .draft()
            .move_leaves(&mut inode.root[0], dir, moves, room);
        let moved = self.noted(result)?;
        if !moved.is_empty() {
            self.put_inode(&inode)?;
        }
        Ok(moved)
    }
}
