//! Raw flash ([`crate::zoned`]) as a device of zones.
//!
//! A zone is some erase blocks with numbers that follow one another, so of different units; its
//! pages go round them. It is written in whole pages, in order. Blocks of 4 KiB that do not fill a
//! page wait for the ones behind them; a flush fills their page with zeros. Discarding a zone
//! erases it. The first two erase blocks hold the label blocks (`flash_labels`).
//!
//! # What a power cut leaves
//!
//! What was flushed. Behind it a zone may be written further, and unevenly, since each unit had
//! come as far as it had. [`TierDevice::zone_written`] then tells of the first page behind all that are
//! used up, and the pages between are filled when their erase block is written again. A zone with an
//! erase block that is half erased counts as full: it holds nothing, and has to be erased.
//!
//! Lock order: `state`, then the flash's own.

use super::flash_labels::{LABEL_ERASE_BLOCKS, Labels};
use super::{BlockCounts, Counters, Did, IO_BYTES, TierDevice, check_range};
use crate::block_device::BlockDevice;
use crate::error::DeviceError;
use crate::zoned::{EraseBlock, Geometry, OOB_BYTES, PageAt, Purpose, Zoned};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Metadata of pages that need none.
const NO_OOB: [u8; OOB_BYTES] = [0xff; OOB_BYTES];

/// A page that is not full yet.
type Begun = Vec<u8>;

struct State {
    labels: Labels,
    /// By zone: its page that is to be programmed next.
    next: Vec<u64>,
    /// By zone: the page that waits for more.
    begun: BTreeMap<u64, Begun>,
    /// By zone that a power cut left uneven: the page of its erase blocks from which on all are erased.
    uneven: BTreeMap<u64, u32>,
}

/// Raw flash in zones, behind an area for labels.
pub struct FlashBlocks {
    name: String,
    flash: Arc<Zoned>,
    label_bytes: u64,
    erase_blocks: u32,
    zones: u64,
    state: Mutex<State>,
    counters: Counters,
}

impl FlashBlocks {
    /// Bytes in zones of `zone_bytes` bytes that a device of this geometry has; 0: they are no whole
    /// number of its erase blocks.
    pub fn zoned_bytes(geometry: Geometry, zone_bytes: u64) -> u64 {
        if zone_bytes == 0 || !zone_bytes.is_multiple_of(geometry.block_bytes()) {
            return 0;
        }
        let blocks = geometry.blocks().saturating_sub(LABEL_ERASE_BLOCKS);
        u64::from(blocks) * geometry.block_bytes() / zone_bytes * zone_bytes
    }

    /// Opens flash as it is: zones of `zone_bytes` bytes behind `label_bytes` bytes.
    ///
    /// # Errors
    /// What the flash says.
    ///
    /// # Panics
    /// If zones are no whole number of erase blocks, or pages of blocks.
    pub fn open(
        name: &str,
        flash: Arc<Zoned>,
        label_bytes: u64,
        zone_bytes: u64,
    ) -> Result<FlashBlocks, DeviceError> {
        let geometry = flash.geometry();
        assert!((geometry.page_bytes as usize).is_multiple_of(IO_BYTES));
        let bytes = Self::zoned_bytes(geometry, zone_bytes);
        assert!(bytes > 0, "zones of {zone_bytes} bytes on {geometry:?}");
        let mut blocks = FlashBlocks {
            name: name.to_owned(),
            label_bytes,
            erase_blocks: (zone_bytes / geometry.block_bytes()) as u32,
            zones: bytes / zone_bytes,
            state: Mutex::new(State {
                labels: Labels::open(&flash)?,
                next: Vec::new(),
                begun: BTreeMap::new(),
                uneven: BTreeMap::new(),
            }),
            counters: Counters::default(),
            flash,
        };
        for zone in 0..blocks.zones {
            let level = blocks.level(zone);
            let state = blocks.state.get_mut();
            state.next.push(match level {
                Ok(pages) => pages,
                Err(page) => u64::from(page) * u64::from(blocks.erase_blocks),
            });
            state.uneven.extend(level.err().map(|page| (zone, page)));
        }
        Ok(blocks)
    }

