//! Raw flash ([`crate::zoned`]) as a device of zones.
//!
//! A zone is some erase blocks with numbers that follow one another, so of different units; its
//! pages go round them. It is written in whole pages, in order. Blocks of 4 KiB that do not fill a
//! page wait for the ones behind them; a flush fills their page with zeros. Discarding a zone
//! erases it. The first two erase blocks hold the label blocks (`labels`).
//!
//! # What a power cut leaves
//!
//! What was flushed. Behind it a zone may be written further, and unevenly, since each unit had
//! come as far as it had. [`shale_block::TierDevice::zone_written`] then tells of the first page behind all that are
//! used up, and the pages between are filled when their erase block is written again. A zone with an
//! erase block that is half erased counts as full: it holds nothing, and has to be erased.
//!
//! # Wear
//!
//! A zone with an erase block that is worn out is worn out: it counts as full, is read, and left alone. That is
//! found at the start, or when programming or erasing the block fails; pages of the zone that were not flushed may be
//! lost then.
//!
//! Lock order: `state`, then the flash's own.

use crate::zoned::{EraseBlock, Geometry, OOB_BYTES, PageAt, Purpose, Zoned};
use parking_lot::Mutex;
use shale_block::labels::{LABEL_ROWS, LabelRows, Tag, Version};
use shale_block::zones::{ZoneMedium, ZonedBlocks};
use shale_block::{BlockError, FlashWork, IO_BYTES, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Metadata of pages that need none.
const NO_OOB: [u8; OOB_BYTES] = [0xff; OOB_BYTES];

/// A page that is not full yet.
type Begun = Vec<u8>;

#[derive(Default)]
struct State {
    /// By zone: its page that is to be programmed next.
    next: Vec<u64>,
    /// By zone: the page that waits for more.
    begun: BTreeMap<u64, Begun>,
    /// By zone that a power cut left uneven: the page of its erase blocks from which on all are erased.
    uneven: BTreeMap<u64, u32>,
    /// Zones that are worn out.
    worn: BTreeSet<u64>,
}

/// Raw flash in zones.
pub struct FlashZones {
    flash: Arc<Zoned>,
    erase_blocks: u32,
    zones: u64,
    state: Mutex<State>,
}

/// Raw flash in zones, behind an area for labels.
pub type FlashBlocks = ZonedBlocks<FlashZones>;

impl FlashZones {
    /// Bytes in zones of `zone_bytes` bytes that a device of this geometry has; 0: they are no whole
    /// number of its erase blocks.
    pub fn zoned_bytes(geometry: Geometry, zone_bytes: u64) -> u64 {
        if zone_bytes == 0 || !zone_bytes.is_multiple_of(geometry.block_bytes()) {
            return 0;
        }
        let blocks = geometry.blocks().saturating_sub(LABEL_ROWS);
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
    ) -> Result<FlashBlocks, BlockError> {
        let geometry = flash.geometry();
        assert!((geometry.page_bytes as usize).is_multiple_of(IO_BYTES));
        let bytes = Self::zoned_bytes(geometry, zone_bytes);
        assert!(bytes > 0, "zones of {zone_bytes} bytes on {geometry:?}");
        let zones = FlashZones {
            erase_blocks: (zone_bytes / geometry.block_bytes()) as u32,
            zones: bytes / zone_bytes,
            state: Mutex::default(),
            flash,
        };
        for zone in 0..zones.zones {
            let level = zones.level(zone);
            let state = &mut *zones.state.lock();
            state.next.push(match level {
                Ok(pages) => pages,
                Err(page) => u64::from(page) * u64::from(zones.erase_blocks),
            });
            state.uneven.extend(level.err().map(|page| (zone, page)));
            if zones.blocks_of(zone).any(|b| zones.flash.is_worn(b)) {
                zones.give_up(state, zone);
            }
        }
        FlashBlocks::over(name, zones, label_bytes)
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
        let first = LABEL_ROWS + zone as u32 * self.erase_blocks;
        (first..first + self.erase_blocks).map(move |n| geometry.block(n))
    }

    /// Where a page of a zone is.
    fn place(&self, zone: u64, within: u64) -> PageAt {
        let each = u64::from(self.erase_blocks);
        let number = u64::from(LABEL_ROWS) + zone * each + within % each;
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

    /// A zone is worn out.
    fn give_up(&self, state: &mut State, zone: u64) {
        state.worn.insert(zone);
        state.begun.remove(&zone);
        state.uneven.remove(&zone);
        state.next[zone as usize] = self.zone_pages();
    }

    /// What a command to a zone came to: if an erase block of it is worn out, the zone is given up.
    fn judge(
        &self,
        state: &mut State,
        zone: u64,
        done: Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        if done.as_ref().is_err_and(BlockError::is_worn_out) {
            self.give_up(state, zone);
        }
        done
    }

    /// Page and byte of that, `at` bytes from the start of a zone.
    fn spot(&self, at: u64) -> (u64, u64) {
        (at / self.page_bytes(), at % self.page_bytes())
    }

    /// Writes one block `at` bytes from the start of a zone.
    fn put(&self, state: &mut State, zone: u64, at: u64, block: &[u8]) -> Result<(), BlockError> {
        let (page, within) = self.spot(at);
        if state.worn.contains(&zone) {
            let block = self.place(zone, page).block.number();
            return Err(BlockError::WornBlock { block });
        }
        let there = state.begun.get(&zone).map_or(0, Vec::len) as u64;
        if (page, within) != (state.next[zone as usize], there) {
            return Err(self.flash.refuse(self.place(zone, page)));
        }
        let begun = state.begun.entry(zone).or_default();
        begun.extend_from_slice(block);
        match begun.len() as u64 == self.page_bytes() {
            true => self.program_begun(state, zone),
            false => Ok(()),
        }
    }

    /// Programs the page of a zone that was begun, with zeros behind what there is of it.
    fn program_begun(&self, state: &mut State, zone: u64) -> Result<(), BlockError> {
        let done = self.program_next(state, zone);
        self.judge(state, zone, done)
    }

    fn program_next(&self, state: &mut State, zone: u64) -> Result<(), BlockError> {
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

    fn label_block(&self, row: u32) -> EraseBlock {
        self.geometry().block(row)
    }
}

impl ZoneMedium for FlashZones {
    fn zones(&self) -> u64 {
        self.zones
    }

    fn zone_bytes(&self) -> u64 {
        self.zone_pages() * self.page_bytes()
    }

    fn write_zone(&self, zone: u64, at: u64, from: &[u8]) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        let mut blocks = (at..).step_by(IO_BYTES).zip(from.chunks(IO_BYTES));
        blocks.try_for_each(|(at, block)| self.put(&mut state, zone, at, block))
    }

    fn read_zone(&self, zone: u64, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let state = self.state.lock();
        let mut page = vec![0; self.page_bytes() as usize];
        let mut there = None;
        let begun = state.begun.get(&zone);
        for (at, block) in (at..).step_by(IO_BYTES).zip(into.chunks_mut(IO_BYTES)) {
            let (number, within) = self.spot(at);
            let part = within as usize..within as usize + IO_BYTES;
            let begun = begun.filter(|_| state.next[zone as usize] == number);
            if let Some(waits) = begun.and_then(|data| data.get(part.clone())) {
                block.copy_from_slice(waits);
                continue;
            }
            if there != Some(number) {
                self.flash.read(self.place(zone, number), &mut page)?;
                there = Some(number);
            }
            block.copy_from_slice(&page[part]);
        }
        Ok(())
    }

    fn erase_zone(&self, zone: u64) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        state.begun.remove(&zone);
        let used = |b: &EraseBlock| self.flash.next_page(*b) > 0 || self.flash.is_half_erased(*b);
        let mut blocks = self.blocks_of(zone).filter(used);
        let done = blocks.try_for_each(|block| self.flash.erase(block));
        match self.judge(&mut state, zone, done) {
            Err(e) if e.is_worn_out() => return Ok(()),
            done => done?,
        }
        state.uneven.remove(&zone);
        state.next[zone as usize] = 0;
        Ok(())
    }

    fn flush_zones(&self) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        let begun: Vec<u64> = state.begun.keys().copied().collect();
        let mut result = Ok(());
        for zone in begun {
            match self.program_begun(&mut state, zone) {
                // All else is made durable.
                Err(e) if e.is_worn_out() => result = Err(e),
                done => done?,
            }
        }
        self.flash.flush();
        result
    }

    fn written(&self, zone: u64) -> Option<u64> {
        let state = self.state.lock();
        let begun = state.begun.get(&zone).map_or(0, Vec::len);
        Some(state.next[zone as usize] * self.page_bytes() + begun as u64)
    }

    fn is_worn(&self, zone: u64) -> bool {
        self.state.lock().worn.contains(&zone)
    }

    fn access(&self) -> &'static str {
        "emulated flash"
    }

    fn trouble(&self) -> Option<String> {
        self.flash.trouble()
    }

    fn write_unit(&self) -> u64 {
        self.page_bytes()
    }

    fn unit(&self) -> Option<Unit> {
        let bytes = self.flash.geometry().block_bytes();
        Some(Unit::said(bytes, "the erase blocks of the flash"))
    }

    fn flash(&self) -> Option<FlashWork> {
        let counts = self.flash.counts();
        Some(FlashWork {
            page_bytes: self.page_bytes(),
            pages_programmed: counts.pages_programmed,
            pages_read: counts.pages_read,
            blocks_erased: counts.blocks_erased,
            out_of_order: counts.out_of_order,
            unreadable: counts.unreadable,
            device_ns: self.flash.pace().now_ns(),
        })
    }
}

