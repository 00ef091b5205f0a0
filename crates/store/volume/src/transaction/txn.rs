//! Transactions: all of it or nothing of it survives a power cut.

mod leaves;

use crate::error::{Result, VolumeError};
use crate::lower_tiers::zones::Zones;
use crate::reading::view::{Mapping, check_log_slot};
use crate::transaction::journal::{self, Batch};
use crate::trees::cow_trees::CowTrees;
use crate::trees::inode::{self, Slots, load_slot_anywhere};
use crate::trees::node::Dirent;
use crate::trees::xattr;
use crate::volume::{Core, Volume};
use parking_lot::MutexGuard;
use shale_allocation::{Run, WordChange};
use shale_format::device_table::{DEVICE_TABLE_COPIES, DeviceTable};
use shale_format::extent::Extent;
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::LogSlot;
use shale_format::superblock::{LOG_TABLE_BLOCK, ROOT_BLOCK, RootBlock, Superblock};
use shale_format::xattr::Xattrs;
use shale_format::zone::ZoneEntry;
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, TierId, TxId};
use shale_sys::mutants;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Journal bytes of the root block and its entry.
const ROOT_JOURNAL_BYTES: u64 = RootBlock::BYTES as u64 + 16;
/// Journal bytes of a copy of the superblock and its entry.
const SUPER_JOURNAL_BYTES: u64 = Superblock::BYTES as u64 + 16;
/// Journal bytes of a log slot and its entry.
const LOG_JOURNAL_BYTES: u64 = LogSlot::BYTES as u64 + 16;
/// Journal bytes kept for what closing changes: the inode file's tree and its bits.
const CLOSE_JOURNAL_BYTES: u64 = 4096;

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
/// [`Txn::put_inode`]. After an error other than `Exists`, `NoEntry` and `BadIno`
/// the transaction cannot be committed.
pub struct Txn<'v> {
    volume: &'v Volume,
    core: MutexGuard<'v, Core>,
    txid: TxId,
    slots: Slots,
    logs: BTreeMap<u32, LogSlot>,
    /// Entries of zones that are erased, by lower tier and zone.
    erased: Erased,
    devices: Option<DeviceTable>,
    /// A copy of the superblock, and its block.
    superblock: Option<(u64, Superblock)>,
    failed: bool,
    growth: Option<u64>,
}

/// Entries of zones that a transaction erases, by lower tier and zone.
type Erased = BTreeMap<(usize, u64), ZoneEntry>;

/// Zones whose blocks a transaction changes, and what it changes.
type Below = Vec<(Arc<Zones>, Vec<WordChange>)>;

/// Adds to a batch what the transaction changes in the tables of lower tiers.
fn lower_batch(
    core: &Core,
    root: &mut RootBlock,
    txid: TxId,
    erased: &Erased,
    batch: &mut Batch,
) -> Below {
    let mut below = Vec::new();
    for (n, lower) in core.draft.lower.iter().enumerate() {
        let Some(lower) = lower else { continue };
        let changes = lower.bits.changes();
        if changes.is_empty() {
            continue;
        }
        if !mutants::is_on("lower-bitmap") {
            lower.bits.journal(txid.0, batch);
        }
        for c in &changes {
            root.used_blocks[n + 1] += u64::from(c.now.count_ones());
            root.used_blocks[n + 1] -= u64::from(c.base.count_ones());
        }
        for (zone, entry) in lower.zones.linked(txid, &changes) {
            if mutants::is_on("zone-pointer") {
                continue;
            }
            batch.push(zone, &entry.encode());
        }
        below.push((Arc::clone(&lower.zones), changes));
    }
    for (&(n, zone), entry) in erased {
        if let Some(lower) = &core.draft.lower[n] {
            batch.push(lower.zones.entry_byte(zone), &entry.encode());
        }
    }
    below
}

/// Checks that the volume grows by no more than it may.
fn check_growth(core: &Core, root: &RootBlock, most: Option<u64>) -> Result<()> {
    let grown = root.used_blocks[0].saturating_sub(core.root.used_blocks[0]);
    let wanted = grown.saturating_sub(core.draft.uncounted());
    match most {
        Some(reserved) if wanted > reserved => Err(VolumeError::Growth { wanted, reserved }),
        _ => Ok(()),
    }
}

