//! Where the bytes of one file go: which stolen blocks are linked, which blocks are
//! rewritten and from what, what is unmapped.
//!
//! Rules:
//! * A block that one stolen block covers wholly is linked: its bytes were written once.
//! * A block that the volume has in NVM stays, and only what is new of it is stored: the records of the log, which
//!   stay until the commit, repeat that after a crash (HiNFS §3.3 writes back lines as well). Not where somebody
//!   reads the block as it was ([`Image::takes_stores`]), nor behind the end that the file has, nor for long runs
//!   ([`PLACED_BLOCKS_MIN`]).
//! * A block with any other new bytes is written whole to a new block: payloads,
//!   what is kept of the old block, zeros (Strata §3.6). Blocks that follow one another
//!   in the file are one run, so a thousand small appends are one allocation.
//! * **Cost rule**: a stolen run of fewer than [`LINK_BLOCKS_MIN`] blocks that lies
//!   between two blocks which are written anyway is copied with them. That writes at
//!   most 12 KiB twice and keeps one extent where there would be three.
//! * A block that becomes all zeros is unmapped, unless it has to be allocated; then it
//!   becomes an unwritten one, in its place: a full volume has no others. The part of a block that is punched or cut off is
//!   zeroed only where the volume has data there.

use super::content::{BLOCK, Content, Shift, Source};
use super::image::Image;
use super::ranges::{Advance, Ranges};
use shale_format::inode::Inode;
use shale_format::{BlockAddr, FileBlock, TierId};
use shale_volume::{Mapping, Result, Run};
use std::ops::Range;

/// Shortest stolen run that is linked between two runs that are copied.
pub const LINK_BLOCKS_MIN: u64 = 4;

/// Shortest run of new bytes that is written to new blocks though it has others: what is so long is one extent there, and
/// may go below NVM.
pub const PLACED_BLOCKS_MIN: u64 = 16;

/// Where the bytes of a run that is written come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// A new source.
    New(Source),
    /// The file as it is in the volume, from this byte on.
    Old(u64),
}

impl From {
    /// The same source from `bytes` further on.
    pub(crate) fn advance(self, bytes: u64) -> From {
        match self {
            From::New(source) => From::New(source.advance(bytes)),
            From::Old(offset) => From::Old(offset + bytes),
        }
    }
}

/// A part of a run that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Bytes.
    pub bytes: u64,
    /// Their source.
    pub from: From,
}

/// Blocks that follow one another in the file and are written to new blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// First file block.
    pub at: u64,
    /// Blocks.
    pub blocks: u64,
    /// What to write, ascending, together all bytes of the run.
    pub fills: Vec<Fill>,
    /// Block behind the one that the volume has before the run: there it would adjoin.
    pub hint: Option<BlockAddr>,
}

/// Blocks that follow one another, in the file and in NVM, stay there and get new bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRun {
    /// First file block.
    pub at: u64,
    /// Its address.
    pub addr: BlockAddr,
    /// Blocks.
    pub blocks: u64,
    /// What they hold afterwards, ascending, together all bytes of the run. What is [`From::Old`] is there already.
    pub fills: Vec<Fill>,
}

impl StoreRun {
    /// Bytes that are stored.
    pub(crate) fn bytes(&self) -> u64 {
        let new = self.fills.iter().filter(|f| matches!(f.from, From::New(_)));
        new.map(|f| f.bytes).sum()
    }
}

/// Stolen blocks that become part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// First file block.
    pub at: u64,
    /// Its address.
    pub addr: BlockAddr,
    /// Blocks.
    pub blocks: u64,
}

/// What happens to the blocks of one file. Unmapping comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePlan {
    /// Everything from this file block on is unmapped.
    pub cut: Option<u64>,
    /// Ranges that are unmapped.
    pub unmap: Vec<Range<u64>>,
    /// Stolen blocks.
    pub links: Vec<Link>,
    /// Blocks to be written.
    pub copies: Vec<CopyRun>,
    /// Blocks that are changed where they are.
    pub stores: Vec<StoreRun>,
    /// Blocks to be allocated that read as zeros.
    pub unwritten: Vec<Range<u64>>,
    /// Blocks that the file keeps and that read as zeros from now on.
    pub zeroed: Vec<Link>,
    /// A range taken out or put in; then there is nothing else.
    pub shift: Option<Shift>,
    /// Records of which something is left.
    pub by: Vec<u32>,
    /// Bytes of payloads and stolen blocks that reach the volume.
    pub payload_bytes: u64,
}