    fn geometry(&self) -> Geometry {
        self.flash.geometry()
    }

    fn page_bytes(&self) -> u64 {
        self.geometry().page_bytes.into()
    }

    fn zone_pages(&self) -> u64 {
        u64::from(self.erase_blocks) * u64::from(self.geometry().pages_per_block)
    }

    /// The erase blocks of a zone.
    fn blocks_of(&self, zone: u64) -> impl Iterator<Item = EraseBlock> {
        let geometry = self.geometry();
        let first = LABEL_ERASE_BLOCKS + zone as u32 * self.erase_blocks;
        (first..first + self.erase_blocks).map(move |n| geometry.block(n))
    }

    /// Where a page of a zone is.
    fn place(&self, zone: u64, within: u64) -> PageAt {
        let each = u64::from(self.erase_blocks);
        let number = u64::from(LABEL_ERASE_BLOCKS) + zone * each + within % each;
        PageAt {
            block: self.geometry().block(number as u32),
            page: (within / each) as u32,
        }
    }

    /// Pages of a zone that are used up. If they are not its first ones, the page of its erase
    /// blocks from which on all are erased.
    fn level(&self, zone: u64) -> Result<u64, u32> {
        if self.blocks_of(zone).any(|b| self.flash.is_half_erased(b)) {
            return Ok(self.zone_pages());
        }
        let next: Vec<u32> = self
            .blocks_of(zone)
            .map(|b| self.flash.next_page(b))
            .collect();
        let sum = next.iter().copied().map(u64::from).sum();
        let each = u64::from(self.erase_blocks);
        let mut even = (0..each).map(|n| u64::saturating_sub(sum, n).div_ceil(each));
        match next.iter().all(|n| Some(u64::from(*n)) == even.next()) {
            true => Ok(sum),
            false => Err(next.into_iter().max().unwrap_or(0)),
        }
    }

    /// Zone, page of it and byte of that, `at` bytes behind the label area.
    fn spot(&self, at: u64) -> (u64, u64, u64) {
        let page = at / self.page_bytes();
        let (zone, page) = (page / self.zone_pages(), page % self.zone_pages());
        (zone, page, at % self.page_bytes())
    }

    /// Writes one block `at` bytes behind the label area.
    fn put(&self, state: &mut State, at: u64, block: &[u8]) -> Result<(), DeviceError> {
        let (zone, page, within) = self.spot(at);
        let there = state.begun.get(&zone).map_or(0, Vec::len) as u64;
        if (page, within) != (state.next[zone as usize], there) {
            return Err(self.flash.refuse(self.place(zone, page)));
        }
        let begun = state.begun.entry(zone).or_default();
        begun.extend_from_slice(block);
        match begun.len() as u64 == self.page_bytes() {
            true => self.program(state, zone),
            false => Ok(()),
        }
    }

    /// Programs the page of a zone that was begun, with zeros behind what there is of it.
    fn program(&self, state: &mut State, zone: u64) -> Result<(), DeviceError> {
        let mut data = state.begun.remove(&zone).unwrap_or_default();
        data.resize(self.page_bytes() as usize, 0);
        let at = self.place(zone, state.next[zone as usize]);
        let uneven = state.uneven.get(&zone).copied().unwrap_or(0);
        for page in self.flash.next_page(at.block)..at.page.min(uneven) {
            let (block, zeros) = (at.block, vec![0; data.len()]);
            let hole = PageAt { block, page };
            self.flash
                .program(hole, &zeros, &NO_OOB, Purpose::Written)?;
        }
        state.next[zone as usize] += 1;
        self.flash.program(at, &data, &NO_OOB, Purpose::Written)
    }

