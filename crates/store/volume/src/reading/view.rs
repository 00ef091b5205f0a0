//! The read side: any process, no lock, while the daemon commits.
//!
//! The root block and inode slots are changed in place, so a reader can meet one
//! half-way: their checksums tell, and the reader looks again. Trees never change
//! in place; what a reader holds stays as it is until the daemon reuses the
//! blocks, which it does only after every reader has passed the epoch
//! (DESIGN §6). Roots and leaves kept by the caller are valid only in the epoch
//! in which they were read.

mod leaves;
pub(crate) mod lookup;
mod remote;
pub(crate) mod walk;

use crate::error::{Result, VolumeError};
use crate::lower_tiers::lower::{Lower, LowerDevices, ZonePlace, device_table};
use crate::media::NvmRegion;
use crate::reading::block_reader::BlockReader;
use crate::trees::extent::{check_direct, clip, direct};
use crate::trees::node::{Dirent, DirentRef, Leaf};
use crate::trees::roots::entries_root;
use crate::trees::xattr;
use shale_format::checksum::name_hash;
use shale_format::device_table::DeviceTable;
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::log::LogSlot;
use shale_format::superblock::{LOG_TABLE_BLOCK, ROOT_BLOCK, RootBlock, SUPER_BLOCK, Superblock};
use shale_format::tree::TreeKind;
use shale_format::version::Access;
use shale_format::xattr::Xattrs;
use shale_format::{BlockAddr, DirKey, FileBlock, FormatError, Ino};
use shale_nvm::Map;
use shale_sys::mutants;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use zerocopy::FromBytes;

/// What lies at a file block. `len`: blocks from there on with the same answer, at
/// least 1; the answer may go on behind them.
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

impl Mapping {
    /// What extent `e` says about file block `fb`, which is inside, and `most` blocks at most.
    pub(crate) fn of(e: &Extent, fb: FileBlock, most: u64) -> Mapping {
        let len = (e.end().0 - fb.0).min(most);
        let addr = e.addr_of(fb);
        match e.is_unwritten() {
            true => Mapping::Unwritten { addr, len },
            false => Mapping::Data { addr, len },
        }
    }
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

/// The leaf of an NVM tree that was looked at last, kept by who looks up blocks of a file in order while nothing of
/// the file can change: a look-up copies and checks each node on the way.
#[derive(Default)]
pub struct KeptLeaf(Option<(Ino, u64, Leaf)>);

/// A reader of a volume. Clones are cheap.
#[derive(Clone)]
pub struct View {
    blocks: BlockReader,
    superblock: Arc<Superblock>,
}

impl View {
    /// Reads the superblocks; the newest valid one counts.
    ///
    /// # Errors
    /// Neither is valid, the format is too new, or the mapping is shorter than the tier.
    pub fn open(map: Arc<Map>) -> Result<(View, Access)> {
        Self::open_with(map, &LowerDevices::default())
    }

    /// As [`View::open`], with the devices of the lower tiers.
    ///
    /// # Errors
    /// As there; the devices are not those of the superblock in number or size.
    pub fn open_with(map: Arc<Map>, devices: &LowerDevices) -> Result<(View, Access)> {
        let (mut view, access) = Self::open_head(map)?;
        view.use_devices(devices, false)?;
        Ok((view, access))
    }