/// Adds slots of the log table to a batch.
fn log_batch(logs: &BTreeMap<u32, LogSlot>, batch: &mut Batch) {
    let table = BlockAddr::nvm(LOG_TABLE_BLOCK).byte();
    for (&n, slot) in logs {
        let at = u64::from(n) * LogSlot::BYTES as u64;
        batch.push(table + at, &slot.encode());
    }
}

/// Adds both copies of the device table to a batch.
pub(crate) fn device_batch(sb: &Superblock, table: &DeviceTable, txid: TxId, batch: &mut Batch) {
    let table = DeviceTable {
        txid: txid.0,
        ..*table
    };
    for copy in 0..DEVICE_TABLE_COPIES {
        let at = sb.device_table_block() + copy;
        batch.push(BlockAddr::nvm(at).byte(), &table.encode(at));
    }
}

/// Takes over in memory what a commit did to zones.
fn apply_committed_lower(core: &Core, txid: TxId, below: Below, erased: &Erased) {
    for (zones, changes) in below {
        zones.apply_committed(txid, &changes);
    }
    for (&(n, zone), entry) in erased {
        if let Some(lower) = &core.draft.lower[n] {
            lower.zones.erased(zone, *entry);
        }
    }
}

/// Counts the blocks of NVM that are in use afterwards.
fn count_used(root: &mut RootBlock, changes: &[WordChange]) {
    for c in changes {
        root.used_blocks[0] += u64::from(c.now.count_ones());
        if !mutants::is_on("used-count") {
            root.used_blocks[0] -= u64::from(c.base.count_ones());
        }
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        self.core.draft.dropped();
    }
}

impl<'v> Txn<'v> {
    pub(crate) fn new(volume: &'v Volume) -> Self {
        let core = volume.core.lock();
        Txn {
            volume,
            txid: TxId(core.root.txid + 1),
            core,
            slots: Slots::default(),
            logs: BTreeMap::new(),
            erased: BTreeMap::new(),
            devices: None,
            superblock: None,
            failed: false,
            growth: None,
        }
    }
}

