//! The inode file: slots as a transaction changes them.
//!
//! A block of the file with 16 free slots is a hole again. Slots in a block that
//! exists change in place, through the journal; a block that the transaction maps
//! is written whole, before the commit. A block that it unmaps is not touched at
//! all: an old journal must not be able to write there later (see `journal`).
//!
//! A block may lie below NVM. What lies there never changes in place: a block of which a
//! slot changes comes back, whole, to a new block of NVM. Moving a block changes no slot.
//! One that moves down keeps its old block of NVM free of the journal, too: a batch that
//! changed its slots is older than the one that frees it, only the last batch is ever applied
//! again, and a freed block is given out after that batch is the last one or an older one.

use crate::error::{Result, VolumeError};
use crate::media::{Block, NvmRegion, is_in_nvm};
use crate::reading::block_reader::BlockReader;
use crate::transaction::journal::Batch;
use crate::trees::cow_trees::CowTrees;
use shale_allocation::BlockSlots;
use shale_format::extent::Extent;
use shale_format::inode::{Inode, slot_of};
use shale_format::limits::{BLOCK_BYTES, INODE_BYTES, INODES_PER_BLOCK};
use shale_format::superblock::RootBlock;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_sys::mutants;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use zerocopy::FromBytes;

/// Journal bytes that one slot may need.
const SLOT_JOURNAL_BYTES: u64 = INODE_BYTES as u64 + 16;
/// Journal bytes that mapping or unmapping one block of the inode file may need.
const BLOCK_JOURNAL_BYTES: u64 = 48;
/// The same of moving one: a word of a bitmap and its header, in both tiers, and a zone's entry.
const MOVE_JOURNAL_BYTES: u64 = 160;

/// Reads the slot of `ino` in the inode-file block at `addr`.
pub(crate) fn load_slot(media: &NvmRegion, addr: BlockAddr, ino: Ino) -> Result<Inode> {
    let mut bytes = [0; INODE_BYTES];
    media.load(addr, slot_of(ino).1 as u64, &mut bytes)?;
    if mutants::is_on("inode-checksum")
        && let Ok(found) = Inode::read_from_bytes(&bytes)
        && found.ino != 0
    {
        bytes = found.encode();
    }
    Ok(Inode::decode(&bytes, ino)?)
}

/// Reads the slot of `ino` in the inode-file block at `addr`, in whatever tier that is.
pub(crate) fn load_slot_anywhere(blocks: &BlockReader, addr: BlockAddr, ino: Ino) -> Result<Inode> {
    if is_in_nvm(addr) {
        return load_slot(&blocks.media, addr, ino);
    }
    let mut bytes = [0; INODE_BYTES];
    blocks.read_at(addr, slot_of(ino).1 as u64, &mut bytes)?;
    Ok(Inode::decode(&bytes, ino)?)
}

/// Reads a block of the inode file, in whatever tier it is.
fn load_block(blocks: &BlockReader, addr: BlockAddr, into: &mut Block) -> Result<()> {
    match is_in_nvm(addr) {
        true => blocks.media.load_block(addr, into),
        false => blocks.read_at(addr, 0, into),
    }
}

struct Slot {
    /// Whether the slot held an inode before the transaction.
    existed: bool,
    /// What it is to hold; a free slot: zeros.
    inode: Inode,
}

/// Slots that a transaction changes.
#[derive(Default)]
pub(crate) struct Slots {
    changed: BTreeMap<Ino, Slot>,
    /// Blocks of the inode file that were looked up.
    blocks: HashMap<FileBlock, Option<BlockAddr>>,
    mapped: u64,
    /// Blocks that move, and to where.
    moves: BTreeMap<FileBlock, Move>,
}

/// A block of the inode file that moves.
#[derive(Clone, Copy)]
struct Move {
    from: BlockAddr,
    to: BlockAddr,
}

/// Blocks of the inode file that are written whole.
pub(crate) type NewBlocks = Vec<(BlockAddr, Box<Block>)>;

