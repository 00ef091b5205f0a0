//! Cleaning: what is still needed of an erase block is moved, then it is erased.
//!
//! A crash after each step: *before the flush*, old and new copies are there, and the newer
//! sequence number wins, with the same bytes; *after it*, the old ones are not needed, so a
//! half erased block is one that recovery erases.

use super::Ftl;
use crate::ftl::cache::Data;
use crate::ftl::map::Where;
use crate::ftl::oob::{BLOCK_BYTES, Kind, Oob, SLOTS, ranges};
use crate::ftl::place::{RESERVE, Stream};
use crate::ftl::settings::Victims;
use crate::ftl::state::State;
use crate::zoned::{EraseBlock, PageAt};
use shale_block::BlockError;

/// Of so many cleanings one looks at wear.
const WEAR_EVERY: u64 = 32;

impl Ftl {
    /// Cleans until a page can be written; then, if few blocks are free, one that is
    /// mostly garbage, so that a writer does not wait for many at once.
    pub(super) fn reclaim(&self, state: &mut State) -> Result<(), BlockError> {
        let slots = self.flash.geometry().pages_per_block * SLOTS as u32;
        let short = |state: &State| {
            !state.place.has_page(Stream::Written) || state.place.free_blocks() < RESERVE
        };
        while short(state) {
            let victim =
                self.victim(state, slots - 2 * SLOTS as u32)
                    .ok_or(BlockError::NoVictim {
                        free: state.place.free_blocks(),
                        expected: RESERVE + 1,
                    })?;
            self.clean(state, victim)?;
        }
        self.level_wear(state)?;
        let few = self.settings.clean_below_percent as usize
            * self.flash.geometry().blocks() as usize
            / 100;
        if state.place.free_blocks() < few {
            let valid_max = slots * self.settings.early_valid_max_percent / 100;
            if let Some(victim) = self.victim(state, valid_max) {
                self.clean(state, victim)?;
            }
        }
        Ok(())
    }

    /// The block to clean, with at most `valid_max` logical blocks in it.
    fn victim(&self, state: &State, valid_max: u32) -> Option<EraseBlock> {
        let slots = f64::from(self.flash.geometry().pages_per_block * SLOTS as u32);
        let score = |block: EraseBlock| {
            let valid = f64::from(state.map.valid(block.number()));
            match self.settings.victims {
                Victims::Greedy => -valid,
                // Rosenblum and Ousterhout: space gained times age over cost.
                Victims::CostBenefit => {
                    let written = state.written_at[block.number() as usize];
                    let age = state.sequence.saturating_sub(written) as f64 + 1.0;
                    (slots - valid) * age / (slots + valid)
                }
            }
        };
        let fit = self
            .closed(state)
            .filter(|block| state.map.valid(block.number()) <= valid_max);
        fit.max_by(|a, b| score(*a).total_cmp(&score(*b)))
    }

    /// Blocks that may be cleaned.
    fn closed(&self, state: &State) -> impl Iterator<Item = EraseBlock> {
        let geometry = self.flash.geometry();
        let blocks = (0..geometry.blocks()).map(move |number| geometry.block(number));
        blocks.filter(|block| state.place.can_clean(*block))
    }

    /// Now and then, where wear has become uneven: cleans the block that was erased least often.
    /// It holds what is never written, and would stay so.
    fn level_wear(&self, state: &mut State) -> Result<(), BlockError> {
        if state.counts.blocks_cleaned < state.wear_looked_at + WEAR_EVERY {
            return Ok(());
        }
        state.wear_looked_at = state.counts.blocks_cleaned;
        let erased = |block: EraseBlock| self.flash.erase_count(block);
        let most = self.closed(state).map(erased).max().unwrap_or(0);
        let least = self.closed(state).min_by_key(|block| erased(*block));
        match least {
            Some(block) if most - erased(block) > self.settings.wear_difference_max => {
                self.clean(state, block)
            }
            _ => Ok(()),
        }
    }

    fn clean(&self, state: &mut State, victim: EraseBlock) -> Result<(), BlockError> {
        state.place.cleans(victim);
        let mut page = vec![0; self.flash.geometry().page_bytes as usize];
        let mut moving: Vec<(u32, Data)> = Vec::new();
        for number in 0..self.flash.next_page(victim) {
            let at = PageAt {
                block: victim,
                page: number,
            };
            self.gather(state, at, &mut page, &mut moving)?;
            while moving.len() >= SLOTS {
                let pair: Vec<_> = moving.drain(..SLOTS).collect();
                self.program_data(state, Stream::Moved, &pair)?;
            }
        }
        if !moving.is_empty() {
            self.program_data(state, Stream::Moved, &moving)?;
        }
        // Older copies may go with the victim, but not before it is known that
        // the newer ones are trimmed.
        while state.map.pending() > 0 {
            self.write_trims(state, Stream::Moved)?;
        }
        self.flash.flush();
        self.flash.erase(victim)?;
        state.place.freed(victim);
        state.counts.blocks_cleaned += 1;
        state.forget_page();
        Ok(())
    }

    /// Takes what is needed of a page: blocks for moving, lists of trimmed blocks as pending.
    fn gather(
        &self,
        state: &mut State,
        at: PageAt,
        page: &mut [u8],
        moving: &mut Vec<(u32, Data)>,
    ) -> Result<(), BlockError> {
        let oob = match self.flash.read_oob(at) {
            Ok(oob) => Oob::from_bytes(&oob),
            Err(BlockError::TornPage { .. }) => None,
            Err(error) => return Err(error),
        };
        match oob.map(|oob| oob.kind) {
            Some(Kind::Data(blocks)) => {
                let needed = |slot: usize| {
                    let block = blocks[slot];
                    block < state.map.blocks() && state.map.get(block) == Where::At(at, slot)
                };
                let needed: Vec<usize> = (0..SLOTS).filter(|slot| needed(*slot)).collect();
                if !needed.is_empty() {
                    self.flash.read(at, page)?;
                }
                for slot in needed {
                    let mut data = Box::new([0; BLOCK_BYTES]);
                    data.copy_from_slice(&page[slot * BLOCK_BYTES..][..BLOCK_BYTES]);
                    moving.push((blocks[slot], data));
                }
            }
            Some(Kind::Trims(count)) if state.map.needs_list(at) => {
                self.flash.read(at, page)?;
                for (first, blocks) in ranges(page, count) {
                    for block in first..first.saturating_add(blocks).min(state.map.blocks()) {
                        if state.map.get(block) == Where::Trimmed(at) {
                            state.map.set(block, Where::TrimPending);
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
