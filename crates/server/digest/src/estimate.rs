//! How much of the journal a chunk needs, before anything of it is allocated.
//!
//! The journal gets slots that change in place and changed words of the bitmap; new
//! nodes and new blocks of the inode file are written beside it. An estimate that is too
//! low costs a second try with fewer records, one that is too high a smaller chunk:
//! neither is wrong.

use super::coalesce::InodeDelta;
use super::image::Image;
use super::plan::InodePlan;
use shale_format::Ino;
use shale_format::bitmap::BITS_PER_BLOCK;
use shale_format::extent::root_kind;
use shale_format::inode::Inode;
use shale_format::limits::{INODE_BYTES, INODES_PER_BLOCK};
use shale_volume::Result;

/// Journal of a transaction whatever it does: header, log slot, root block, and what
/// the trees of the inode file and of the orphans change.
pub(crate) const FIXED_BYTES: u64 = 8192;
/// Journal of one slot that changes in place, with its entry's header.
pub(crate) const SLOT_BYTES: u64 = INODE_BYTES as u64 + 16;
/// Journal of one changed word of the bitmap, with its entry's header.
const WORD_BYTES: u64 = 24;
/// Journal of the header of one changed block of the bitmap.
const BITMAP_HEADER_BYTES: u64 = 32;
/// Blocks that one word of the bitmap tells about.
const WORD_BLOCKS: u64 = 64;

/// Sums up a plan, inode after inode in ascending order.
#[derive(Default)]
pub(crate) struct Estimate {
    slots: u64,
    words: u64,
    /// Block of the inode file of the last inode, and whether the volume has it.
    block: Option<(u64, bool)>,
}

impl Estimate {
    /// Adds what happens to one inode number.
    pub(crate) fn add(
        &mut self,
        image: &dyn Image,
        plan: &InodePlan,
        net: &InodeDelta,
    ) -> Result<()> {
        if self.in_place(image, plan.ino, net)? {
            self.slots += 1;
        }
        let file = &plan.file;
        let runs = file.links.len() + file.copies.len() + file.unwritten.len() + file.unmap.len();
        let runs = runs + file.zeroed.len();
        if runs > 0 || file.cut.is_some() || file.shift.is_some() {
            self.words += 8 + 2 * runs as u64 + file.new_blocks() / WORD_BLOCKS;
        }
        if let Some(base) = &net.base {
            let entries = (plan.entries.len() + plan.wiped_entries.len()) as u64;
            self.words += words_of_entries(base, entries);
            let cut = file.cut.is_some() || file.shift.is_some();
            if !base.is_dir() && (plan.wipe || cut) {
                self.words += words_of_blocks(base);
            }
        } else {
            self.words += plan.entries.len() as u64 / 16;
        }
        if plan.xattrs.is_some() || (plan.wipe && net.base.is_some_and(|b| b.xattr_addr != 0)) {
            self.words += 4;
        }
        Ok(())
    }

    /// Whether the slot is in a block of the inode file that the volume has: all others
    /// are written whole, to new blocks.
    fn in_place(&mut self, image: &dyn Image, ino: Ino, net: &InodeDelta) -> Result<bool> {
        if net.base.is_some() {
            return Ok(true);
        }
        let block = ino.0 / INODES_PER_BLOCK;
        if let Some((last, mapped)) = self.block
            && last == block
        {
            return Ok(mapped);
        }
        let mapped = image.has_slot(ino)?;
        self.block = Some((block, mapped));
        self.words += u64::from(!mapped);
        Ok(mapped)
    }

    /// Bytes of journal.
    pub(crate) fn bytes(&self, image: &dyn Image) -> u64 {
        let all = image.blocks();
        let words = self.words.min(all.div_ceil(WORD_BLOCKS));
        let headers = words.min(all.div_ceil(BITS_PER_BLOCK));
        let bitmap = words * WORD_BYTES + headers * BITMAP_HEADER_BYTES;
        FIXED_BYTES + self.slots * SLOT_BYTES + bitmap
    }
}

/// Words of the bitmap that change when this many entries of a directory of the volume
/// do: at worst each entry is in a leaf of its own, whose old block is freed. New nodes
/// lie side by side.
fn words_of_entries(dir: &Inode, entries: u64) -> u64 {
    if entries == 0 {
        return 0;
    }
    let root = &dir.root[0];
    let old = match root.kind {
        root_kind::TREE => (entries * (u64::from(root.level) + 1)).min(root.file_block),
        _ => 0,
    };
    old + entries / 16 + 8
}

/// Words that change when a file goes: each node at least, and its blocks, few of which
/// have a word of their own unless the file is in pieces.
fn words_of_blocks(file: &Inode) -> u64 {
    let tree = file.root.iter().any(|r| r.kind == root_kind::TREE);
    match (file.blocks, tree) {
        (0, _) => 0,
        (blocks, true) => (blocks / 4 + 8).min(blocks + 8),
        (blocks, false) => blocks / WORD_BLOCKS + 2,
    }
}