impl FilePlan {
    /// New blocks that it needs.
    pub fn new_blocks(&self) -> u64 {
        let copied: u64 = self.copies.iter().map(|c| c.blocks).sum();
        let unwritten: u64 = self.unwritten.iter().map(|r| r.end - r.start).sum();
        copied + unwritten
    }

    /// Whether no block changes.
    pub fn is_empty(&self) -> bool {
        self.cut.is_none()
            && self.unmap.is_empty()
            && self.links.is_empty()
            && self.copies.is_empty()
            && self.stores.is_empty()
            && self.unwritten.is_empty()
            && self.zeroed.is_empty()
            && self.shift.is_none()
    }
}

/// What becomes of a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Written to new blocks.
    Copy,
    /// Changed where they are.
    Store(BlockAddr),
    /// Linked.
    Link(BlockAddr),
    /// All zeros.
    Zero,
    /// One block, zeros in a part of it and nothing else new.
    Edge,
}

#[derive(Clone, Debug)]
struct Atom {
    blocks: Range<u64>,
    part: Part,
}

/// The file as it is in the volume, as far as it still counts.
struct Old<'a> {
    image: &'a dyn Image,
    inode: Option<&'a Inode>,
    /// First block that was cut off.
    block_end: u64,
    /// First byte that was cut off or never there.
    byte_end: u64,
}

impl Old<'_> {
    /// What lies at block `at`, and for how many blocks of `at..end` that holds.
    fn map(&self, at: u64, end: u64) -> Result<(Mapping, u64)> {
        let hole = |len| Mapping::Hole { len };
        let Some(inode) = self.inode.filter(|_| at < self.block_end) else {
            return Ok((hole(end - at), end - at));
        };
        let found = self.image.map_block(inode, FileBlock(at))?;
        let (Mapping::Data { len, .. } | Mapping::Unwritten { len, .. } | Mapping::Hole { len }) =
            found;
        let known = len.max(1).min(end - at);
        Ok((found, known.min(self.block_end - at)))
    }

    /// First block of `at..end` that has new bytes behind the end of the file as it is in the volume, or was cut there: what
    /// lies behind the end is zeros in the volume, always.
    fn stored_end(&self, content: &Content, at: u64, end: u64) -> u64 {
        let whole = self.byte_end / BLOCK;
        let tail = whole * BLOCK..self.byte_end;
        let is_cut = self.inode.is_some_and(|inode| self.byte_end < inode.size);
        let mut behind = content.pieces.within(self.byte_end..(whole + 1) * BLOCK);
        match tail.is_empty() || is_cut || behind.next().is_some() {
            true => whole.clamp(at, end),
            false => (whole + 1).clamp(at, end),
        }
    }
}

/// Cuts the pieces into runs of blocks.
fn atoms(content: &Content) -> Vec<Atom> {
    let mut atoms = Vec::new();
    let mut mixed: Option<(u64, bool)> = None;
    let mixed_atom = |(block, data): (u64, bool)| Atom {
        blocks: block..block + 1,
        part: if data { Part::Copy } else { Part::Edge },
    };
    for (range, piece) in content.pieces.iter() {
        let data = piece.source != Source::Zero;
        let full = range.start.div_ceil(BLOCK)..range.end / BLOCK;
        let head = (!range.start.is_multiple_of(BLOCK)).then_some(range.start / BLOCK);
        let tail = (!range.end.is_multiple_of(BLOCK) && full.end >= full.start).then_some(full.end);
        let touch = |mixed: &mut Option<(u64, bool)>, block: u64| match mixed {
            Some((b, d)) if *b == block => {
                *d |= data;
                None
            }
            _ => mixed.replace((block, data)).map(mixed_atom),
        };
        if let Some(block) = head {
            atoms.extend(touch(&mut mixed, block));
        }
        if full.start < full.end {
            atoms.extend(mixed.take().map(mixed_atom));
            let part = match piece.source.advance(full.start * BLOCK - range.start) {
                Source::Block { addr, byte: 0 } => Part::Link(addr),
                Source::Zero => Part::Zero,
                _ => Part::Copy,
            };
            atoms.push(Atom { blocks: full, part });
        }
        if let Some(block) = tail {
            atoms.extend(touch(&mut mixed, block));
        }
    }
    atoms.extend(mixed.map(mixed_atom));
    atoms
}

