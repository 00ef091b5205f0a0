//! A translation layer as a block device: reads and writes of any range, trims, flushes.

mod gc;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;

use super::cache::{Cache, Data};
use super::map::{Map, Where};
use super::oob::{self, BLOCK_BYTES, Kind, NONE, Oob, SLOTS};
use super::place::{Place, RESERVE, Stream};
use super::recover;
use super::settings::{FtlCounts, Settings};
use super::state::State;
use crate::zoned::{PageAt, Purpose, Zoned};
use shale_block::{BlockDevice, BlockError};

/// Trimmed blocks that may wait for a flush to be listed on flash.
const TRIMS_PENDING_MAX: usize = 1 << 16;

/// A block device on raw flash.
pub struct Ftl {
    flash: Arc<Zoned>,
    settings: Settings,
    state: Mutex<State>,
}

impl std::fmt::Debug for Ftl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ftl")
            .field("flash", &self.flash)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Logical blocks that a device offers.
fn logical_blocks(flash: &Zoned, settings: &Settings) -> u32 {
    let geometry = flash.geometry();
    let blocks = u64::from(geometry.blocks());
    let wanted = (blocks * u64::from(settings.over_provision_percent)).div_ceil(100);
    // Each stream may have a block open in each unit, which is not full. Of all others
    // there must be one that cleaning gains two pages of.
    let uneven = (blocks * 2).div_ceil(u64::from(geometry.pages_per_block));
    let needed = u64::from(2 * geometry.units) + RESERVE as u64 + uneven + 1;
    let spare = wanted.max(needed);
    assert!(
        spare < blocks,
        "{blocks} erase blocks, {spare} of them spare"
    );
    let offered = (blocks - spare) * u64::from(geometry.pages_per_block) * SLOTS as u64;
    u32::try_from(offered).unwrap_or(NONE - 1)
}

impl Ftl {
    /// Opens the device on `flash`: empty if that is erased, else as it was.
    ///
    /// # Errors
    /// What the flash says.
    ///
    /// # Panics
    /// If pages do not have 8 KiB, or there are too few erase blocks to spare.
    pub fn open(flash: Arc<Zoned>, settings: Settings) -> Result<Self, BlockError> {
        let geometry = flash.geometry();
        assert_eq!(geometry.page_bytes as usize, SLOTS * BLOCK_BYTES);
        recover::erase_halves(&flash)?;
        let mut state = State {
            map: Map::new(geometry, logical_blocks(&flash, &settings)),
            place: Place::of(&flash),
            cache: Cache::default(),
            sequence: 0,
            written_at: vec![0; geometry.blocks() as usize],
            wear_looked_at: 0,
            counts: FtlCounts::default(),
            page: None,
            page_data: vec![0; geometry.page_bytes as usize],
        };
        recover::fill(&flash, &mut state)?;
        Ok(Ftl {
            flash,
            settings,
            state: Mutex::new(state),
        })
    }

    /// The flash below.
    pub fn flash(&self) -> &Arc<Zoned> {
        &self.flash
    }

    /// How it works.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// What it was asked for and did since it was opened.
    pub fn counts(&self) -> FtlCounts {
        self.state.lock().counts
    }