    fn write_blocks(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        for (at, block) in (at..).step_by(IO_BYTES).zip(from.chunks(IO_BYTES)) {
            match at.checked_sub(self.label_bytes) {
                None => state.labels.put(&self.flash, at / IO_BYTES as u64, block)?,
                Some(at) => self.put(&mut state, at, block)?,
            }
        }
        Ok(())
    }

    fn read_blocks(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let state = self.state.lock();
        let mut page = vec![0; self.page_bytes() as usize];
        let mut there = None;
        for (at, block) in (at..).step_by(IO_BYTES).zip(into.chunks_mut(IO_BYTES)) {
            let Some(at) = at.checked_sub(self.label_bytes) else {
                state.labels.get(at / IO_BYTES as u64, block);
                continue;
            };
            let (zone, number, within) = self.spot(at);
            let part = within as usize..within as usize + IO_BYTES;
            let begun = state.begun.get(&zone);
            let begun = begun.filter(|_| state.next[zone as usize] == number);
            if let Some(waits) = begun.and_then(|data| data.get(part.clone())) {
                block.copy_from_slice(waits);
                continue;
            }
            if there != Some((zone, number)) {
                self.flash.read(self.place(zone, number), &mut page)?;
                there = Some((zone, number));
            }
            block.copy_from_slice(&page[part]);
        }
        Ok(())
    }

    fn erase(&self, zone: u64) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        state.begun.remove(&zone);
        for block in self.blocks_of(zone) {
            if self.flash.next_page(block) > 0 || self.flash.is_half_erased(block) {
                self.flash.erase(block)?;
            }
        }
        state.uneven.remove(&zone);
        state.next[zone as usize] = 0;
        Ok(())
    }

    fn end_pages(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let begun: Vec<u64> = state.begun.keys().copied().collect();
        begun
            .into_iter()
            .try_for_each(|zone| self.program(&mut state, zone))
    }
}

impl BlockDevice for FlashBlocks {
    fn bytes(&self) -> u64 {
        self.label_bytes + self.zones * self.zone_pages() * self.page_bytes()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        check_range(at, into.len() as u64, self.bytes());
        let did = Did::Read(into.len() as u64);
        self.counters.note(did, self.read_blocks(at, into))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        check_range(at, from.len() as u64, self.bytes());
        let did = Did::Wrote(from.len() as u64);
        self.counters.note(did, self.write_blocks(at, from))
    }

    /// Erases the zones that lie in the range as a whole; nothing else.
    fn discard(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        check_range(at, bytes, self.bytes());
        let zone_bytes = self.zone_pages() * self.page_bytes();
        let first = at.saturating_sub(self.label_bytes).div_ceil(zone_bytes);
        let end = (at + bytes).saturating_sub(self.label_bytes) / zone_bytes;
        let done = (first..end).try_for_each(|zone| self.erase(zone));
        self.counters.note(Did::Discarded(bytes), done)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let done = self.end_pages();
        self.flash.flush();
        self.counters.note(Did::Flushed, done)
    }
}

impl TierDevice for FlashBlocks {
    fn counts(&self) -> BlockCounts {
        self.counters.snapshot()
    }

    fn access(&self) -> &'static str {
        "emulated flash"
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn trouble(&self) -> Option<String> {
        self.flash.trouble()
    }

    fn write_unit(&self) -> u64 {
        self.page_bytes()
    }

    fn zone_written(&self, at: u64, bytes: u64) -> Option<u64> {
        let zone_bytes = self.zone_pages() * self.page_bytes();
        let at = at.checked_sub(self.label_bytes)?;
        assert!(
            at.is_multiple_of(zone_bytes) && bytes == zone_bytes,
            "{bytes} bytes at {at}"
        );
        let state = self.state.lock();
        let zone = at / zone_bytes;
        let begun = state.begun.get(&zone).map_or(0, Vec::len);
        Some(state.next[zone as usize] * self.page_bytes() + begun as u64)
    }

    fn flash(&self) -> Option<&Zoned> {
        Some(&self.flash)
    }
}

#[cfg(test)]
mod tests;