/// The first two erase blocks; the tag is the metadata of a page.
impl LabelRows for FlashZones {
    fn used(&self, row: u32) -> u64 {
        self.flash.next_page(self.label_block(row)).into()
    }

    fn has_space(&self, row: u32) -> bool {
        let block = self.label_block(row);
        let pages = self.geometry().pages_per_block;
        let unfit = self.flash.is_half_erased(block) || self.flash.is_worn(block);
        self.flash.next_page(block) < pages && !unfit
    }

    fn page(&self, row: u32, page: u64) -> Result<Option<Version>, BlockError> {
        let mut data = vec![0; self.page_bytes() as usize];
        let at = PageAt {
            block: self.label_block(row),
            page: page as u32,
        };
        match self.flash.read(at, &mut data) {
            Ok(oob) => {
                let tag = oob.first_chunk().and_then(Tag::decode);
                Ok(tag.map(|tag| (tag, data[..IO_BYTES].into())))
            }
            // A power cut in the midst of programming it, or of erasing its block.
            Err(BlockError::TornPage { .. } | BlockError::HalfErased { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn program(&self, row: u32, tag: Tag, block: &[u8]) -> Result<(), BlockError> {
        let mut data = block.to_vec();
        data.resize(self.page_bytes() as usize, 0);
        let mut oob = NO_OOB;
        oob[..Tag::BYTES].copy_from_slice(&tag.encode());
        let block = self.label_block(row);
        let page = self.flash.next_page(block);
        let at = PageAt { block, page };
        self.flash.program(at, &data, &oob, Purpose::Written)
    }

    fn erase_row(&self, row: u32) -> Result<(), BlockError> {
        self.flash.erase(self.label_block(row))
    }

    fn flush_rows(&self) -> Result<(), BlockError> {
        self.flash.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