    /// As [`View::open`], without the lower tiers: their table may be half-way to what a batch
    /// in the journal says.
    ///
    /// # Errors
    /// As there.
    pub fn open_head(map: Arc<Map>) -> Result<(View, Access)> {
        let blocks = (map.bytes() / BLOCK_BYTES) as u64;
        let media = NvmRegion::new(Arc::clone(&map), blocks);
        let mut best: Option<(Superblock, Access)> = None;
        let mut error = None;
        for block in [SUPER_BLOCK, blocks.saturating_sub(1)] {
            let mut bytes = [0; Superblock::BYTES];
            media.load(BlockAddr::nvm(block), 0, &mut bytes)?;
            if mutants::is_on("superblock-checksum")
                && let Ok(found) = Superblock::read_from_bytes(&bytes)
            {
                bytes = found.encode();
            }
            match Superblock::decode(&bytes, block) {
                // Whichever is newer: the other's segment is not this volume's.
                Ok(found) if best.is_some_and(|b| b.0.uuid != found.0.uuid) => {
                    return Err(VolumeError::TwoVolumes {
                        first: best.map_or([0; 16], |b| b.0.uuid),
                        second: found.0.uuid,
                    });
                }
                Ok(found) if best.is_none_or(|b| b.0.generation < found.0.generation) => {
                    best = Some(found);
                }
                Ok(_) => (),
                // An older copy must not open what a newer program has changed.
                Err(refused @ FormatError::Version(_)) => return Err(refused.into()),
                Err(e) => error = error.or(Some(e)),
            }
        }
        let (superblock, access) = match (best, error) {
            (Some(best), _) => best,
            (None, Some(e)) => return Err(e.into()),
            (None, None) => return Err(short(1, map.bytes())),
        };
        if superblock.tier[0].blocks > blocks {
            return Err(short(superblock.tier[0].blocks, map.bytes()));
        }
        let media = NvmRegion::new(map, superblock.tier[0].blocks);
        let view = View {
            blocks: BlockReader {
                media,
                lower: None,
                given: None,
                patience: Arc::default(),
            },
            superblock: Arc::new(superblock),
        };
        Ok((view, access))
    }

    /// Where its blocks are read.
    pub(crate) fn blocks(&self) -> &BlockReader {
        &self.blocks
    }

    /// Reads the device table again, for these devices. `owner`: the volume is written here.
    pub(crate) fn use_devices(&mut self, devices: &LowerDevices, owner: bool) -> Result<()> {
        self.blocks.lower = Lower::new(self.media().clone(), &self.superblock, devices, owner)?;
        Ok(())
    }

    /// The devices of the lower tiers, as they are now.
    ///
    /// # Errors
    /// Both copies of their table are damaged.
    pub fn device_table(&self) -> Result<DeviceTable> {
        device_table(self.media(), &self.superblock)
    }

    pub(crate) fn media(&self) -> &NvmRegion {
        &self.blocks.media
    }

    pub(crate) fn lower(&self) -> Option<&Arc<Lower>> {
        self.blocks.lower.as_ref()
    }

    pub(crate) fn below(&self) -> Result<&Lower> {
        self.blocks.below()
    }

    /// How often the zone of a block below NVM was erased. With the address it names what the
    /// block holds, for ever.
    ///
    /// # Errors
    /// No such block, or the zone table is damaged.
    pub fn generation(&self, addr: BlockAddr) -> Result<u32> {
        self.blocks.generation(addr)
    }

    /// The zone of a block below NVM.
    ///
    /// # Errors
    /// No such block.
    pub fn zone(&self, addr: BlockAddr) -> Result<ZonePlace> {
        self.below()?.place(addr)
    }

    /// The superblock, as it was when the view was opened.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The mapping of the NVM tier.
    pub fn map(&self) -> &Arc<Map> {
        self.media().map()
    }

    /// Key group of `name` in any directory of the volume.
    pub fn key_group(&self, name: &[u8]) -> DirKey {
        DirKey::group(name_hash(self.superblock.hash_seed, name))
    }

    /// The root block as last committed.
    ///
    /// # Errors
    /// Damaged, or its writer was stopped in the middle.
    pub fn root(&self) -> Result<RootBlock> {
        self.until_whole(|| self.root_at_once())
    }

    /// Reads something that changes in place until its checksum fits.
    fn until_whole<T>(&self, read: impl FnMut() -> Result<T>) -> Result<T> {
        self.blocks.patience.until_whole(read)
    }

