//! The inode file: where the slots lie, and what is known about each inode.
//!
//! Inodes are numbered densely by where their slot comes in the file, so that holes
//! cost nothing: 9 bytes a slot (count 4, place 4, state 1), and 24 bytes for each
//! extent of the inode file.

use shale_format::Ino;
use shale_format::limits::INODES_PER_BLOCK;

/// No directory.
pub(super) const NOWHERE: u32 = u32::MAX;
/// Slots that can be numbered: an inode file of 1 TiB.
pub(super) const SLOTS_MAX: u64 = NOWHERE as u64;

/// Bits of a slot's state. The low four are the type as in `d_type`; 0: free.
pub(super) mod state {
    /// Type.
    pub const KIND: u8 = 0x0f;
    /// The slot cannot be read: an inode may have been there.
    pub const DAMAGED: u8 = 0x10;
    /// The directory of orphans names it.
    pub const LISTED: u8 = 0x20;
    /// How far its way up is known.
    pub const WAY: u8 = 0xc0;
    /// On the way that is being walked now.
    pub const WALKING: u8 = 0x40;
    /// It can be reached from the root.
    pub const REACHED: u8 = 0x80;
    /// It cannot.
    pub const LOST: u8 = 0xc0;
}

/// Blocks of the inode file that follow one another.
#[derive(Clone, Copy, Debug)]
struct SlotRun {
    file_block: u64,
    /// Address of the first block; in NVM that is its number.
    block: u64,
    len: u32,
    /// Blocks of the inode file before this run.
    rank: u32,
}

/// One inode slot: its number in the dense order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(pub(super) u32);

/// All slots.
#[derive(Default)]
pub(super) struct Slots {
    runs: Vec<SlotRun>,
    blocks: u64,
    /// Of a directory: subdirectories in it; of anything else: its names.
    pub(super) count: Vec<u32>,
    /// Directory in which its first name was found.
    pub(super) place: Vec<u32>,
    /// See [`state`].
    pub(super) state: Vec<u8>,
}

impl Slots {
    /// Adds blocks of the inode file, which have to lie behind those added before;
    /// `false`: there are more than can be numbered.
    #[must_use]
    pub(super) fn add(&mut self, file_block: u64, block: u64, len: u32) -> bool {
        let blocks = self.blocks + u64::from(len);
        if blocks * INODES_PER_BLOCK > SLOTS_MAX {
            return false;
        }
        self.runs.push(SlotRun {
            file_block,
            block,
            len,
            rank: self.blocks as u32,
        });
        self.blocks = blocks;
        true
    }

    /// Makes the arrays; nothing is added any more.
    pub(super) fn close(&mut self) {
        let slots = (self.blocks * INODES_PER_BLOCK) as usize;
        self.count = vec![0; slots];
        self.place = vec![NOWHERE; slots];
        self.state = vec![0; slots];
    }

    /// Blocks of the inode file.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// First inode and address of block `rank` of the inode file in the dense order.
    pub(super) fn block(&self, rank: u64) -> Option<(Ino, u64)> {
        let i = self.runs.partition_point(|r| u64::from(r.rank) <= rank);
        let run = self.runs.get(i.checked_sub(1)?)?;
        let n = rank - u64::from(run.rank);
        (n < u64::from(run.len))
            .then(|| (Ino((run.file_block + n) * INODES_PER_BLOCK), run.block + n))
    }

    /// The slot of an inode, if its block is mapped.
    pub(super) fn find(&self, ino: Ino) -> Option<Slot> {
        let file_block = ino.0 / INODES_PER_BLOCK;
        let i = self.runs.partition_point(|r| r.file_block <= file_block);
        let run = self.runs.get(i.checked_sub(1)?)?;
        let n = file_block - run.file_block;
        (n < u64::from(run.len)).then(|| {
            let rank = u64::from(run.rank) + n;
            Slot((rank * INODES_PER_BLOCK + ino.0 % INODES_PER_BLOCK) as u32)
        })
    }

    /// The inode of a slot.
    pub(super) fn ino(&self, slot: Slot) -> Ino {
        let rank = u64::from(slot.0) / INODES_PER_BLOCK;
        let n = u64::from(slot.0) % INODES_PER_BLOCK;
        self.block(rank)
            .map_or(Ino::NONE, |(first, _)| Ino(first.0 + n))
    }

    /// Where the first name of a slot's inode is.
    pub(super) fn place_of(&self, slot: Slot) -> Option<Slot> {
        let place = self.place[slot.0 as usize];
        (place != NOWHERE).then_some(Slot(place))
    }

    pub(super) fn state_of(&self, slot: Slot) -> u8 {
        self.state[slot.0 as usize]
    }

    /// Whether there is an inode, or may be one.
    pub(super) fn is_used(&self, slot: Slot) -> bool {
        self.state_of(slot) & (state::KIND | state::DAMAGED) != 0
    }

    /// Sets how far the way up of a slot is known.
    pub(super) fn set_way(&mut self, slot: Slot, way: u8) {
        let state = &mut self.state[slot.0 as usize];
        *state = *state & !state::WAY | way;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_numbers_and_back() {
        let mut slots = Slots::default();
        assert!(slots.add(0, 100, 2) && slots.add(1 << 40, 200, 1));
        slots.close();
        assert_eq!(slots.state.len(), 48);
        let far = Ino((1 << 44) + 3);
        assert_eq!(slots.find(far), Some(Slot(35)));
        assert_eq!(slots.ino(Slot(35)), far);
        assert_eq!(slots.find(Ino(31)), Some(Slot(31)));
        assert_eq!(slots.find(Ino(32)), None);
        assert_eq!(slots.block(2), Some((Ino(1 << 44), 200)));
        assert_eq!(slots.block(3), None);
    }
}
