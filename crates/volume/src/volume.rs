//! The write side: one daemon owns it.

use crate::error::Result;
use crate::mkfs::MkfsOptions;
use crate::space::{Run, Space};
use crate::txn::Txn;
use crate::view::View;
use shale_device::nvm::Map;
use shale_format::log::LogSlot;
use shale_format::superblock::Superblock;
use shale_format::{BlockAddr, Ino, TxId};
use std::sync::Arc;

/// A volume open for writing. Shared by the daemon's threads by reference.
pub struct Volume {
    view: View,
}

impl Volume {
    /// Makes a volume on the whole of `map` and opens it. Everything there is lost.
    /// A power cut before the end leaves no volume.
    pub fn create(map: Arc<Map>, options: &MkfsOptions) -> Result<Volume> {
        unimplemented!()
    }
    /// Opens a volume: superblock, journal replay, bitmaps, root.
    pub fn open(map: Arc<Map>) -> Result<Volume> {
        unimplemented!()
    }
    /// A reader of what is committed.
    pub fn view(&self) -> View {
        self.view.clone()
    }
    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        self.view.superblock()
    }
    /// Number of the last committed transaction.
    pub fn txid(&self) -> TxId {
        unimplemented!()
    }
    /// Begins a transaction; waits while there is another. Must be dropped or
    /// committed by the thread that began it.
    pub fn begin(&self) -> Txn<'_> {
        unimplemented!()
    }
    /// The log table as last committed, [`shale_format::limits::LOG_SLOTS`] slots.
    /// Waits while there is a transaction.
    pub fn log_slots(&self) -> Vec<LogSlot> {
        unimplemented!()
    }
    /// Bytes of journal that one transaction may fill.
    pub fn journal_room(&self) -> u64 {
        unimplemented!()
    }
    /// Takes `blocks` free blocks, as few runs as there can be, near `hint`. They
    /// belong to the caller until a committed transaction links them or
    /// [`Self::give_back`]; after a restart they are free. Needs no transaction.
    /// All or nothing.
    pub fn allocate(&self, blocks: u64, hint: Option<BlockAddr>) -> Result<Vec<Run>> {
        unimplemented!()
    }
    /// Takes exactly these blocks, e.g. those that a log's steal records name,
    /// before anything else is allocated at recovery. Errors: one of them is not free.
    pub fn take(&self, run: Run) -> Result<()> {
        unimplemented!()
    }
    /// Returns blocks that [`Self::allocate`], [`Self::take`] or [`Self::grant`]
    /// gave and no committed transaction linked.
    pub fn give_back(&self, run: Run) {
        unimplemented!()
    }
    /// Takes about `blocks` blocks for a client: whole free segments first, then
    /// long runs. Leaves [`Space::reserved_fixed`] alone. May give fewer blocks,
    /// at least 1.
    pub fn grant(&self, blocks: u64) -> Result<Vec<Run>> {
        unimplemented!()
    }
    /// How the NVM tier is used.
    pub fn space(&self) -> Space {
        unimplemented!()
    }
    /// Makes blocks that transactions up to `txid` freed allocatable: no reader can
    /// hold them any more. Gives the number of blocks.
    pub fn release_up_to(&self, txid: TxId) -> u64 {
        unimplemented!()
    }
    /// Reserves up to 16 inode numbers that are free, in one block of the inode
    /// file, near those of `near` (Strata §3.1). In memory only: after a restart
    /// numbers that were not used are free.
    pub fn grant_inodes(&self, near: Ino) -> Vec<Ino> {
        unimplemented!()
    }
    /// Returns granted numbers that were not used.
    pub fn return_inodes(&self, inos: &[Ino]) {
        unimplemented!()
    }
    /// Writes to blocks that the caller has allocated, past the processor's caches.
    /// Durable after [`Self::fence`] by the same thread; `commit` fences for the
    /// thread that calls it only.
    pub fn write_at(&self, addr: BlockAddr, byte: u64, from: &[u8]) -> Result<()> {
        unimplemented!()
    }
    /// Makes this thread's [`Self::write_at`] durable.
    pub fn fence(&self) {
        unimplemented!()
    }
}