    /// The same view of a volume that nobody writes to: what does not fit its checksum is damaged, without waiting.
    pub fn of_quiet_volume(self) -> Self {
        self.blocks.patience.end();
        self
    }

    /// The root block, which may be met half-way.
    pub(crate) fn root_at_once(&self) -> Result<RootBlock> {
        let mut bytes = [0; RootBlock::BYTES];
        self.media()
            .load(BlockAddr::nvm(ROOT_BLOCK), 0, &mut bytes)?;
        if mutants::is_on("root-checksum")
            && let Ok(found) = RootBlock::read_from_bytes(&bytes)
        {
            bytes = found.encode();
        }
        Ok(RootBlock::decode(&bytes)?)
    }

    /// Slot `n` of the log table as last committed.
    ///
    /// # Errors
    /// No such slot, or it is damaged.
    pub fn log_slot(&self, n: u32) -> Result<LogSlot> {
        self.until_whole(|| {
            let mut bytes = [0; LogSlot::BYTES];
            let at = u64::from(n) * LogSlot::BYTES as u64;
            check_log_slot(n)?;
            self.media()
                .load(BlockAddr::nvm(LOG_TABLE_BLOCK), at, &mut bytes)?;
            if mutants::is_on("slot-checksum")
                && let Ok(found) = LogSlot::read_from_bytes(&bytes)
                && bytes != [0; LogSlot::BYTES]
            {
                bytes = found.encode();
            }
            Ok(LogSlot::decode(&bytes, n)?)
        })
    }

    /// What lies at file block `fb`; the fastest tier that has it wins.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn map_block(&self, inode: &Inode, fb: FileBlock) -> Result<Mapping> {
        let mut most = u64::MAX - fb.0;
        for root in &inode.root {
            let (before, next) = self.around(root, Ino(inode.ino), fb.0)?;
            if let Some(e) = before.filter(|e| e.end() > fb) {
                return Ok(Mapping::of(&e, fb, most));
            }
            most = most.min(next - fb.0);
        }
        Ok(Mapping::Hole { len: most })
    }