/// Joins runs that adjoin and become the same.
fn join(atoms: Vec<Atom>) -> Vec<Atom> {
    let mut joined: Vec<Atom> = Vec::with_capacity(atoms.len());
    for atom in atoms {
        if let Some(last) = joined.last_mut()
            && last.blocks.end == atom.blocks.start
        {
            let same = match (last.part, atom.part) {
                (Part::Link(a), Part::Link(b)) | (Part::Store(a), Part::Store(b)) => {
                    a.plus(last.blocks.end - last.blocks.start) == b
                }
                (a, b) => a == b && a != Part::Edge,
            };
            if same {
                last.blocks.end = atom.blocks.end;
                continue;
            }
        }
        joined.push(atom);
    }
    joined
}

/// Finds out which of the blocks that are written can be changed where they are.
fn find_stores(old: &Old<'_>, content: &Content, atoms: Vec<Atom>) -> Result<Vec<Atom>> {
    let mut found = Vec::with_capacity(atoms.len());
    for atom in atoms {
        if atom.part != Part::Copy || is_large_and_new(content, &atom.blocks) {
            found.push(atom);
            continue;
        }
        let Range { start: mut at, end } = atom.blocks;
        while at < end {
            let stored_end = old.stored_end(content, at, end);
            let (mapping, len) = match stored_end > at {
                true => old.map(at, stored_end)?,
                false => (Mapping::Hole { len: end - at }, end - at),
            };
            let stays = |addr| old.image.takes_stores(Run { addr, len });
            let part = match mapping {
                Mapping::Data { addr, .. } if stays(addr) => Part::Store(addr),
                _ => Part::Copy,
            };
            let blocks = at..at + len;
            found.push(Atom { blocks, part });
            at += len;
        }
    }
    Ok(found)
}

/// Whether all bytes of a run are new, and it is long enough to be placed by itself.
fn is_large_and_new(content: &Content, blocks: &Range<u64>) -> bool {
    let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
    blocks.end - blocks.start >= PLACED_BLOCKS_MIN && content.pieces.gaps(bytes).is_empty()
}

/// Applies the cost rule.
fn copy_islands(atoms: &mut [Atom]) {
    for i in 1..atoms.len().saturating_sub(1) {
        let blocks = atoms[i].blocks.clone();
        let (before, behind) = (&atoms[i - 1], &atoms[i + 1]);
        let island = matches!(atoms[i].part, Part::Link(_))
            && blocks.end - blocks.start < LINK_BLOCKS_MIN
            && (before.part == Part::Copy && before.blocks.end == blocks.start)
            && (behind.part == Part::Copy && behind.blocks.start == blocks.end);
        if island {
            atoms[i].part = Part::Copy;
        }
    }
}

/// Plans the blocks of one file. `base`: the inode in the volume that it goes on with.
pub fn file(image: &dyn Image, base: Option<&Inode>, content: &Content) -> Result<FilePlan> {
    let mut plan = FilePlan {
        shift: content.shift,
        ..FilePlan::default()
    };
    if let Some(shift) = content.shift {
        plan.by.push(shift.by);
        return Ok(plan);
    }
    let cut = content.cut.filter(|_| base.is_some());
    let old = Old {
        image,
        inode: base,
        block_end: cut.map_or(u64::MAX, |(size, _)| size.div_ceil(BLOCK)),
        byte_end: base.map_or(0, |b| b.size.min(cut.map_or(u64::MAX, |(size, _)| size))),
    };
    if let Some((size, by)) = cut {
        plan.cut = Some(old.block_end);
        if base.is_some_and(|b| size < b.size) {
            plan.by.push(by);
        }
    }
    let mut atoms = atoms(content);
    let mut kept = Vec::with_capacity(atoms.len());
    for mut atom in atoms.drain(..) {
        if atom.part == Part::Edge {
            match old.map(atom.blocks.start, atom.blocks.end)?.0 {
                Mapping::Data { .. } => atom.part = Part::Copy,
                _ => continue,
            }
        }
        kept.push(atom);
    }
    let mut atoms = join(find_stores(&old, content, join(kept))?);
    copy_islands(&mut atoms);
    let atoms = join(atoms);
    let mut covered = Ranges::<u32>::default();
    for atom in &atoms {
        let (at, blocks) = (atom.blocks.start, atom.blocks.end - atom.blocks.start);
        match atom.part {
            Part::Copy => plan.copies.push(copy(&old, content, atom, &covered)?),
            Part::Store(addr) => {
                let fills = fills(u64::MAX, content, &atom.blocks);
                plan.stores.push(StoreRun {
                    at,
                    addr,
                    blocks,
                    fills,
                });
                count(&mut plan, content, atom);
                continue;
            }
            Part::Link(addr) => plan.links.push(Link { at, addr, blocks }),
            Part::Zero | Part::Edge => {
                unmap(&mut plan, &old, content, atom);
                continue;
            }
        }
        covered.insert(atom.blocks.clone(), 0);
        count(&mut plan, content, atom);
    }
    allocate(&mut plan, &old, content, &atoms, &covered)?;
    Ok(plan)
}

