//! The write side: one daemon owns it.

pub(crate) mod devices;
mod tiers;

use crate::bitmap::Bits;
use crate::error::{Result, VolumeError};
use crate::lower_tiers::lower::LowerDevices;
use crate::lower_tiers::txn_lower::{LoadedDevice, LowerTxn};
use crate::lower_tiers::zones::Zones;
use crate::mkfs::{self, MkfsOptions};
use crate::reading::view::View;
use crate::transaction::journal;
use crate::transaction::txn::Txn;
use crate::trees::cow_trees::CowTrees;
use parking_lot::Mutex;
use shale_allocation::{Allocator, InodeNumbers, Run, Space};
use shale_format::extent::root_kind;
use shale_format::inode::flag;
use shale_format::limits::{BLOCK_BYTES, LOG_SLOTS};
use shale_format::log::LogSlot;
use shale_format::superblock::{RootBlock, Superblock};
use shale_format::version::{
    Access, DIRECTORIES_BELOW, EXTENTS_BELOW, INODE_FLAGS, INODES_BELOW, POSIX_ACLS, SYNC_FLAGS,
    ZONES_START,
};
use shale_format::{BlockAddr, Durability, FileBlock, Ino, TierId, TxId};
use shale_nvm::Map;
use shale_sys::mutants;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the holder of the transaction lock may change.
pub(crate) struct Core {
    /// As last committed.
    pub(crate) root: RootBlock,
    /// As last committed.
    pub(crate) logs: Vec<LogSlot>,
    pub(crate) draft: CowTrees,
}

/// A volume open for writing. Shared by the daemon's threads by reference.
pub struct Volume {
    view: View,
    pub(crate) space: Arc<Allocator>,
    pub(crate) numbers: InodeNumbers,
    pub(crate) core: Mutex<Core>,
    pub(crate) txid: AtomicU64,
    pub(crate) inodes: AtomicU64,
    /// Zones of the lower tiers.
    pub(crate) zones: [Option<Arc<Zones>>; 2],
    /// Batch up to which no reader can hold what was freed.
    pub(crate) released: AtomicU64,
    /// Blocks that were freed after this batch keep their space until the next checkpoint; `u64::MAX`: none does.
    pub(crate) reusable: AtomicU64,
    /// Zones that lost their last live block up to this batch may be erased; `u64::MAX`: all that no reader can hold.
    pub(crate) erasable: AtomicU64,
    /// A commit did not reach the medium as a whole: what is there is what the next start finds.
    pub(crate) broken: AtomicBool,
    /// Blocks of the inode file lie below NVM, as last committed.
    inodes_below: AtomicBool,
    /// Leaves of directories that lie in ssd and hdd, as last committed.
    leaves_below: [AtomicU64; 2],
    extent_leaves_below: [AtomicU64; 2],
    /// Features of which both superblocks say that they are in use.
    in_use: AtomicU64,
}

impl Volume {
    /// Makes a volume on the whole of `map` and opens it. Everything there is lost.
    /// A power cut before the end leaves no volume.
    ///
    /// # Errors
    /// The mapping is too small, or an option is out of range.
    pub fn create(map: Arc<Map>, options: &MkfsOptions) -> Result<Volume> {
        Self::create_with(map, options, &LowerDevices::default())
    }

    /// As [`Volume::create`], with the devices of the lower tiers that the options name.
    ///
    /// # Errors
    /// As there.
    pub fn create_with(
        map: Arc<Map>,
        options: &MkfsOptions,
        devices: &LowerDevices,
    ) -> Result<Volume> {
        mkfs::mkfs(&map, options)?;
        Self::open_with(map, devices)
    }

    /// Whether [`Volume::create_with`] can make such a volume of `bytes` bytes of NVM. Writes nothing.
    ///
    /// # Errors
    /// NVM is too small for a volume, or for the tables of its tiers.
    pub fn check_new(bytes: u64, options: &MkfsOptions) -> Result<()> {
        mkfs::plan(bytes, options).map(drop)
    }

    /// Opens a volume: superblock, journal replay, bitmaps, root.
    ///
    /// # Errors
    /// No volume, a damaged one, or one that this program may not write.
    pub fn open(map: Arc<Map>) -> Result<Volume> {
        Self::open_with(map, &LowerDevices::default())
    }

