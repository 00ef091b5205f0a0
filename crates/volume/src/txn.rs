//! Transactions: all of it or nothing of it survives a power cut.

use crate::error::Result;
use crate::node::Dirent;
use crate::space::Run;
use crate::view::Mapping;
use shale_format::extent::Extent;
use shale_format::inode::Inode;
use shale_format::log::LogSlot;
use shale_format::xattr::Xattrs;
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, TierId, TxId};
use std::marker::PhantomData;
use std::ops::Range;

/// What a commit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Number of the transaction.
    pub txid: TxId,
    /// Blocks that it freed. They are not allocatable before
    /// [`crate::Volume::release_up_to`].
    pub freed: Vec<Run>,
}

/// A transaction. Dropped without [`Txn::commit`] it changes nothing, and what it
/// allocated itself is free again; runs from [`crate::Volume::allocate`] stay the caller's.
///
/// Operations change the `&mut Inode` they are given; store it with
/// [`Txn::put_inode`]. After an error other than `Exists` and `NoEntry` the
/// transaction cannot be committed.
pub struct Txn<'v> {
    marker: PhantomData<&'v ()>,
}

impl Txn<'_> {
    /// Number that the transaction will have.
    pub fn txid(&self) -> TxId {
        unimplemented!()
    }
    /// The inode as this transaction sees it; `None` if there is none.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        unimplemented!()
    }
    /// Stores an inode. Its slot is made when there is none. `txid` is set here.
    pub fn put_inode(&mut self, inode: &Inode) -> Result<()> {
        unimplemented!()
    }
    /// Frees a slot. Blocks, entries and attributes must be gone before.
    pub fn free_inode(&mut self, ino: Ino) -> Result<()> {
        unimplemented!()
    }
    /// What lies at file block `fb`, as this transaction sees it.
    pub fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        unimplemented!()
    }
    /// Maps `extent` in `tier` and marks its blocks used. What was mapped there in
    /// that tier is freed, unless it is the same block (so an unwritten extent can
    /// become a written one). Adjoining extents are merged. `blocks` is kept right.
    pub fn extent_insert(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        extent: Extent,
    ) -> Result<()> {
        unimplemented!()
    }
    /// Unmaps a range in `tier` and frees its blocks.
    pub fn extent_remove(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        range: Range<FileBlock>,
    ) -> Result<()> {
        unimplemented!()
    }
    /// Moves everything from file block `from` on by `delta` blocks, in all tiers.
    /// Errors: `delta` is negative and something is mapped in `from+delta .. from`.
    pub fn extent_shift(&mut self, inode: &mut Inode, from: FileBlock, delta: i64) -> Result<()> {
        unimplemented!()
    }
    /// The entry `key` of a directory.
    pub fn dir_get(&self, dir: &Inode, key: DirKey) -> Result<Option<Dirent>> {
        unimplemented!()
    }
    /// The entry `name` of a directory.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Dirent>> {
        unimplemented!()
    }
    /// Adds an entry. Error `Exists`: the key is taken; nothing changed.
    pub fn dir_insert(
        &mut self,
        dir: &mut Inode,
        key: DirKey,
        ino: Ino,
        kind: u8,
        name: &[u8],
    ) -> Result<()> {
        unimplemented!()
    }
    /// Removes an entry and gives it. Error `NoEntry`: there is none, or its name is
    /// another one; nothing changed.
    pub fn dir_remove(&mut self, dir: &mut Inode, key: DirKey, name: &[u8]) -> Result<Dirent> {
        unimplemented!()
    }
    /// Points the entry at another inode and gives the entry as it was. Error
    /// `NoEntry`: there is none.
    pub fn dir_replace(
        &mut self,
        dir: &mut Inode,
        key: DirKey,
        ino: Ino,
        kind: u8,
    ) -> Result<Dirent> {
        unimplemented!()
    }
    /// The extended attributes of an inode.
    pub fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        unimplemented!()
    }
    /// Replaces all extended attributes of an inode; none: frees their blocks.
    pub fn set_xattrs(&mut self, inode: &mut Inode, attrs: &Xattrs) -> Result<()> {
        unimplemented!()
    }
    /// Sets slot `n` of the log table.
    pub fn set_log_slot(&mut self, n: u32, slot: &LogSlot) -> Result<()> {
        unimplemented!()
    }
    /// Slot `n` of the log table as this transaction sees it. Error: no such slot.
    pub fn log_slot(&self, n: u32) -> Result<LogSlot> {
        unimplemented!()
    }
    /// Marks blocks used that [`Txn::extent_insert`] does not see; it marks its own.
    pub fn mark_used(&mut self, addr: BlockAddr, len: u64) -> Result<()> {
        unimplemented!()
    }
    /// Frees blocks that are in use and not mapped by any extent.
    pub fn free_blocks(&mut self, addr: BlockAddr, len: u64) -> Result<()> {
        unimplemented!()
    }
    /// Bytes of journal that the transaction needs so far, rounded up generously.
    pub fn journal_bytes(&self) -> u64 {
        unimplemented!()
    }
    /// Bytes of journal that it may fill.
    pub fn journal_room(&self) -> u64 {
        unimplemented!()
    }
    /// Makes it durable. After an error the state is the one before.
    pub fn commit(self) -> Result<Committed> {
        unimplemented!()
    }
}