impl Slots {
    /// The slot of `ino`, if the transaction changed it.
    pub(crate) fn get(&self, ino: Ino) -> Option<&Inode> {
        self.changed.get(&ino).map(|slot| &slot.inode)
    }

    /// Where the slot of `ino` is, if its block is mapped; remembered.
    fn block(&mut self, draft: &CowTrees, root: &RootBlock, ino: Ino) -> Result<Option<BlockAddr>> {
        let (fb, _) = slot_of(ino);
        if let Some(addr) = self.blocks.get(&fb) {
            return Ok(*addr);
        }
        let addr = find_block(draft, root, fb)?;
        self.blocks.insert(fb, addr);
        self.mapped += u64::from(addr.is_some());
        Ok(addr)
    }

    /// Changes the slot of `ino`.
    pub(crate) fn put(
        &mut self,
        blocks: &BlockReader,
        (draft, root): (&CowTrees, &RootBlock),
        ino: Ino,
        inode: Inode,
    ) -> Result<()> {
        if let Some(slot) = self.changed.get_mut(&ino) {
            slot.inode = inode;
            return Ok(());
        }
        let existed = match self.block(draft, root, ino)? {
            // A damaged slot held an inode once; writing it again repairs it.
            Some(addr) if is_in_nvm(addr) => {
                load_slot(&draft.media, addr, ino).map_or(true, |i| !i.is_free())
            }
            // All of the block has to be read, so that it can come back.
            Some(addr) => !load_slot_anywhere(blocks, addr, ino)?.is_free(),
            None => false,
        };
        self.changed.insert(ino, Slot { existed, inode });
        Ok(())
    }

    /// Has a block move to `to`, if it lies at `from` and, there in NVM, still holds `was`;
    /// whether it does.
    pub(crate) fn relocate(
        &mut self,
        (draft, root): (&CowTrees, &RootBlock),
        fb: FileBlock,
        (from, to): (BlockAddr, BlockAddr),
        was: &Block,
    ) -> Result<bool> {
        if find_block(draft, root, fb)? != Some(from) {
            return Ok(false);
        }
        if is_in_nvm(from) {
            let mut now = [0; BLOCK_BYTES];
            draft.media.load_block(from, &mut now)?;
            if now != *was {
                return Ok(false);
            }
        }
        self.moves.insert(fb, Move { from, to });
        Ok(true)
    }

    /// Blocks that come to lie below NVM.
    pub(crate) fn demoted(&self) -> impl Iterator<Item = FileBlock> {
        let down = |m: &Move| is_in_nvm(m.from) && !is_in_nvm(m.to);
        self.moves
            .iter()
            .filter(move |(_, m)| down(m))
            .map(|(&fb, _)| fb)
    }

    /// Upper bound of the journal bytes that the slots need.
    pub(crate) fn journal_bytes(&self) -> u64 {
        let in_place = match self.mapped {
            0 => 0,
            mapped => (self.changed.len() as u64).min(mapped * INODES_PER_BLOCK),
        };
        let blocks = self.blocks.values().flatten();
        let returning = blocks.filter(|addr| !is_in_nvm(**addr)).count() + self.moves.len();
        in_place * SLOT_JOURNAL_BYTES
            + self.blocks.len() as u64 * BLOCK_JOURNAL_BYTES
            + returning as u64 * MOVE_JOURNAL_BYTES
    }

