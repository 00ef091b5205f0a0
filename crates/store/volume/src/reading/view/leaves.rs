//! Where the leaves of an inode's trees lie, and reading one to be put elsewhere.

use crate::error::{Result, VolumeError};
use crate::media::is_in_nvm;
use crate::reading::view::View;
use crate::trees::node::{Dirent, Item, Node, child_index};
use crate::trees::roots::{bad_level, top, trees};
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::tree::{self, NodeHeader, TreeKind};
use shale_format::{BlockAddr, FileBlock, FormatError, Ino, TierId};
use zerocopy::FromBytes;

impl View {
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
            } else if let Node::Inner(_, children) =
                Node::<T>::load(self.blocks(), addr, owner, level)?
            {
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
            let Node::Inner(_, children) = Node::<Extent>::load(self.blocks(), addr, owner, level)?
            else {
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
        self.blocks().load_node(addr, 0, 1, &mut block)?;
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
