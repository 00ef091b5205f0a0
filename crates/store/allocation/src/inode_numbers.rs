//! Inode numbers that nobody uses (Strata §3.1: reserved 16 at a time).
//!
//! Holes of the inode file are runs of 16 free numbers; they are known from its
//! extents. Free slots in blocks in use are known only once they were freed or
//! given back since the volume was opened: looking for them would mean reading the
//! whole file. A number is granted to one client at a time.

use parking_lot::Mutex;
use rangemap::RangeSet;
use shale_format::limits::INODES_PER_BLOCK;
use shale_format::{FileBlock, Ino};
use shale_sys::mutants;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

const ALL: u16 = u16::MAX;
const _: () = assert!(INODES_PER_BLOCK == u16::BITS as u64);
/// Blocks of the inode file that there can be.
const BLOCKS_MAX: u64 = (Ino::MAX.0 + 1) / INODES_PER_BLOCK;
/// A block in use is granted from only with this many free slots, while there are holes.
const SLOTS_MIN: u32 = 8;
/// Blocks with free slots that one grant looks at.
const LOOKS_MAX: usize = 16;

/// What a commit did to one block of the inode file.
#[derive(Clone, Copy, Debug)]
pub struct BlockSlots {
    /// The block.
    pub fb: FileBlock,
    /// Slots that hold an inode now.
    pub put: u16,
    /// Slots that are free now.
    pub freed: u16,
    /// It was no hole before.
    pub mapped_before: bool,
    /// It is no hole now.
    pub mapped_after: bool,
}

#[derive(Default)]
struct State {
    /// Blocks of holes that are not granted.
    holes: RangeSet<u64>,
    /// Slots known to be free and not granted, where that is not a whole hole.
    slots: BTreeMap<u64, u16>,
    /// Slots granted and not used yet.
    granted: HashMap<u64, u16>,
}

/// Free inode numbers, in memory.
pub struct InodeNumbers(Mutex<State>);

impl InodeNumbers {
    /// From the mapped runs of the inode file, none of them empty.
    pub fn new(mapped: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut state = State::default();
        state.holes.insert(1..BLOCKS_MAX);
        for run in mapped {
            state.holes.remove(run);
        }
        InodeNumbers(Mutex::new(state))
    }

    /// Reserves up to 16 numbers that are free, in one block of the inode file, near `near` if possible. None: all are in
    /// use or granted.
    pub fn grant(&self, near: Ino) -> Vec<Ino> {
        let mut state = self.0.lock();
        let near = near.0 / INODES_PER_BLOCK;
        let full = |(_, mask): &(&u64, &u16)| mask.count_ones() >= SLOTS_MIN;
        let around = state.slots.range(near..).take(LOOKS_MAX);
        let partly = around.chain(state.slots.iter().take(LOOKS_MAX)).find(full);
        let (fb, mask) = match partly {
            Some((&fb, &mask)) => (fb, mask),
            None => match state.hole_near(near) {
                Some(fb) => (fb, ALL),
                None => match state.slots.first_key_value() {
                    Some((&fb, &mask)) => (fb, mask),
                    None => return Vec::new(),
                },
            },
        };
        if mask == ALL && !mutants::is_on("numbers-twice") {
            state.holes.remove(fb..fb + 1);
        }
        state.slots.remove(&fb);
        *state.granted.entry(fb).or_default() |= mask;
        (0..INODES_PER_BLOCK)
            .filter(|n| mask >> n & 1 == 1)
            .map(|n| Ino(fb * INODES_PER_BLOCK + n))
            .collect()
    }

    /// Grants these numbers, free or not: a log names them.
    pub fn hold(&self, inos: &[Ino]) {
        let mut state = self.0.lock();
        for ino in inos {
            let (fb, bit) = (ino.0 / INODES_PER_BLOCK, 1 << (ino.0 % INODES_PER_BLOCK));
            let free = match state.holes.contains(&fb) {
                true => ALL,
                false => state.slots.get(&fb).copied().unwrap_or(0),
            };
            let granted = state.granted.get(&fb).copied().unwrap_or(0);
            state.holes.remove(fb..fb + 1);
            state.set_granted(fb, granted | bit);
            state.set_free(fb, free & !bit);
        }
    }

    /// Takes numbers back that were granted and not used.
    pub fn give_back(&self, inos: &[Ino]) {
        let mut state = self.0.lock();
        for ino in inos {
            let (fb, bit) = (ino.0 / INODES_PER_BLOCK, 1 << (ino.0 % INODES_PER_BLOCK));
            let granted = state.granted.get(&fb).copied().unwrap_or(0);
            if granted & bit != 0 {
                state.set_granted(fb, granted & !bit);
                let free = state.slots.get(&fb).copied().unwrap_or(0) | bit;
                state.set_free(fb, free);
            }
        }
    }

    /// Takes over what a commit did.
    pub fn apply_committed(&self, blocks: &[BlockSlots]) {
        let mut state = self.0.lock();
        for b in blocks {
            let fb = b.fb.0;
            if fb == 0 {
                continue;
            }
            let granted = state.granted.get(&fb).copied().unwrap_or(0) & !(b.put | b.freed);
            let mut free = state.slots.get(&fb).copied().unwrap_or(0);
            match (b.mapped_before, b.mapped_after) {
                (false, true) => {
                    state.holes.remove(fb..fb + 1);
                    free = ALL;
                }
                (_, false) => free = ALL,
                (true, true) => free |= b.freed,
            }
            state.set_granted(fb, granted);
            state.set_free(fb, free & !b.put & !granted);
        }
    }
}

impl InodeNumbers {
    /// These blocks lie below NVM now: numbers are granted where inodes are written anyway.
    pub fn demoted(&self, blocks: impl Iterator<Item = FileBlock>) {
        let mut state = self.0.lock();
        for fb in blocks {
            state.slots.remove(&fb.0);
        }
    }

    /// Whether this number is known to be free, and granted to nobody.
    pub fn is_free(&self, ino: Ino) -> bool {
        let (fb, bit) = (ino.0 / INODES_PER_BLOCK, 1 << (ino.0 % INODES_PER_BLOCK));
        let state = self.0.lock();
        let slots = state.slots.get(&fb).copied().unwrap_or(0);
        slots & bit != 0 || state.holes.contains(&fb)
    }

    /// Whether a number in this block is granted and not used yet.
    pub fn is_granted(&self, fb: FileBlock) -> bool {
        self.0.lock().granted.contains_key(&fb.0)
    }
}

impl State {
    fn set_granted(&mut self, fb: u64, mask: u16) {
        match mask {
            0 => drop(self.granted.remove(&fb)),
            _ => drop(self.granted.insert(fb, mask)),
        }
    }

    /// Notes the free slots of a block; with all of them it is a hole.
    fn set_free(&mut self, fb: u64, mask: u16) {
        self.slots.remove(&fb);
        match mask {
            0 => (),
            ALL => self.holes.insert(fb..fb + 1),
            _ => drop(self.slots.insert(fb, mask)),
        }
    }

    fn hole_near(&self, near: u64) -> Option<u64> {
        if self.holes.contains(&near) {
            return Some(near);
        }
        let near = near.min(BLOCKS_MAX - 1);
        let mut after = self.holes.overlapping(near..BLOCKS_MAX);
        let hole = after.next().or_else(|| self.holes.first())?;
        Some(hole.start)
    }
}