    /// Maps and unmaps blocks of the inode file, counts inodes, puts slots that
    /// change in place into the batch and gives the blocks to be written whole.
    pub(crate) fn close(
        &self,
        blocks: &BlockReader,
        (draft, root): (&mut CowTrees, &mut RootBlock),
        txid: u64,
        batch: &mut Batch,
    ) -> Result<(NewBlocks, Vec<BlockSlots>)> {
        let mut done = Vec::new();
        let mut missing = Vec::new();
        for (fb, slots) in self.by_block() {
            let addr = self.blocks[&fb];
            if self.moves.contains_key(&fb) {
                return Err(VolumeError::BadRange {
                    from: fb.0,
                    to: fb.0 + 1,
                    why: "inodes change while their block moves",
                });
            }
            let after = slots_after(blocks, addr, fb, &slots)?;
            done.push(BlockSlots {
                fb,
                put: mask_of(&slots, |s| !s.inode.is_free()),
                freed: mask_of(&slots, |s| s.inode.is_free()),
                mapped_before: addr.is_some(),
                mapped_after: after,
            });
            for (_, slot) in &slots {
                let is = !slot.inode.is_free();
                root.inodes = (root.inodes + u64::from(is)).saturating_sub(slot.existed.into());
            }
            match (addr, after) {
                (Some(addr), true) if is_in_nvm(addr) => {
                    for (ino, slot) in &slots {
                        let at = addr.byte() + slot_of(*ino).1 as u64;
                        batch.push(at, &encoded(&slot.inode, txid));
                    }
                }
                (Some(addr), true) => {
                    let mut block = Box::new([0; BLOCK_BYTES]);
                    load_block(blocks, addr, &mut block)?;
                    unmap(draft, root, addr, fb..FileBlock(fb.0 + 1))?;
                    missing.push((fb, slots, block));
                }
                (Some(addr), false) => unmap(draft, root, addr, fb..FileBlock(fb.0 + 1))?,
                (None, true) => missing.push((fb, slots, Box::new([0; BLOCK_BYTES]))),
                (None, false) => (),
            }
        }
        self.close_moves(draft, root)?;
        let new = map_blocks(draft, root, missing, txid)?;
        Ok((new, done))
    }

    /// Maps the blocks that move where they move to, runs of them at once.
    fn close_moves(&self, draft: &mut CowTrees, root: &mut RootBlock) -> Result<()> {
        let mut runs: Vec<(Move, Extent)> = Vec::new();
        for (&fb, &one) in &self.moves {
            let next = |(m, e): &(Move, Extent)| {
                let to = BlockAddr::from_raw(e.addr).plus(e.len.into());
                e.end() == fb && to == one.to && m.from.tier() == one.from.tier()
            };
            match runs.last_mut().filter(|last| next(last)) {
                Some((_, e)) => e.len += 1,
                None => runs.push((one, one_block(fb, one.to))),
            }
        }
        for (one, e) in runs {
            unmap(draft, root, one.from, e.start()..e.end())?;
            let tier = one.to.tier().unwrap_or(TierId::Nvm);
            draft.extent_insert(&mut root.inode_file, tier, e)?;
        }
        Ok(())
    }

    fn by_block(&self) -> Vec<(FileBlock, Vec<(Ino, &Slot)>)> {
        let mut blocks: Vec<(FileBlock, Vec<(Ino, &Slot)>)> = Vec::new();
        for (&ino, slot) in &self.changed {
            let (fb, _) = slot_of(ino);
            match blocks.last_mut() {
                Some((last, slots)) if *last == fb => slots.push((ino, slot)),
                _ => blocks.push((fb, vec![(ino, slot)])),
            }
        }
        blocks
    }
}

/// Unmaps blocks of the inode file in the tier of `addr`.
fn unmap(
    draft: &mut CowTrees,
    root: &mut RootBlock,
    addr: BlockAddr,
    blocks: Range<FileBlock>,
) -> Result<()> {
    let tier = addr.tier().unwrap_or(TierId::Nvm);
    let range = blocks.start.0..blocks.end.0;
    draft.extent_remove(&mut root.inode_file, tier, range)
}

fn one_block(fb: FileBlock, addr: BlockAddr) -> Extent {
    Extent {
        file_block: fb.0,
        addr: addr.raw(),
        len: 1,
        flags: 0,
    }
}

