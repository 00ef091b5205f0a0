//! Leaves of directories and of files' extents below NVM.
//!
//! A tree may have some of its leaves below; its inner nodes are in NVM, and so is all of the inode file's tree. A
//! leaf that lies below is a node like any other: it holds its own address, and never changes there. A
//! transaction that changes one copies it to a new block of NVM, as it does with every node.
//!
//! A root counts its leaves below, the root block all of them for each tier, those of directories and those of
//! extents apart.

use crate::allocation::space::Run;
use crate::error::{Result, VolumeError};
use crate::media::Block;
use crate::reading::view::View;
use crate::transaction::txn::Txn;
use crate::trees::inode::is_in_nvm;
use crate::trees::node::{Dirent, Item, Node, child_index};
use crate::trees::tree::{CowTrees, TreeItem, bad_level, top};
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::superblock::RootBlock;
use shale_format::tree::{self, NodeHeader, TreeKind};
use shale_format::{BlockAddr, FileBlock, FormatError, Ino, TierId};
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Leaves that may come back at once: of a directory or a file with more none goes below.
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

/// Leaves below NVM, by tier.
type Tiers = [i64; 2];

/// Leaves below NVM that a transaction has more than there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demoted {
    /// In the tree of the operation in progress.
    tree: i32,
    entries: Tiers,
    extents: Tiers,
}

impl Demoted {
    fn add(&mut self, kind: TreeKind, addr: BlockAddr, n: i32) -> bool {
        let tiers = match kind {
            TreeKind::Entries => &mut self.entries,
            TreeKind::Extents => &mut self.extents,
        };
        let tier = addr.tier().map_or(0, |t| t as usize);
        let below = tier.checked_sub(1).map(|t| &mut tiers[t]);
        let is_below = below.is_some();
        if let Some(count) = below {
            self.tree += n;
            *count += i64::from(n);
        }
        is_below
    }

    /// A leaf goes away from a block; whether that is below NVM.
    pub(crate) fn left(&mut self, kind: TreeKind, addr: BlockAddr) -> bool {
        self.add(kind, addr, -1)
    }

    /// Those of the operation in progress, which ends.
    pub(crate) fn of_tree(&mut self) -> i32 {
        std::mem::take(&mut self.tree)
    }

    /// Counts them in the root block.
    pub(crate) fn count(&self, root: &mut RootBlock) {
        let counts = [
            (&mut root.leaves_below, &self.entries),
            (&mut root.extent_leaves_below, &self.extents),
        ];
        for (counts, changes) in counts {
            for (count, &n) in counts.iter_mut().zip(changes) {
                *count = count.saturating_add_signed(n);
            }
        }
    }
}

/// The roots of an inode's trees.
fn trees(inode: &Inode) -> impl Iterator<Item = &ExtentRoot> {
    let roots = match inode.is_dir() {
        true => &inode.root[..1],
        false => &inode.root[..],
    };
    roots.iter().filter(|r| r.kind == root_kind::TREE)
}

/// Leaves of an inode that lie below NVM, as its roots count them.
pub fn leaves_below(inode: &Inode) -> u64 {
    trees(inode).map(|root| u64::from(root.len)).sum()
}

impl View {
    /// Reads a block that should be a node of a tree of this kind, at this level. `following`: leaves from there on
    /// that follow one another.
    pub(crate) fn load_node(
        &self,
        addr: BlockAddr,
        level: u16,
        following: u64,
        into: &mut Block,
    ) -> Result<()> {
        let Some(lower) = self.lower().filter(|_| !is_in_nvm(addr) && level == 0) else {
            return self.media().load_block(addr, into);
        };
        let Some(given) = self.given() else {
            return lower.read_leaf(addr, into);
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

    /// Where the leaves of a directory, or of a file's extents, lie, in the order of their keys, tier by tier.
    /// Reads none of them.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn leaves(&self, inode: &Inode) -> Result<Vec<BlockAddr>> {
        let mut leaves = Vec::new();
        for root in trees(inode) {
            match inode.is_dir() {
                true => self.leaves_of::<Dirent>(root, Ino(inode.ino), &mut leaves)?,
                false => self.leaves_of::<Extent>(root, Ino(inode.ino), &mut leaves)?,
            }
        }
        Ok(leaves)
    }

    fn leaves_of<T: Item>(
        &self,
        root: &ExtentRoot,
        owner: Ino,
        leaves: &mut Vec<BlockAddr>,
    ) -> Result<()> {
        let mut open = vec![top(root, owner)?];
        while let Some((addr, level)) = open.pop() {
            if level == 0 {
                leaves.push(addr);
            } else if let Node::Inner(_, children) = Node::<T>::load(self, addr, owner, level)? {
                let below = |c: &tree::ChildEntry| (BlockAddr::from_raw(c.addr), level - 1);
                open.extend(children.iter().rev().map(below));
            }
        }
        Ok(())
    }

    /// Where the leaf lies that tells of block `fb` of a file in `tier`, if that is below NVM. Does not read it.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn leaf_below(
        &self,
        file: &Inode,
        tier: TierId,
        fb: FileBlock,
    ) -> Result<Option<BlockAddr>> {
        let root = &file.root[tier as usize];
        if root.kind != root_kind::TREE || root.len == 0 {
            return Ok(None);
        }
        let (addr, _) = self.leaf_at(root, Ino(file.ino), fb)?;
        Ok((!is_in_nvm(addr)).then_some(addr))
    }

