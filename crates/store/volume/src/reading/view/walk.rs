//! Everything a volume refers to: what `fsck` compares with the bitmap.

use crate::bitmap::Bits;
use crate::error::Result;
use crate::reading::view::View;
use crate::trees::node::{Dirent, Item, Node};
use crate::trees::xattr;
use shale_allocation::{Run, runs_of};
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::INODES_PER_BLOCK;
use shale_format::{BlockAddr, FileBlock, FormatError, Ino};
use std::ops::ControlFlow;

/// One node of a tree, as [`View::nodes`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAt {
    /// Its block.
    pub addr: BlockAddr,
    /// Level above the leaves.
    pub level: u16,
}

impl View {
    /// Calls `f` with every node of the trees of an inode, parents first, after
    /// checking it. A node that is damaged is passed to `f` with its error, and what
    /// is below it is left out.
    pub fn nodes(
        &self,
        inode: &Inode,
        f: &mut dyn FnMut(NodeAt, Result<()>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let owner = Ino(inode.ino);
        for root in inode.root.iter().filter(|r| r.kind == root_kind::TREE) {
            match inode.is_dir() {
                true => self.nodes_of::<Dirent>(root, owner, f)?,
                false => self.nodes_of::<Extent>(root, owner, f)?,
            }
        }
        ControlFlow::Continue(())
    }

    fn nodes_of<T: Item>(
        &self,
        root: &ExtentRoot,
        owner: Ino,
        f: &mut dyn FnMut(NodeAt, Result<()>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut open = vec![NodeAt {
            addr: BlockAddr::from_raw(root.addr),
            level: root.level,
        }];
        while let Some(at) = open.pop() {
            match Node::<T>::load(self.blocks(), at.addr, owner, at.level) {
                Ok(Node::Inner(level, children)) => {
                    f(at, Ok(()))?;
                    open.extend(children.iter().rev().map(|c| NodeAt {
                        addr: BlockAddr::from_raw(c.addr),
                        level: level.saturating_sub(1),
                    }));
                }
                Ok(Node::Leaf(_)) => f(at, Ok(()))?,
                Err(e) => f(at, Err(e))?,
            }
        }
        ControlFlow::Continue(())
    }

    /// Calls `f` with every inode in use, ascending, and with the error of every
    /// slot that is damaged.
    ///
    /// # Errors
    /// Damaged root block or inode-file tree.
    pub fn inodes(
        &self,
        f: &mut dyn FnMut(Ino, std::result::Result<Inode, FormatError>) -> ControlFlow<()>,
    ) -> Result<()> {
        let file = self.root()?.inode_file;
        let mut result = Ok(());
        self.extents(&file, FileBlock(0), &mut |e| {
            for fb in e.start().0..e.end().0 {
                let first = fb * INODES_PER_BLOCK;
                for ino in (first..first + INODES_PER_BLOCK).map(Ino) {
                    let flow = match self.slot(e.addr_of(FileBlock(fb)), ino) {
                        Ok(Ok(inode)) if inode.is_free() => ControlFlow::Continue(()),
                        Ok(found) => f(ino, found),
                        Err(e) => {
                            result = Err(e);
                            ControlFlow::Break(())
                        }
                    };
                    flow?;
                }
            }
            ControlFlow::Continue(())
        })?;
        result
    }

    /// The blocks that hold the extended attributes of an inode, a list of them included.
    ///
    /// # Errors
    /// A damaged list, or more bytes than there can be.
    pub fn xattr_runs(&self, inode: &Inode) -> Result<Vec<Run>> {
        xattr::runs_of(self.media(), inode)
    }

    /// The runs that the persistent bitmap says are in use, fixed areas included,
    /// ascending. Only while nothing is committed.
    ///
    /// # Errors
    /// Damaged bitmap.
    pub fn used_runs(&self) -> Result<Vec<Run>> {
        let sb = self.superblock();
        let bits = Bits::load(self.media(), sb.bitmap_block, sb.bitmap_blocks)?;
        Ok(runs_of(bits.used().iter().copied().enumerate()))
    }
}