    /// As [`Volume::open`], with the devices of the lower tiers, whose labels the caller
    /// has looked at. Without devices blocks there can be freed, and neither read nor written.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(map: Arc<Map>, devices: &LowerDevices) -> Result<Volume> {
        let (mut view, access) = View::open_head(map)?;
        if access != Access::ReadWrite {
            return Err(VolumeError::ReadOnly);
        }
        let sb = *view.superblock();
        let media = view.media().clone();
        journal::replay(&media, &sb)?;
        // The devices as they are after the batch that waited.
        view.use_devices(devices, true)?;
        let root = view.root()?;
        let bits = Bits::load(&media, sb.bitmap_block, sb.bitmap_blocks)?;
        let space = Arc::new(Allocator::new(sb.data(), bits.used()));
        if space.space().used != root.used_blocks[0] {
            return Err(VolumeError::Damaged {
                what: "count of used blocks in bitmap and root block",
                at: shale_format::superblock::ROOT_BLOCK,
                expected: space.space().used,
                found: root.used_blocks[0],
            });
        }
        let lower = lower_drafts(&view, &root)?;
        let zones = [0, 1].map(|n| lower[n].as_ref().map(|l| Arc::clone(&l.zones)));
        let logs = (0..LOG_SLOTS)
            .map(|n| view.log_slot(n))
            .collect::<Result<_>>()?;
        let volume = Volume {
            numbers: free_numbers(&view, &root)?,
            txid: AtomicU64::new(root.txid),
            inodes: AtomicU64::new(root.inodes),
            broken: AtomicBool::new(false),
            inodes_below: AtomicBool::new(has_inodes_below(&root)),
            leaves_below: root.leaves_below.map(AtomicU64::new),
            extent_leaves_below: root.extent_leaves_below.map(AtomicU64::new),
            in_use: AtomicU64::new(0),
            core: Mutex::new(Core {
                root,
                logs,
                draft: CowTrees::new(view.blocks().clone(), Arc::clone(&space), bits, lower),
            }),
            zones,
            released: AtomicU64::new(0),
            reusable: AtomicU64::new(u64::MAX),
            erasable: AtomicU64::new(u64::MAX),
            space,
            view,
        };
        volume.level_superblocks(&sb)?;
        Ok(volume)
    }

    /// Brings the copy of the superblock up to date that a power cut has left behind the other. A damaged one stays: `fsck` is to find it.
    fn level_superblocks(&self, newest: &Superblock) -> Result<()> {
        for block in newest.copies() {
            let mut there = [0; Superblock::BYTES];
            let media = self.view.media();
            media.load(BlockAddr::nvm(block), 0, &mut there)?;
            let copy = Superblock::decode(&there, block);
            if copy.is_ok_and(|(copy, _)| copy.generation < newest.generation) {
                return self.write_superblocks(newest);
            }
        }
        Ok(())
    }

    /// Writes the batch that may wait in the journal in place, as [`Volume::open`] does.
    ///
    /// # Errors
    /// As there.
    pub fn replay(map: Arc<Map>) -> Result<()> {
        let (view, access) = View::open_head(map)?;
        if access == Access::ReadWrite {
            journal::replay(view.media(), view.superblock())?;
        }
        Ok(())
    }

    /// A reader of what is committed.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    pub(crate) fn reader(&self) -> &View {
        &self.view
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        self.view.superblock()
    }

    /// Number of the last committed transaction.
    pub fn txid(&self) -> TxId {
        TxId(self.txid.load(Ordering::Acquire))
    }

    /// Whether inodes lie below NVM, as of the last committed transaction.
    pub fn has_inodes_below(&self) -> bool {
        self.inodes_below.load(Ordering::Acquire)
    }

    /// Leaves of directories that lie in a lower tier, as of the last committed transaction.
    pub fn leaves_below(&self, tier: TierId) -> u64 {
        let n = (tier as usize).checked_sub(1);
        n.map_or(0, |n| self.leaves_below[n].load(Ordering::Acquire))
    }

    /// The same of leaves of files' extents.
    pub fn extent_leaves_below(&self, tier: TierId) -> u64 {
        let n = (tier as usize).checked_sub(1);
        n.map_or(0, |n| self.extent_leaves_below[n].load(Ordering::Acquire))
    }

    pub(crate) fn note_below(&self, root: &RootBlock) {
        let below = has_inodes_below(root);
        self.inodes_below.store(below, Ordering::Release);
        let entries = self.leaves_below.iter().zip(root.leaves_below);
        let extents = self.extent_leaves_below.iter();
        for (count, n) in entries.chain(extents.zip(root.extent_leaves_below)) {
            count.store(n, Ordering::Release);
        }
    }

    /// Says in both superblocks that blocks of the inode file may lie below NVM, if they do not say
    /// so yet. Durable when it returns, and has to be before the first of them is linked there.
    ///
    /// One copy after the other changes, each through the journal: a power cut leaves no half of one,
    /// and an older program that meets either refuses the volume.
    ///
    /// # Errors
    /// A commit fails.
    pub fn let_inodes_demote(&self) -> Result<()> {
        match mutants::is_on("inodes-feature") {
            true => Ok(()),
            false => self.use_feature(INODES_BELOW),
        }
    }

    /// The same of leaves of directories.
    ///
    /// # Errors
    /// As there.
    pub fn let_directories_demote(&self) -> Result<()> {
        match mutants::is_on("directories-feature") {
            true => Ok(()),
            false => self.use_feature(DIRECTORIES_BELOW),
        }
    }

    /// The same of leaves of files' extents.
    ///
    /// # Errors
    /// As there.
    pub fn let_extents_demote(&self) -> Result<()> {
        match mutants::is_on("extents-feature") {
            true => Ok(()),
            false => self.use_feature(EXTENTS_BELOW),
        }
    }

    /// The same of zones of a device that do not begin at 1 MiB.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn let_zones_start(&self) -> Result<()> {
        match mutants::is_on("zones-start-feature") {
            true => Ok(()),
            false => self.use_feature(ZONES_START),
        }
    }

    /// Says likewise that inodes may have these flags that users change. Has to be durable before the first one has.
    ///
    /// # Errors
    /// As there.
    pub fn let_inodes_have_flags(&self, flags: u32) -> Result<()> {
        if flags & !flag::SYNCS != 0 {
            self.use_feature(INODE_FLAGS)?;
        }
        match flags & flag::SYNCS {
            0 => Ok(()),
            _ => self.use_feature(SYNC_FLAGS),
        }
    }

    /// Says likewise that inodes may have access control lists.
    ///
    /// # Errors
    /// As there.
    pub fn let_inodes_have_acls(&self) -> Result<()> {
        match mutants::is_on("acls-feature") {
            true => Ok(()),
            false => self.use_feature(POSIX_ACLS),
        }
    }

    /// Writes another durability policy and another size of logs into both superblocks, one after the other, each through the
    /// journal. Who has this volume open goes on as before: it is opened again for that.
    ///
    /// # Errors
    /// A commit fails.
    pub fn set_policy_and_log(&self, policy: Durability, log_bytes: u64) -> Result<()> {
        let mut newest = *View::open_head(Arc::clone(self.view.map()))?.0.superblock();
        self.write_superblocks(&newest)?;
        newest.durability = policy as u8;
        newest.log_bytes = log_bytes;
        newest.generation += 1;
        self.write_superblocks(&newest)
    }

    fn use_feature(&self, feature: u64) -> Result<()> {
        if self.in_use.load(Ordering::Acquire) & feature != 0 {
            return Ok(());
        }
        let mut newest = *View::open_head(Arc::clone(self.view.map()))?.0.superblock();
        // A copy that a power cut left behind is level since the volume was opened; one may have been damaged since.
        self.write_superblocks(&newest)?;
        if newest.incompatible & feature == 0 {
            newest.incompatible |= feature;
            newest.generation += 1;
            self.write_superblocks(&newest)?;
        }
        self.in_use.fetch_or(feature, Ordering::AcqRel);
        Ok(())
    }

    /// Writes the copies that are others, one after the other.
    fn write_superblocks(&self, newest: &Superblock) -> Result<()> {
        for block in newest.copies() {
            let mut there = [0; Superblock::BYTES];
            let media = self.view.media();
            media.load(BlockAddr::nvm(block), 0, &mut there)?;
            if there != newest.encode() {
                let mut txn = self.begin();
                txn.set_superblock(block, *newest);
                txn.commit()?;
            }
        }
        Ok(())
    }

    /// Whether a number in this block of the inode file is granted, and no inode of it is committed.
    pub fn has_granted_inodes(&self, fb: FileBlock) -> bool {
        self.numbers.is_granted(fb)
    }

    /// Inodes in use as of the last committed transaction.
    pub fn inodes(&self) -> u64 {
        self.inodes.load(Ordering::Acquire)
    }

    /// Begins a transaction; waits while there is another. Must be dropped or
    /// committed by the thread that began it.
    pub fn begin(&self) -> Txn<'_> {
        Txn::new(self)
    }

    /// The log table as last committed, [`shale_format::limits::LOG_SLOTS`] slots.
    /// Waits while there is a transaction.
    pub fn log_slots(&self) -> Vec<LogSlot> {
        self.core.lock().logs.clone()
    }

    /// Bytes of journal that one transaction may fill.
    pub fn journal_capacity(&self) -> u64 {
        journal::capacity(self.superblock())
    }

    /// Takes `blocks` free blocks, as few runs as there can be, near `hint`. They
    /// belong to the caller until a committed transaction links them or
    /// [`Self::give_back`]; after a restart they are free. Needs no transaction.
    /// All or nothing.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate(&self, blocks: u64, hint: Option<BlockAddr>) -> Result<Vec<Run>> {
        Ok(self.space.allocate(blocks, hint)?)
    }

    /// Takes exactly these blocks, e.g. those that a log's steal records name,
    /// before anything else is allocated at recovery.
    ///
    /// # Errors
    /// `BadRun`: one of them is not free; then none is taken.
    pub fn take(&self, run: Run) -> Result<()> {
        Ok(self.space.take(run)?)
    }

    /// Returns blocks that [`Self::allocate`], [`Self::take`] or [`Self::grant`]
    /// gave and no committed transaction linked.
    pub fn give_back(&self, run: Run) {
        self.space.give_back(run);
    }

    /// Takes about `blocks` blocks for a client: whole free segments first, then
    /// long runs. A run may span segments. Leaves [`Space::reserved_fixed`] alone. May give fewer blocks,
    /// at least 1.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn grant(&self, blocks: u64) -> Result<Vec<Run>> {
        Ok(self.space.grant(blocks)?)
    }

    /// Takes a block out of use for as long as this volume is open, after a memory error in it.
    /// `false`: it is in use by the volume, or was taken out already.
    pub fn retire(&self, block: u64) -> bool {
        let run = Run {
            addr: BlockAddr::nvm(block),
            len: 1,
        };
        self.space.take(run).is_ok()
    }

    /// How the NVM tier is used.
    pub fn space(&self) -> Space {
        self.space.space()
    }

    /// Makes blocks that transactions up to `txid` freed allocatable: no reader can
    /// hold them any more. Of a volume that is restored from checkpoints, those that the last one has free, too
    /// ([`Self::checkpointed`]). Gives the number of blocks.
    pub fn release_up_to(&self, txid: TxId) -> u64 {
        // Before the other is read; `checkpointed` does it the other way round, so one of both sees both.
        self.released.fetch_max(txid.0, Ordering::SeqCst);
        self.release()
    }

    fn release(&self) -> u64 {
        let reusable = match mutants::is_on("checkpoint-space") {
            true => u64::MAX,
            false => self.reusable.load(Ordering::SeqCst),
        };
        let released = self.released.load(Ordering::SeqCst);
        self.space.release_up_to(TxId(released.min(reusable)))
    }

    /// A checkpoint of batch `txid` is durable: what a power cut leaves is restored from it, or from a later one. Zones are erased
    /// that lost their last live block in this batch or before, and blocks that were freed by then are used again. What was freed
    /// later keeps its space: a restore puts what was logged since then into the volume as it was at the checkpoint, and has to
    /// find space for it though nothing moves below meanwhile.
    pub fn checkpointed(&self, txid: TxId) {
        self.erase_up_to(txid);
        self.reusable.store(txid.0, Ordering::SeqCst);
        self.release();
    }

    /// From now on only zones are erased that lost their last live block in batch `txid` or before: where the memory tier is
    /// restored from a checkpoint after a power cut, what that leads to must be there. `TxId(0)`: none for now.
    pub fn erase_up_to(&self, txid: TxId) {
        self.erasable.store(txid.0, Ordering::Release);
    }

    /// Calls `f` between two transactions with the number of the last batch and the log table as it left it: what it
    /// reads of the memory tier meanwhile is the volume of that batch. `None`: a commit did not reach the medium as a whole.
    pub fn between_batches<T>(&self, f: impl FnOnce(TxId, &[LogSlot]) -> T) -> Option<T> {
        let core = self.core.lock();
        let whole = !self.broken.load(Ordering::Acquire);
        whole.then(|| f(self.txid(), &core.logs))
    }

    /// Keeps blocks that a program is about to map as they are: one that is freed waits until
    /// nobody holds it any more. The caller keeps them from being released meanwhile, as a
    /// reader does. Blocks that are free already wait at once: those of a mapping that is older than
    /// this open. In memory only. Gives the number of the hold.
    ///
    /// # Errors
    /// `BadRun`: a run that is not one of blocks for data.
    pub fn hold(&self, runs: &[Run]) -> Result<u64> {
        Ok(self.space.hold(runs)?)
    }

    /// Whether blocks of files may be changed where they are at all. Not where the memory tier is restored from checkpoints: an
    /// image must not have what was not hardened.
    pub fn takes_any_stores(&self) -> bool {
        self.reusable.load(Ordering::Acquire) == u64::MAX
    }

    /// Whether a file's blocks in NVM may be changed where they are, by stores that a log can repeat: nobody has them mapped,
    /// and none of them was found to be unreadable. `false` outside NVM, and where none may ([`Self::takes_any_stores`]).
    pub fn takes_stores(&self, run: Run) -> bool {
        let bytes = run.len as usize * BLOCK_BYTES;
        run.addr.tier() == Some(TierId::Nvm)
            && self.takes_any_stores()
            && !self.space.is_held(run)
            && self
                .view
                .map()
                .lost(run.addr.byte() as usize, bytes)
                .is_none()
    }

    /// Ends a hold. Gives the number of blocks that are free now.
    pub fn drop_hold(&self, hold: u64) -> u64 {
        self.space.drop_hold(hold)
    }

    /// Blocks of all holds, those of several as often.
    pub fn held_blocks(&self) -> u64 {
        self.space.held_blocks()
    }

    /// Reserves up to 16 inode numbers that are free, in one block of the inode
    /// file, near those of `near` (Strata §3.1). In memory only: after a restart
    /// numbers that were not used are free. A granted number stays granted until a
    /// committed transaction puts or frees it, or [`Self::return_inodes`].
    pub fn grant_inodes(&self, near: Ino) -> Vec<Ino> {
        self.numbers.grant(near)
    }

    /// Keeps numbers that no inode has from being granted: those that a log names which waits
    /// for the next start. As long as this volume is open.
    pub fn hold_inodes(&self, inos: &[Ino]) {
        self.numbers.hold(inos);
    }

    /// Returns granted numbers that no transaction put: unused ones, and those of
    /// inodes that came and went within one digest.
    pub fn return_inodes(&self, inos: &[Ino]) {
        self.numbers.give_back(inos);
    }

    /// Whether a number is known to be free, and granted to nobody.
    pub fn is_free_inode(&self, ino: Ino) -> bool {
        self.numbers.is_free(ino)
    }

    /// Writes file data to blocks that the caller has allocated, past the
    /// processor's caches. Durable after [`Self::fence`] by the same thread;
    /// [`Txn::commit`] fences for the thread that calls it only.
    ///
    /// # Errors
    /// Outside the NVM tier.
    pub fn write_at(&self, addr: BlockAddr, byte: u64, from: &[u8]) -> Result<()> {
        self.view.media().write_data(addr, byte, from)
    }

    /// Makes this thread's [`Self::write_at`] durable.
    pub fn fence(&self) {
        self.view.map().on(shale_nvm::Path::Data).fence();
    }
}