/// Notes the records whose bytes are in a run that is written or linked.
fn count(plan: &mut FilePlan, content: &Content, atom: &Atom) {
    let bytes = atom.blocks.start * BLOCK..atom.blocks.end * BLOCK;
    for (range, piece) in content.pieces.within(bytes) {
        plan.by.push(piece.by);
        if piece.source != Source::Zero {
            plan.payload_bytes += range.end - range.start;
        }
    }
}

/// Every byte of a run that is written: from pieces, the old file up to byte `old_end` of it, or zeros.
fn fills(old_end: u64, content: &Content, blocks: &Range<u64>) -> Vec<Fill> {
    let (mut byte, end) = (blocks.start * BLOCK, blocks.end * BLOCK);
    let mut fills = Vec::new();
    let gap = |fills: &mut Vec<Fill>, from: u64, to: u64| {
        let split = old_end.clamp(from, to);
        if split > from {
            fills.push(Fill {
                bytes: split - from,
                from: From::Old(from),
            });
        }
        if to > split {
            fills.push(Fill {
                bytes: to - split,
                from: From::New(Source::Zero),
            });
        }
    };
    for (range, piece) in content.pieces.within(byte..end) {
        gap(&mut fills, byte, range.start);
        fills.push(Fill {
            bytes: range.end - range.start,
            from: From::New(piece.source),
        });
        byte = range.end;
    }
    gap(&mut fills, byte, end);
    fills
}

/// A run that is written to new blocks.
fn copy(old: &Old<'_>, content: &Content, atom: &Atom, covered: &Ranges<u32>) -> Result<CopyRun> {
    let (at, end) = (atom.blocks.start, atom.blocks.end);
    let fills = fills(old.byte_end, content, &atom.blocks);
    let mut hint = None;
    if at > 0
        && covered.within(at - 1..at).next().is_none()
        && let (Mapping::Data { addr, .. }, _) = old.map(at - 1, at)?
        && addr.tier() == Some(TierId::Nvm)
    {
        hint = Some(addr.plus(1));
    }
    Ok(CopyRun {
        at,
        blocks: end - at,
        fills,
        hint,
    })
}

/// Blocks that become zeros: gone, except where they have to be allocated.
fn unmap(plan: &mut FilePlan, old: &Old<'_>, content: &Content, atom: &Atom) {
    let end = atom.blocks.end.min(old.block_end);
    if old.inode.is_none() || atom.blocks.start >= end {
        return;
    }
    let gaps = content.allocated.gaps(atom.blocks.start..end);
    if !gaps.is_empty() {
        let bytes = atom.blocks.start * BLOCK..atom.blocks.end * BLOCK;
        plan.by
            .extend(content.pieces.within(bytes).map(|(_, piece)| piece.by));
    }
    plan.unmap.extend(gaps);
}

/// Blocks that have to be allocated and are not.
fn allocate(
    plan: &mut FilePlan,
    old: &Old<'_>,
    content: &Content,
    atoms: &[Atom],
    covered: &Ranges<u32>,
) -> Result<()> {
    let mut zeroed = Ranges::<u32>::default();
    for atom in atoms.iter().filter(|a| a.part == Part::Zero) {
        zeroed.insert(atom.blocks.clone(), 0);
    }
    for (wanted, &by) in content.allocated.iter() {
        for gap in covered.gaps(wanted) {
            let mut at = gap.start;
            while at < gap.end {
                let (found, len) = old.map(at, gap.end)?;
                let (to_zero, len) = match zeroed.within(at..at + len).next() {
                    Some((r, _)) if r.start == at => (true, r.end - at),
                    Some((r, _)) => (false, r.start - at),
                    None => (false, len),
                };
                let stays = match found {
                    Mapping::Data { .. } => !to_zero,
                    Mapping::Unwritten { .. } => true,
                    Mapping::Hole { .. } => false,
                };
                if !stays {
                    plan.by.push(by);
                    match (found, plan.unwritten.last_mut()) {
                        (Mapping::Data { addr, .. }, _) if addr.tier() == Some(TierId::Nvm) => {
                            let blocks = len;
                            plan.zeroed.push(Link { at, addr, blocks });
                        }
                        (_, Some(last)) if last.end == at => last.end = at + len,
                        _ => plan.unwritten.push(at..at + len),
                    }
                }
                at += len;
            }
        }
    }
    Ok(())
}