    /// As [`View::map_block`]; the leaf is kept for the next call, which is for the same file as it is now or for
    /// another one.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn map_block_near(
        &self,
        inode: &Inode,
        fb: FileBlock,
        kept: &mut KeptLeaf,
    ) -> Result<Mapping> {
        let (root, owner) = (&inode.root[0], Ino(inode.ino));
        if root.kind != root_kind::TREE {
            return self.map_block(inode, fb);
        }
        let known = kept.0.as_ref().is_some_and(|(ino, addr, leaf)| {
            (*ino, *addr) == (owner, root.addr) && leaf.keys.contains(&fb.0)
        });
        if !known {
            let leaf = Leaf::find(&self.blocks, root, owner, TreeKind::Extents, fb.0)?;
            kept.0 = Some((owner, root.addr, leaf));
        }
        let Some((_, _, leaf)) = &kept.0 else {
            return self.map_block(inode, fb);
        };
        let (before, after) = leaf.extents_around(fb.0)?;
        if let Some(e) = before.filter(|e| e.end() > fb) {
            return Ok(Mapping::of(&e, fb, u64::MAX - fb.0));
        }
        let mut most = after.map_or(leaf.keys.end, |e| e.file_block) - fb.0;
        for root in &inode.root[1..] {
            let (before, next) = self.around(root, owner, fb.0)?;
            if let Some(e) = before.filter(|e| e.end() > fb) {
                return Ok(Mapping::of(&e, fb, most));
            }
            most = most.min(next - fb.0);
        }
        Ok(Mapping::Hole { len: most })
    }

    /// The extent that begins at or before `fb`, and where the next one may begin.
    fn around(&self, root: &ExtentRoot, owner: Ino, fb: u64) -> Result<(Option<Extent>, u64)> {
        match root.kind {
            root_kind::EMPTY => Ok((None, u64::MAX)),
            root_kind::DIRECT => {
                let e = direct(root);
                check_direct(&e, owner)?;
                match e.file_block <= fb {
                    true => Ok((Some(e), u64::MAX)),
                    false => Ok((None, e.file_block)),
                }
            }
            _ => {
                let leaf = Leaf::find(&self.blocks, root, owner, TreeKind::Extents, fb)?;
                let (before, after) = leaf.extents_around(fb)?;
                Ok((before, after.map_or(leaf.keys.end, |e| e.file_block)))
            }
        }
    }

    /// Calls `f` with every extent from `from` on, ascending; of one that begins
    /// before `from`, the rest. Where a block is in several tiers only the fastest is given.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn extents(
        &self,
        inode: &Inode,
        from: FileBlock,
        f: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.walk(inode, from, &|_| Ok(None), f)
    }

    /// The same of what can be read: what a leaf below NVM tells of that cannot be is passed over.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn extents_there(
        &self,
        inode: &Inode,
        from: FileBlock,
        f: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.walk(inode, from, &|fb| self.leaf_end(inode, fb).map(Some), f)
    }

    /// Calls `f` with extents from `from` on. Behind what cannot be read below NVM it goes on where `skip` says;
    /// `None`: it does not.
    fn walk(
        &self,
        inode: &Inode,
        from: FileBlock,
        skip: &dyn Fn(FileBlock) -> Result<Option<FileBlock>>,
        f: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut fb = from;
        while fb.0 < u64::MAX {
            let cover = match self.leaf_of(inode, fb) {
                Err(e @ (VolumeError::BadBlock { .. } | VolumeError::Lower(_))) => {
                    fb = skip(fb)?.ok_or(e)?;
                    continue;
                }
                cover => cover?,
            };
            let range = fb.0..cover.range.end.0;
            for e in cover.extents.iter().filter_map(|e| clip(e, &range)) {
                if f(e).is_break() {
                    return Ok(());
                }
            }
            fb = cover.range.end;
        }
        Ok(())
    }

    /// Everything known around file block `fb`, for the caller to keep.
    ///
    /// # Errors
    /// Damaged tree.
    pub fn leaf_of(&self, inode: &Inode, fb: FileBlock) -> Result<LeafCover> {
        let mut cover = LeafCover {
            extents: Vec::new(),
            range: FileBlock(0)..FileBlock(u64::MAX),
        };
        let mut tiers = 0;
        for root in &inode.root {
            let (slower, keys) = match root.kind {
                root_kind::EMPTY => continue,
                root_kind::DIRECT => {
                    let e = direct(root);
                    check_direct(&e, Ino(inode.ino))?;
                    (vec![e], 0..u64::MAX)
                }
                _ => {
                    let owner = Ino(inode.ino);
                    let leaf = Leaf::find(&self.blocks, root, owner, TreeKind::Extents, fb.0)?;
                    (leaf.items()?, leaf.keys)
                }
            };
            cover.range.start = cover.range.start.max(FileBlock(keys.start));
            cover.range.end = cover.range.end.min(FileBlock(keys.end));
            tiers += 1;
            cover.extents = match tiers {
                1 => slower,
                _ => underlay(&cover.extents, &slower),
            };
        }
        if tiers > 1 {
            // Outside the range one of the tiers may have more than is known here.
            let known = cover.range.start.0..cover.range.end.0;
            let inside = cover.extents.iter().filter_map(|e| clip(e, &known));
            cover.extents = inside.collect();
        }
        Ok(cover)
    }

    fn entry_leaf(&self, dir: &Inode, key: u64) -> Result<Option<Leaf>> {
        let root = entries_root(dir);
        if root.kind == root_kind::EMPTY {
            return Ok(None);
        }
        Leaf::find(&self.blocks, root, Ino(dir.ino), TreeKind::Entries, key).map(Some)
    }

    /// The entry `name` of directory `dir`.
    ///
    /// # Errors
    /// Damaged tree, or `dir` is no directory.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Dirent>> {
        let group = self.key_group(name);
        let mut key = group.0;
        while key < group.0 + DirKey::COLLISIONS {
            let Some(leaf) = self.entry_leaf(dir, key)? else {
                break;
            };
            if let Some(found) = leaf.entry_named(group, name)? {
                return Ok(Some(found));
            }
            key = leaf.keys.end;
        }
        Ok(None)
    }

    /// Calls `f` with every entry whose key is `from` or above, in key order.
    ///
    /// # Errors
    /// Damaged tree, or `dir` is no directory.
    pub fn entries(
        &self,
        dir: &Inode,
        from: DirKey,
        f: &mut dyn FnMut(Dirent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.each_entry(dir, from, &mut |e| f(e.to_owned()))
    }

    /// As [`View::entries`], of entries in their blocks: nothing is allocated.
    ///
    /// # Errors
    /// As [`View::entries`].
    pub fn each_entry(
        &self,
        dir: &Inode,
        from: DirKey,
        f: &mut dyn FnMut(DirentRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut key = from.0;
        while key < u64::MAX {
            let Some(leaf) = self.entry_leaf(dir, key)? else {
                break;
            };
            for e in leaf.entries_from(key) {
                if f(e?).is_break() {
                    return Ok(());
                }
            }
            key = leaf.keys.end;
        }
        Ok(())
    }

    /// The entries of the group that `group` is in, in key order. Fewer than
    /// [`DirKey::COLLISIONS`] means that a twin is free.
    ///
    /// # Errors
    /// As [`View::entries`].
    pub fn collisions(&self, dir: &Inode, group: DirKey) -> Result<Vec<Dirent>> {
        let first = group.group_start();
        let mut found = Vec::new();
        self.each_entry(dir, first, &mut |e| {
            if e.key.group_start() != first {
                return ControlFlow::Break(());
            }
            found.push(e.to_owned());
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// The extended attributes of an inode.
    ///
    /// # Errors
    /// Damaged.
    pub fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        xattr::load(self.media(), inode)
    }

    /// Reads file data: `into.len()` bytes from the start of block `addr` on; they
    /// may go on into the following blocks.
    ///
    /// # Errors
    /// Outside the NVM tier.
    pub fn read_blocks(&self, addr: BlockAddr, into: &mut [u8]) -> Result<()> {
        self.read_at(addr, 0, into)
    }

    /// Reads file data from byte `byte` behind the start of block `addr`.
    ///
    /// Blocks of lower tiers are checked; this process must have their devices.
    ///
    /// # Errors
    /// Outside the tier, or a checksum that does not fit.
    pub fn read_at(&self, addr: BlockAddr, byte: u64, into: &mut [u8]) -> Result<()> {
        self.blocks.read_at(addr, byte, into)
    }
}

fn short(blocks: u64, found: usize) -> VolumeError {
    VolumeError::TierSize {
        expected: blocks.saturating_mul(BLOCK_BYTES as u64),
        found: found as u64,
    }
}

/// Checks the number of a log slot.
pub(crate) fn check_log_slot(n: u32) -> Result<()> {
    if n < shale_format::limits::LOG_SLOTS {
        return Ok(());
    }
    Err(VolumeError::Format(FormatError::Field {
        what: "log slot",
        at: LOG_TABLE_BLOCK,
        field: "number",
        found: n.into(),
    }))
}

/// `fast`, and what of `slow` it leaves open, ascending.
fn underlay(fast: &[Extent], slow: &[Extent]) -> Vec<Extent> {
    let mut all = fast.to_vec();
    for e in slow {
        let mut from = e.file_block;
        for over in fast
            .iter()
            .filter(|f| f.end() > e.start() && f.start() < e.end())
        {
            all.extend(clip(e, &(from..over.file_block)));
            from = over.end().0;
        }
        all.extend(clip(e, &(from..u64::MAX)));
    }
    all.sort_unstable_by_key(|e| e.file_block);
    all
}