    /// Block of a file behind the last one that the leaves tell of that tell of `fb`. Reads none of them.
    pub(crate) fn leaf_end(&self, file: &Inode, fb: FileBlock) -> Result<FileBlock> {
        let mut end = FileBlock(u64::MAX);
        for root in trees(file) {
            end = end.min(self.leaf_at(root, Ino(file.ino), fb)?.1);
        }
        Ok(end)
    }

    /// Where the leaf lies that tells of a block of a file, and the first block that it does not tell of.
    fn leaf_at(
        &self,
        root: &ExtentRoot,
        owner: Ino,
        fb: FileBlock,
    ) -> Result<(BlockAddr, FileBlock)> {
        let (mut addr, mut level) = top(root, owner)?;
        let mut end = FileBlock(u64::MAX);
        while level > 0 {
            let Node::Inner(_, children) = Node::<Extent>::load(self, addr, owner, level)? else {
                return Err(bad_level(addr, owner));
            };
            let i = child_index(&children, fb.0);
            end = children.get(i + 1).map_or(end, |c| FileBlock(c.key));
            addr = BlockAddr::from_raw(children[i].addr);
            level -= 1;
        }
        Ok((addr, end))
    }

    /// Reads the leaf of an inode's tree at `addr`, to be put elsewhere.
    ///
    /// # Errors
    /// It cannot be read, or is no leaf of that inode.
    pub fn leaf(&self, ino: Ino, addr: BlockAddr) -> Result<Box<[u8; BLOCK_BYTES]>> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        self.load_node(addr, 0, 1, &mut block)?;
        let extents = NodeHeader::read_from_prefix(&block[..])
            .is_ok_and(|(header, _)| header.kind == TreeKind::Extents as u16);
        let kind = match extents {
            true => TreeKind::Extents,
            false => TreeKind::Entries,
        };
        let header = tree::check(&block, addr, ino, kind)?;
        match header.level {
            0 => Ok(block),
            level => Err(VolumeError::Format(FormatError::Field {
                what: "leaf of a tree",
                at: addr.index(),
                field: "level",
                found: level.into(),
            })),
        }
    }
}

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

    fn move_leaves<T: TreeItem>(
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

impl Txn<'_> {
    /// Has leaves of a directory, or of a file's extents, lie where `moves` says, by where they lie: there the caller
    /// has written copies of them, as nodes of those places. Gives those that move, by where they lay: not what is
    /// somewhere else by now, and as many as the journal takes.
    ///
    /// # Errors
    /// Damaged tree, `NoSpace` for inner nodes.
    pub fn move_leaves(
        &mut self,
        ino: Ino,
        moves: &HashMap<BlockAddr, BlockAddr>,
    ) -> Result<Vec<BlockAddr>> {
        let mut moved = Vec::new();
        let Some(mut inode) = self.inode(ino)? else {
            return Ok(moved);
        };
        let is_dir = inode.is_dir();
        let most_bytes = self.journal_capacity() / 4 * 3;
        let roots = if is_dir { 1 } else { inode.root.len() };
        for root in &mut inode.root[..roots] {
            if root.kind != root_kind::TREE {
                continue;
            }
            let (draft, to) = (self.draft(), (moves, &mut moved));
            let result = match is_dir {
                true => draft.move_leaves::<Dirent>(root, ino, to, most_bytes),
                false => draft.move_leaves::<Extent>(root, ino, to, most_bytes),
            };
            self.noted(result)?;
        }
        if !moved.is_empty() {
            self.put_inode(&inode)?;
        }
        Ok(moved)
    }
}