/// The block of the inode file that `fb` is mapped to, in any tier.
pub(crate) fn find_block(
    draft: &CowTrees,
    root: &RootBlock,
    fb: FileBlock,
) -> Result<Option<BlockAddr>> {
    let file = &root.inode_file;
    let range = fb.0..fb.0 + 1;
    for tier in &file.root {
        let found = draft.extents_in(tier, Ino(file.ino), &range)?;
        if let Some(e) = found.first() {
            return Ok(Some(e.addr_of(fb)));
        }
    }
    Ok(None)
}

fn mask_of(slots: &[(Ino, &Slot)], f: impl Fn(&Slot) -> bool) -> u16 {
    let bit = |ino: &Ino| 1 << (ino.0 % INODES_PER_BLOCK);
    let chosen = slots.iter().filter(|(_, slot)| f(slot));
    chosen.fold(0, |mask, (ino, _)| mask | bit(ino))
}

/// Whether any slot of a block holds an inode after the transaction.
fn slots_after(
    blocks: &BlockReader,
    addr: Option<BlockAddr>,
    fb: FileBlock,
    slots: &[(Ino, &Slot)],
) -> Result<bool> {
    if slots.iter().any(|(_, slot)| !slot.inode.is_free()) {
        return Ok(true);
    }
    let Some(addr) = addr else { return Ok(false) };
    let mut block = [0; BLOCK_BYTES];
    load_block(blocks, addr, &mut block)?;
    let first = fb.0 * INODES_PER_BLOCK;
    for (n, bytes) in (0..INODES_PER_BLOCK).zip(block.chunks_exact(INODE_BYTES)) {
        let ino = Ino(first + n);
        let changed = slots.iter().any(|(other, _)| *other == ino);
        // A damaged slot counts as one in use: what it held is for repair to say.
        if !changed && Inode::decode(bytes, ino).map_or(true, |i| !i.is_free()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn encoded(inode: &Inode, txid: u64) -> [u8; INODE_BYTES] {
    if inode.is_free() {
        return [0; INODE_BYTES];
    }
    Inode { txid, ..*inode }.encode()
}

/// A block of the inode file that is written whole: the slots that change, and what else it holds.
type Whole<'s> = (FileBlock, Vec<(Ino, &'s Slot)>, Box<Block>);

/// Maps blocks that are holes or come back to NVM, and gives their contents.
fn map_blocks(
    draft: &mut CowTrees,
    root: &mut RootBlock,
    missing: Vec<Whole<'_>>,
    txid: u64,
) -> Result<NewBlocks> {
    let runs = draft.space.allocate(missing.len() as u64, None)?;
    let mut new = Vec::with_capacity(missing.len());
    let mut addrs = Vec::with_capacity(missing.len());
    for run in runs {
        draft.keep(run);
        addrs.extend((0..run.len).map(|n| run.addr.plus(n)));
    }
    // Blocks that follow one another in file and tier are mapped as one extent.
    let mut extents: Vec<Extent> = Vec::new();
    for ((fb, slots, mut block), addr) in missing.into_iter().zip(addrs) {
        for (ino, slot) in slots {
            let at = slot_of(ino).1;
            block[at..at + INODE_BYTES].copy_from_slice(&encoded(&slot.inode, txid));
        }
        new.push((addr, block));
        match extents.last_mut() {
            Some(e) if e.end() == fb && BlockAddr::from_raw(e.addr).plus(e.len.into()) == addr => {
                e.len += 1;
            }
            _ => extents.push(one_block(fb, addr)),
        }
    }
    let file = &mut root.inode_file;
    for e in extents {
        draft.extent_insert(file, TierId::Nvm, e)?;
        file.size = file.size.max(e.end().byte());
    }
    Ok(new)
}

/// Checks a number that is to be stored.
pub(crate) fn check_ino(ino: Ino) -> Result<()> {
    if ino.is_user() || ino == Ino::ORPHANS {
        return Ok(());
    }
    Err(VolumeError::BadIno(ino))
}
