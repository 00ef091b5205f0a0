//! The read side: any process, no lock, while the daemon commits.
//!
//! The root block and inode slots are changed in place, so a reader can meet one
//! half-way: their checksums tell, and the reader looks again. Trees never change
//! in place; what a reader holds stays as it is until the daemon reuses the
//! blocks, which it does only after every reader has passed the epoch
//! (DESIGN §6). Roots and leaves kept by the caller are valid only in the epoch
//! in which they were read.

use crate::error::Result;
use crate::node::Dirent;
use shale_device::nvm::Map;
use shale_format::extent::Extent;
use shale_format::inode::Inode;
use shale_format::superblock::{RootBlock, Superblock};
use shale_format::version::Access;
use shale_format::xattr::Xattrs;
use shale_format::{BlockAddr, DirKey, FileBlock, Ino};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// What lies at a file block. `len`: blocks from there on with the same answer, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Data, on consecutive blocks from `addr`.
    Data {
        /// Address of the file block.
        addr: BlockAddr,
        /// Blocks.
        len: u64,
    },
    /// Allocated, reads as zeros.
    Unwritten {
        /// Address of the file block.
        addr: BlockAddr,
        /// Blocks.
        len: u64,
    },
    /// Nothing allocated, reads as zeros.
    Hole {
        /// Blocks.
        len: u64,
    },
}

/// Everything that is known about a range of a file's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafCover {
    /// Extents that touch the range, ascending, not overlapping.
    pub extents: Vec<Extent>,
    /// File blocks that they tell everything about: what is in the range and in
    /// no extent is a hole.
    pub range: Range<FileBlock>,
}

/// A reader of a volume. Clones are cheap.
#[derive(Clone)]
pub struct View {
    map: Arc<Map>,
    superblock: Arc<Superblock>,
}

impl View {
    /// Reads the superblocks; the newest valid one counts.
    pub fn open(map: Arc<Map>) -> Result<(View, Access)> {
        unimplemented!()
    }
    /// The superblock, as it was when the view was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
    /// The mapping of the NVM tier.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }
    /// Key group of `name` in any directory of the volume.
    pub fn key_group(&self, name: &[u8]) -> DirKey {
        unimplemented!()
    }
    /// The root block as last committed.
    pub fn root(&self) -> Result<RootBlock> {
        unimplemented!()
    }
    /// The inode `ino`; `None` if there is none.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        unimplemented!()
    }
    /// What lies at file block `fb`; the fastest tier that has it wins.
    pub fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        unimplemented!()
    }
    /// Calls `f` with every extent that ends behind `from`, ascending. Where a
    /// block is in several tiers only the fastest is told.
    pub fn extents(
        &self,
        inode: &Inode,
        from: FileBlock,
        f: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        unimplemented!()
    }
    /// Everything known around file block `fb`, for the caller to keep.
    pub fn leaf_of(&self, inode: &Inode, fb: FileBlock) -> Result<LeafCover> {
        unimplemented!()
    }
    /// The entry `name` of directory `dir`.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Dirent>> {
        unimplemented!()
    }
    /// Calls `f` with every entry whose key is `from` or above, in key order.
    pub fn entries(
        &self,
        dir: &Inode,
        from: DirKey,
        f: &mut dyn FnMut(Dirent) -> ControlFlow<()>,
    ) -> Result<()> {
        unimplemented!()
    }
    /// The entries of the group that `group` is in, with their twin numbers in
    /// their keys. Fewer than [`DirKey::TWINS`] means that a twin is free.
    pub fn twins(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        unimplemented!()
    }
    /// Lowest twin number of the group that no entry has; `None`: all are taken.
    pub fn first_free_twin(&self, dir: &Inode, group: DirKey) -> Result<Option<u8>> {
        unimplemented!()
    }
    /// The extended attributes of an inode.
    pub fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        unimplemented!()
    }
    /// Reads `into.len()` bytes from the start of block `addr` on; they may go on
    /// into following blocks. Errors: outside the NVM tier.
    pub fn read_blocks(&self, addr: BlockAddr, into: &mut [u8]) -> Result<()> {
        self.read_at(addr, 0, into)
    }
    /// Reads from byte `byte` behind the start of block `addr`.
    pub fn read_at(&self, addr: BlockAddr, byte: u64, into: &mut [u8]) -> Result<()> {
        unimplemented!()
    }
}