    /// Programs a page with at most [`SLOTS`] blocks and points the map at it.
    fn program_data(
        &self,
        state: &mut State,
        stream: Stream,
        blocks: &[(u32, Data)],
    ) -> Result<(), BlockError> {
        let mut page = [0xff; SLOTS * BLOCK_BYTES];
        let mut held = [NONE; SLOTS];
        for (slot, (block, data)) in blocks.iter().enumerate() {
            page[slot * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(&**data);
            held[slot] = *block;
        }
        let at = self.program(state, stream, &page, Kind::Data(held))?;
        for (slot, (block, _)) in blocks.iter().enumerate() {
            state.map.set(*block, Where::At(at, slot));
        }
        state.counts.halves_wasted += (SLOTS - blocks.len()) as u64;
        Ok(())
    }

    fn program(
        &self,
        state: &mut State,
        stream: Stream,
        page: &[u8],
        kind: Kind,
    ) -> Result<PageAt, BlockError> {
        let at = state.place.take(&self.flash, stream);
        let at = at.ok_or(BlockError::NoVictim {
            free: state.place.free_blocks(),
            expected: RESERVE + 1,
        })?;
        state.sequence += 1;
        state.written_at[at.block.number() as usize] = state.sequence;
        let oob = Oob {
            sequence: state.sequence,
            kind,
        };
        let purpose = match stream {
            Stream::Written => Purpose::Written,
            Stream::Moved => Purpose::Moved,
        };
        self.flash.program(at, page, &oob.to_bytes(), purpose)?;
        Ok(at)
    }

    /// Writes the blocks that are in the cache longest, two of them.
    fn write_oldest(&self, state: &mut State) -> Result<(), BlockError> {
        self.reclaim(state)?;
        let oldest = state.cache.oldest(SLOTS);
        self.program_data(state, Stream::Written, &oldest)?;
        for (block, _) in oldest {
            state.cache.remove(block);
        }
        Ok(())
    }

    /// Lists on flash what was trimmed and is not listed yet: a page of it.
    fn write_trims(&self, state: &mut State, stream: Stream) -> Result<(), BlockError> {
        let mut page = [0xff; SLOTS * BLOCK_BYTES];
        let ranges = state.map.pending_ranges(page.len() / 8);
        oob::put_ranges(&ranges, &mut page);
        let at = self.program(state, stream, &page, Kind::Trims(ranges.len() as u32))?;
        for (first, count) in ranges {
            (first..first + count).for_each(|b| state.map.set(b, Where::Trimmed(at)));
        }
        state.counts.trim_pages += 1;
        Ok(())
    }

    /// Lists on flash all that was trimmed.
    fn list_trims(&self, state: &mut State) -> Result<(), BlockError> {
        while state.map.pending() > 0 {
            self.reclaim(state)?;
            // Cleaning may have listed them.
            if state.map.pending() > 0 {
                self.write_trims(state, Stream::Written)?;
            }
        }
        Ok(())
    }

    /// Copies a block out.
    fn load(
        &self,
        state: &mut State,
        block: u32,
        into: &mut [u8; BLOCK_BYTES],
    ) -> Result<(), BlockError> {
        if let Some(data) = state.cache.get(block) {
            into.copy_from_slice(data);
            return Ok(());
        }
        let Where::At(at, slot) = state.map.get(block) else {
            into.fill(0);
            return Ok(());
        };
        if state.page != Some(at) {
            state.page = None;
            self.flash.read(at, &mut state.page_data)?;
            state.page = Some(at);
        }
        into.copy_from_slice(&state.page_data[slot * BLOCK_BYTES..][..BLOCK_BYTES]);
        Ok(())
    }

    fn store(&self, state: &mut State, block: u32, data: Data) -> Result<(), BlockError> {
        state.counts.blocks_written += 1;
        state.counts.blocks_rewritten_in_cache += u64::from(state.cache.put(block, data));
        while state.cache.len() * BLOCK_BYTES > self.settings.cache_bytes {
            self.write_oldest(state)?;
        }
        Ok(())
    }

    /// Puts `from` into a block from `start` on.
    fn store_part(
        &self,
        state: &mut State,
        block: u32,
        start: usize,
        from: &[u8],
    ) -> Result<(), BlockError> {
        let mut data = Box::new([0; BLOCK_BYTES]);
        if from.len() < BLOCK_BYTES {
            self.load(state, block, &mut data)?;
        }
        data[start..][..from.len()].copy_from_slice(from);
        self.store(state, block, data)
    }

    fn trim(&self, state: &mut State, block: u32) -> Result<(), BlockError> {
        state.counts.blocks_trimmed += 1;
        state.cache.remove(block);
        match state.map.get(block) {
            Where::At(..) => state.map.set(block, Where::TrimPending),
            Where::Unwritten | Where::Trimmed(_) | Where::TrimPending => {}
        }
        if state.map.pending() >= TRIMS_PENDING_MAX {
            self.list_trims(state)?;
        }
        Ok(())
    }

    fn assert_inside(&self, offset: u64, bytes: u64) {
        let all = self.bytes();
        assert!(
            offset <= all && bytes <= all - offset,
            "{bytes} bytes at {offset} are outside of {all} bytes"
        );
    }
}

/// The parts of a byte range by block: block, where in it, how many bytes.
fn parts(offset: u64, bytes: u64) -> impl Iterator<Item = (u32, usize, usize)> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let left = offset + bytes - at;
        let start = at % BLOCK_BYTES as u64;
        let length = left.min(BLOCK_BYTES as u64 - start);
        let part = (
            (at / BLOCK_BYTES as u64) as u32,
            start as usize,
            length as usize,
        );
        at += length;
        (left > 0).then_some(part)
    })
}

impl BlockDevice for Ftl {
    fn bytes(&self) -> u64 {
        u64::from(self.state.lock().map.blocks()) * BLOCK_BYTES as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.assert_inside(offset, into.len() as u64);
        let mut state = self.state.lock();
        let mut data = [0; BLOCK_BYTES];
        let mut done = 0;
        for (block, start, length) in parts(offset, into.len() as u64) {
            state.counts.blocks_read += 1;
            self.load(&mut state, block, &mut data)?;
            into[done..][..length].copy_from_slice(&data[start..][..length]);
            done += length;
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        self.assert_inside(offset, from.len() as u64);
        let mut state = self.state.lock();
        let mut done = 0;
        for (block, start, length) in parts(offset, from.len() as u64) {
            self.store_part(&mut state, block, start, &from[done..][..length])?;
            done += length;
        }
        Ok(())
    }

    /// The range reads as zeros; parts of blocks are written as such.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.assert_inside(offset, bytes);
        let mut state = self.state.lock();
        for (block, start, length) in parts(offset, bytes) {
            if length == BLOCK_BYTES {
                self.trim(&mut state, block)?;
            } else {
                self.store_part(&mut state, block, start, &vec![0; length])?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        while state.cache.len() > 0 {
            self.write_oldest(&mut state)?;
        }
        self.list_trims(&mut state)?;
        state.counts.flushes += 1;
        self.flash.flush();
        Ok(())
    }
}