impl Txn<'_> {
    pub(crate) fn draft(&mut self) -> &mut CowTrees {
        &mut self.core.draft
    }

    /// Notes an error that leaves the transaction half done.
    pub(crate) fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        use VolumeError::{BadIno, Exists, NoEntry};
        let failed = !matches!(
            result,
            Ok(_) | Err(Exists { .. } | NoEntry { .. } | BadIno(_))
        );
        self.failed |= failed;
        result
    }

    /// Has the commit fail with `Growth` if more than `blocks` blocks more than now would be in
    /// use: data, attributes and leaves of trees. Not counted is what no operation can know
    /// beforehand and what stays a small part of the tier: inner nodes, and the trees of the
    /// inode file and of the orphans. `None`: any number.
    pub fn limit_growth(&mut self, blocks: Option<u64>) {
        self.growth = blocks;
    }

    /// Number that the transaction will have.
    pub fn txid(&self) -> TxId {
        self.txid
    }

    /// The inode as this transaction sees it; `None` if there is none.
    ///
    /// # Errors
    /// Damaged slot or tree.
    pub fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        if let Some(inode) = self.slots.get(ino) {
            return Ok((!inode.is_free()).then_some(*inode));
        }
        if ino == Ino::NONE || ino > Ino::MAX {
            return Ok(None);
        }
        let draft = &self.core.draft;
        let Some(addr) = inode::find_block(draft, &self.core.root, slot_of(ino).0)? else {
            return Ok(None);
        };
        let inode = load_slot_anywhere(self.volume.reader().blocks(), addr, ino)?;
        Ok((!inode.is_free()).then_some(inode))
    }

    /// Has block `fb` of the inode file move from `from` to `to`, where the caller has written a copy of
    /// it, if it still lies at `from`; and there in NVM, where it changes in place, still holds `was`.
    /// Gives whether it does; else nothing happens. None of its inodes may change in this transaction.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn move_inode_block(
        &mut self,
        fb: FileBlock,
        (from, to): (BlockAddr, BlockAddr),
        was: &[u8; BLOCK_BYTES],
    ) -> Result<bool> {
        let core = (&self.core.draft, &self.core.root);
        let result = self.slots.relocate(core, fb, (from, to), was);
        self.noted(result)
    }

    /// Where block `fb` of the inode file lies, as last committed; `None`: it is a hole.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn inode_block(&self, fb: FileBlock) -> Result<Option<BlockAddr>> {
        inode::find_block(&self.core.draft, &self.core.root, fb)
    }

    /// Stores an inode. Its slot is made when there is none. `txid` is set here.
    ///
    /// # Errors
    /// `BadIno`: its number cannot be stored, or its mode is 0.
    pub fn put_inode(&mut self, inode: &Inode) -> Result<()> {
        let ino = Ino(inode.ino);
        if inode.is_free() {
            return Err(VolumeError::BadIno(ino));
        }
        self.put(ino, *inode)
    }

    /// Frees a slot. Blocks, entries and attributes must be gone before: whatever
    /// the inode still names stays marked used.
    ///
    /// # Errors
    /// `BadIno`: there is no such inode.
    pub fn free_inode(&mut self, ino: Ino) -> Result<()> {
        if self.inode(ino)?.is_none() {
            return Err(VolumeError::BadIno(ino));
        }
        self.put(ino, Inode::free())
    }

    fn put(&mut self, ino: Ino, inode: Inode) -> Result<()> {
        inode::check_ino(ino)?;
        let core = (&self.core.draft, &self.core.root);
        let result = self
            .slots
            .put(self.volume.reader().blocks(), core, ino, inode);
        self.noted(result)
    }

    /// What lies at file block `fb`, as this transaction sees it.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        let mut most = u64::MAX - fb.0;
        for root in &inode.root {
            let at = fb.0..fb.0.saturating_add(1);
            let draft = &self.core.draft;
            if let Some(e) = draft.extents_in(root, Ino(inode.ino), &at)?.first() {
                return Ok(Mapping::of(e, fb, most));
            }
            most = most.min(draft.extent_after(root, Ino(inode.ino), fb.0)? - fb.0);
        }
        Ok(Mapping::Hole { len: most })
    }

    /// Maps `extent` in `tier` and marks its blocks used. What was mapped there in
    /// that tier is freed, unless it is the same block (so an unwritten extent can
    /// become a written one). Adjoining extents are merged. `blocks` is kept right.
    ///
    /// # Errors
    /// `BadRun`, `BadRange`: the extent or its blocks are not legal. `Damaged`: a
    /// block is in use already. `NoSpace` for nodes.
    pub fn extent_insert(&mut self, inode: &mut Inode, tier: TierId, extent: Extent) -> Result<()> {
        let result = self.core.draft.extent_insert(inode, tier, extent);
        self.noted(result)
    }

    /// As [`Txn::extent_insert`] for each of `all`, which ascend and do not overlap: those that lie in one leaf of
    /// the tree are brought there together.
    ///
    /// # Errors
    /// As [`Txn::extent_insert`].
    pub fn extent_insert_all(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        all: &[Extent],
    ) -> Result<()> {
        let ascending = |pair: &[Extent]| pair[0].end().0 <= pair[1].file_block;
        debug_assert!(all.windows(2).all(ascending));
        let result = self.core.draft.extent_insert_all(inode, tier, all);
        self.noted(result)
    }

    /// Unmaps a range in `tier` and frees its blocks. `FileBlock(0)..FileBlock(u64::MAX)`
    /// is much cheaper than a part.
    ///
    /// # Errors
    /// Damaged tree, `NoSpace` for nodes.
    pub fn extent_remove(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        range: Range<FileBlock>,
    ) -> Result<()> {
        let range = range.start.0..range.end.0;
        let result = self.core.draft.extent_remove(inode, tier, range);
        self.noted(result)
    }

    /// Moves everything from file block `from` on by `delta` blocks, in all tiers.
    ///
    /// # Errors
    /// `BadRange`: `delta` is negative and something is mapped in `from+delta .. from`.
    pub fn extent_shift(&mut self, inode: &mut Inode, from: FileBlock, delta: i64) -> Result<()> {
        for tier in TierId::ALL {
            let result = self.core.draft.extent_shift(inode, tier, from.0, delta);
            self.noted(result)?;
        }
        Ok(())
    }

    /// The entry `key` of a directory.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn dir_get(&self, dir: &Inode, key: DirKey) -> Result<Option<Dirent>> {
        self.core.draft.dir_get(dir, key)
    }

    /// The entry `name` of a directory.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Dirent>> {
        let group = self.volume.reader().key_group(name);
        let collisions = self.core.draft.dir_collisions(dir, group)?;
        Ok(collisions.into_iter().find(|e| e.name == name))
    }

    /// The entries of the group that `group` is in, in key order.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn collisions(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        self.core.draft.dir_collisions(dir, group)
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// `Exists`: the key is taken; nothing changed. `NoSpace` for nodes.
    pub fn dir_insert(
        &mut self,
        dir: &mut Inode,
        key: DirKey,
        ino: Ino,
        kind: u8,
        name: &[u8],
    ) -> Result<()> {
        let entry = Dirent {
            key,
            ino,
            kind,
            name: name.to_vec(),
        };
        let result = self.core.draft.dir_insert(dir, entry);
        self.noted(result)
    }

    /// Removes an entry and gives it.
    ///
    /// # Errors
    /// `NoEntry`: there is none, or its name is another one; nothing changed.
    pub fn dir_remove(&mut self, dir: &mut Inode, key: DirKey, name: &[u8]) -> Result<Dirent> {
        let result = self.core.draft.dir_remove(dir, key, name);
        self.noted(result)
    }

    /// Points the entry at another inode and gives the entry as it was.
    ///
    /// # Errors
    /// `NoEntry`: there is none.
    pub fn dir_replace(
        &mut self,
        dir: &mut Inode,
        key: DirKey,
        ino: Ino,
        kind: u8,
    ) -> Result<Dirent> {
        let result = self.core.draft.dir_replace(dir, key, ino, kind);
        self.noted(result)
    }

    /// Removes all entries of a directory that is about to be freed.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn dir_clear(&mut self, dir: &mut Inode) -> Result<()> {
        let result = self.core.draft.dir_clear(dir);
        self.noted(result)
    }

    /// The extended attributes of an inode.
    ///
    /// # Errors
    /// Damaged.
    pub fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        xattr::load(&self.core.draft.media, inode)
    }

    /// Replaces all extended attributes of an inode; none: frees their blocks.
    ///
    /// # Errors
    /// `NoSpace`: no run long enough. `Damaged`: they are longer than the limit.
    pub fn set_xattrs(&mut self, inode: &mut Inode, attrs: &Xattrs) -> Result<()> {
        let result = self.core.draft.set_xattrs(inode, attrs);
        self.noted(result)
    }

    /// Sets slot `n` of the log table.
    ///
    /// # Errors
    /// No such slot.
    pub fn set_log_slot(&mut self, n: u32, slot: &LogSlot) -> Result<()> {
        check_log_slot(n)?;
        self.logs.insert(n, *slot);
        Ok(())
    }

    /// Slot `n` of the log table as this transaction sees it.
    ///
    /// # Errors
    /// No such slot.
    pub fn log_slot(&self, n: u32) -> Result<LogSlot> {
        check_log_slot(n)?;
        let changed = self.logs.get(&n);
        Ok(*changed.unwrap_or(&self.core.logs[n as usize]))
    }

    /// Marks blocks used that [`Txn::extent_insert`] does not see; it marks its own.
    ///
    /// # Errors
    /// `BadRun`: not blocks for data, or freed and not released. `Damaged`: in use already.
    pub fn mark_used(&mut self, addr: BlockAddr, len: u64) -> Result<()> {
        let result = self.core.draft.mark(Run { addr, len });
        self.noted(result)
    }

    /// Frees blocks that are in use and not mapped by any extent.
    ///
    /// # Errors
    /// `BadRun`: not blocks for data. `Damaged`: not in use.
    pub fn free_blocks(&mut self, addr: BlockAddr, len: u64) -> Result<()> {
        let result = self.core.draft.free(Run { addr, len });
        self.noted(result)
    }

    /// Sets the entry of a zone that is erased with this transaction.
    pub(crate) fn erase_zone(&mut self, tier: TierId, zone: u64, entry: ZoneEntry) {
        if let Some(n) = (tier as usize).checked_sub(1) {
            self.erased.insert((n, zone), entry);
        }
    }

    /// Sets the device table. Its `txid` is set by the commit. Who has the volume open goes on with the devices as they were.
    pub fn set_devices(&mut self, table: DeviceTable) {
        self.devices = Some(table);
    }

    /// Sets one copy of the superblock.
    pub(crate) fn set_superblock(&mut self, block: u64, superblock: Superblock) {
        self.superblock = Some((block, superblock));
    }

    /// Bytes of journal that the transaction needs so far, rounded up generously.
    pub fn journal_bytes(&self) -> u64 {
        ROOT_JOURNAL_BYTES
            + CLOSE_JOURNAL_BYTES
            + self.superblock.map_or(0, |_| SUPER_JOURNAL_BYTES)
            + self.logs.len() as u64 * LOG_JOURNAL_BYTES
            + self.slots.journal_bytes()
            + self.core.draft.journal_bytes()
    }

    /// Bytes of journal that it may fill.
    pub fn journal_capacity(&self) -> u64 {
        self.volume.journal_capacity()
    }

    /// Makes it durable. After an error the state is the one before.
    ///
    /// # Errors
    /// `JournalFull`, `NoSpace` for the inode file, `Failed`: an operation failed before.
    pub fn commit(mut self) -> Result<Committed> {
        if self.failed {
            return Err(VolumeError::Failed(self.txid));
        }
        let (txid, volume) = (self.txid, self.volume);
        if volume.broken.load(Ordering::Acquire) {
            return Err(VolumeError::Failed(txid));
        }
        let core = &mut *self.core;
        let mut root = core.root;
        let mut batch = Batch::default();
        let (new_blocks, changed) = self.slots.close(
            volume.reader().blocks(),
            (&mut core.draft, &mut root),
            txid.0,
            &mut batch,
        )?;
        core.draft.close()?;
        if !mutants::is_on("bitmap-journal") {
            core.draft.bits.journal(txid.0, &mut batch);
        }
        let changes = core.draft.bits.changes();
        count_used(&mut root, &changes);
        core.draft.demoted.count(&mut root);
        check_growth(core, &root, self.growth)?;
        let below = lower_batch(core, &mut root, txid, &self.erased, &mut batch);
        root.txid = txid.0;
        batch.push(BlockAddr::nvm(ROOT_BLOCK).byte(), &root.encode());
        log_batch(&self.logs, &mut batch);
        let sb = volume.superblock();
        if let Some(table) = self.devices {
            device_batch(sb, &table, txid, &mut batch);
        }
        if let Some((block, copy)) = &self.superblock {
            batch.push(BlockAddr::nvm(*block).byte(), &copy.encode());
        }
        journal::check_capacity(sb, &batch)?;

        let late = mutants::is_on("nodes-after-commit");
        if late {
            journal::commit(&core.draft.media, sb, txid, &batch)?;
        }
        core.draft.write(txid.0)?;
        for (addr, block) in &new_blocks {
            core.draft.media.write(*addr, 0, &block[..])?;
        }
        if !late {
            let done = journal::commit(&core.draft.media, sb, txid, &batch);
            // Whether it counts is for the next start to find out.
            volume.broken.store(done.is_err(), Ordering::Release);
            done?;
        }

        for (&n, slot) in &self.logs {
            core.logs[n as usize] = LogSlot::decode(&slot.encode(), n)?;
        }
        core.root = root;
        core.draft.committed();
        volume.txid.store(txid.0, Ordering::Release);
        volume.inodes.store(root.inodes, Ordering::Release);
        volume.numbers.apply_committed(&changed);
        volume.numbers.demoted(self.slots.demoted());
        volume.note_below(&root);
        apply_committed_lower(core, txid, below, &self.erased);
        let freed = volume.space.apply_committed(txid, &changes);
        Ok(Committed { txid, freed })
    }
}