/// Whether blocks of the inode file lie below NVM.
fn has_inodes_below(root: &RootBlock) -> bool {
    let below = &root.inode_file.root[1..];
    below.iter().any(|r| r.kind != root_kind::EMPTY)
}

/// Bitmaps and zones of the lower tiers, as committed.
fn lower_drafts(view: &View, root: &RootBlock) -> Result<[Option<LowerTxn>; 2]> {
    let mut drafts = [None, None];
    let Some(lower) = view.lower() else {
        return Ok(drafts);
    };
    let layout = lower.layout();
    for (n, tier) in layout.tiers.iter().enumerate() {
        let mut draft = LowerTxn {
            bits: Bits::empty(),
            zones: Arc::new(Zones::new(TierId::ALL[n + 1])),
        };
        for device in 0..tier.devices.len() {
            draft.add(LoadedDevice::load(view.media(), lower, tier, device)?);
        }
        let live = draft.zones.space().live;
        if live != root.used_blocks[n + 1] {
            return Err(VolumeError::Damaged {
                what: "count of used blocks of a lower tier in bitmap and root block",
                at: shale_format::superblock::ROOT_BLOCK,
                expected: live,
                found: root.used_blocks[n + 1],
            });
        }
        drafts[n] = Some(draft);
    }
    Ok(drafts)
}

fn free_numbers(view: &View, root: &RootBlock) -> Result<InodeNumbers> {
    let mut mapped = Vec::new();
    view.extents(&root.inode_file, FileBlock(0), &mut |e| {
        mapped.push(e.start().0..e.end().0);
        ControlFlow::Continue(())
    })?;
    Ok(InodeNumbers::new(mapped))
}
