//! Where each logical block is, and how much of each erase block is still needed.
//!
//! Invariant: `valid` of an erase block is the number of logical blocks that are in it;
//! `lists` of a page is the number of logical blocks that are known to be trimmed by it.

use std::collections::{BTreeSet, HashMap};

use super::oob::SLOTS;
use crate::zoned::{Geometry, PageAt};

/// State of a logical block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    /// Nothing on flash says anything about it: it reads as zeros.
    Unwritten,
    /// In one half of a page.
    At(PageAt, usize),
    /// Trimmed, as the list in this page says.
    Trimmed(PageAt),
    /// Trimmed, and no list on flash says so yet.
    TrimPending,
}

const UNWRITTEN: u32 = u32::MAX;
const PENDING: u32 = u32::MAX - 1;
const TRIMMED: u32 = 1 << 31;

/// The mapping, 4 bytes a block: the 64 MiB of StageFS's mapping cache do for 64 GiB.
#[derive(Debug)]
pub(super) struct Map {
    geometry: Geometry,
    entries: Vec<u32>,
    valid: Vec<u32>,
    /// Lists that are needed, by page number.
    lists: HashMap<u64, u32>,
    pending: BTreeSet<u32>,
}

impl Map {
    pub fn new(geometry: Geometry, blocks: u32) -> Self {
        let pages_max = u64::from(TRIMMED) / SLOTS as u64 - 1;
        assert!(geometry.pages() < pages_max, "a map entry has 31 bits");
        Map {
            geometry,
            entries: vec![UNWRITTEN; blocks as usize],
            valid: vec![0; geometry.blocks() as usize],
            lists: HashMap::new(),
            pending: BTreeSet::new(),
        }
    }

    /// Logical blocks that there are.
    pub fn blocks(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn get(&self, block: u32) -> Where {
        match self.entries[block as usize] {
            UNWRITTEN => Where::Unwritten,
            PENDING => Where::TrimPending,
            entry if entry & TRIMMED != 0 => {
                Where::Trimmed(self.geometry.page(u64::from(entry & !TRIMMED)))
            }
            entry => {
                let page = self.geometry.page(u64::from(entry) / SLOTS as u64);
                Where::At(page, entry as usize % SLOTS)
            }
        }
    }

    pub fn set(&mut self, block: u32, to: Where) {
        match self.get(block) {
            Where::Unwritten => {}
            Where::At(page, _) => self.valid[page.block.number() as usize] -= 1,
            Where::Trimmed(page) => self.leave_list(page),
            Where::TrimPending => {
                self.pending.remove(&block);
            }
        }
        self.entries[block as usize] = match to {
            Where::Unwritten => UNWRITTEN,
            Where::At(page, slot) => {
                self.valid[page.block.number() as usize] += 1;
                (self.geometry.page_number(page) * SLOTS as u64) as u32 + slot as u32
            }
            Where::Trimmed(page) => {
                let number = self.geometry.page_number(page);
                *self.lists.entry(number).or_default() += 1;
                number as u32 | TRIMMED
            }
            Where::TrimPending => {
                self.pending.insert(block);
                PENDING
            }
        };
    }

    fn leave_list(&mut self, page: PageAt) {
        let number = self.geometry.page_number(page);
        if let Some(count) = self.lists.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.lists.remove(&number);
            }
        }
    }

    /// Logical blocks in an erase block.
    pub fn valid(&self, erase_block: u32) -> u32 {
        self.valid[erase_block as usize]
    }

    /// Whether a list is still needed.
    pub fn needs_list(&self, page: PageAt) -> bool {
        self.lists.contains_key(&self.geometry.page_number(page))
    }

    /// Blocks that are trimmed and in no list yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The first `most` ranges of such blocks.
    pub fn pending_ranges(&self, most: usize) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &block in &self.pending {
            let ranges_found = ranges.len();
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == block => *count += 1,
                _ if ranges_found == most => break,
                _ => ranges.push((block, 1)),
            }
        }
        ranges
    }
}
