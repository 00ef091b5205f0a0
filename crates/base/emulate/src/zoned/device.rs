//! An open-channel SSD as StageFS has it (§5.1.1): raw flash, no translation, no memory of
//! its own. 16 units work side by side; each has erase blocks of 2 MiB, of 256 pages of 8 KiB.
//!
//! * Pages of a block are programmed in order, each once. Anything else is refused with the
//!   block, the page and the page that is expected, and counted.
//! * A page has [`OOB_BYTES`] bytes of metadata of its own, programmed with it.
//! * Erased pages read as ones, metadata too.
//! * A block goes bad on request ([`Zoned::wear_out`]): from then on to program or erase it fails
//!   and changes nothing, and what it holds is read.
//! * Counted: pages read, programmed, moved; blocks erased; attempts out of order.
//! * Time as in [`UnitTimes`], on a virtual clock or waited for ([`Pace`]).
//!
//! # What survives
//!
//! The end of the process: everything that a call returned from, if the image is a file.
//!
//! A power cut of the modelled device ([`Zoned::cut_power`]): commands go to their unit's queue
//! and return; [`Zoned::flush`] returns when all are done. A unit works through its queue in
//! order, and units know nothing of each other. So of the commands behind the last flush each
//! unit has done the first ones, any number of them; the next one it may have been in the
//! middle of; the rest did not happen.
//!
//! * A page it was programming is *torn*: it counts as programmed, and reading it says
//!   [`BlockError::TornPage`], since its error-correcting code does not fit.
//! * A block it was erasing is *half erased*: its pages cannot be read or programmed before
//!   it is erased again.
//!
//! A power cut of the machine that runs the emulator: nothing is promised, the image is not synced.
//!
//! Lock order: `state` is taken alone. Nobody sleeps under it.

mod cut;
mod image;
#[cfg(test)]
mod tests;
mod units;

use std::ops::Sub;
use std::path::Path;

use parking_lot::Mutex;

use crate::UnitTimes;
use cut::InFlight;
use image::{Image, Record};
use shale_block::BlockError;
use shale_nvm::Pace;
use units::Units;

/// Bytes of metadata that go with a page.
pub const OOB_BYTES: usize = 56;

/// How a device is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Units that work side by side.
    pub units: u32,
    /// Erase blocks of a unit.
    pub blocks_per_unit: u32,
    /// Pages of an erase block.
    pub pages_per_block: u32,
    /// Bytes of a page, without metadata; a multiple of 512.
    pub page_bytes: u32,
}

impl Geometry {
    /// The device of StageFS §5.1.1 with space for `bytes`, rounded up to a whole block in each
    /// unit: 16 units, blocks of 2 MiB, pages of 8 KiB.
    pub fn stagefs(bytes: u64) -> Geometry {
        const UNITS: u32 = 16;
        Geometry {
            units: UNITS,
            blocks_per_unit: bytes.div_ceil(u64::from(UNITS) << 21).max(1) as u32,
            pages_per_block: 256,
            page_bytes: 8_192,
        }
    }

    /// Erase blocks of the device.
    pub fn blocks(&self) -> u32 {
        self.units * self.blocks_per_unit
    }

    /// Pages of the device.
    pub fn pages(&self) -> u64 {
        u64::from(self.blocks()) * u64::from(self.pages_per_block)
    }

    /// Bytes of an erase block.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.pages_per_block) * u64::from(self.page_bytes)
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        self.pages() * u64::from(self.page_bytes)
    }

    /// The erase block of a number below [`Geometry::blocks`]. Neighbours are of different units.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, number: u32) -> EraseBlock {
        assert!(number < self.blocks(), "there is no erase block {number}");
        EraseBlock(number)
    }

    /// The unit that an erase block is in.
    pub fn unit(&self, block: EraseBlock) -> u32 {
        block.0 % self.units
    }

    /// Number of a page, from 0 through all blocks.
    pub fn page_number(&self, at: PageAt) -> u64 {
        u64::from(at.block.0) * u64::from(self.pages_per_block) + u64::from(at.page)
    }

    /// The page of such a number.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page(&self, number: u64) -> PageAt {
        PageAt {
            block: self.block((number / u64::from(self.pages_per_block)) as u32),
            page: (number % u64::from(self.pages_per_block)) as u32,
        }
    }

    fn is_sound(&self) -> bool {
        let blocks = u64::from(self.units) * u64::from(self.blocks_per_unit);
        (1..=1 << 24).contains(&blocks)
            && (1..=1 << 16).contains(&self.pages_per_block)
            && (512..=1 << 20).contains(&self.page_bytes)
            && self.page_bytes.is_multiple_of(512)
    }
}

/// An erase block of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EraseBlock(u32);

impl EraseBlock {
    /// Its number on the device.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A page of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageAt {
    /// Its erase block.
    pub block: EraseBlock,
    /// Which page of the block, from 0.
    pub page: u32,
}

/// Why a page is programmed; only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Somebody wrote that.
    Written,
    /// It was elsewhere before, and that block is to be erased.
    Moved,
}

/// What a device has done. `later - earlier` is what happened between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlashCounts {
    /// Pages read.
    pub pages_read: u64,
    /// Metadata read alone.
    pub oob_read: u64,
    /// Pages programmed, of any [`Purpose`].
    pub pages_programmed: u64,
    /// Those of [`Purpose::Moved`].
    pub pages_moved: u64,
    /// Blocks erased.
    pub blocks_erased: u64,
    /// Attempts to program a page that was not the next one; all refused.
    pub out_of_order: u64,
    /// Reads of torn pages and of half erased blocks; all refused.
    pub unreadable: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Sub for FlashCounts {
    type Output = FlashCounts;

    fn sub(self, earlier: FlashCounts) -> FlashCounts {
        FlashCounts {
            pages_read: self.pages_read - earlier.pages_read,
            oob_read: self.oob_read - earlier.oob_read,
            pages_programmed: self.pages_programmed - earlier.pages_programmed,
            pages_moved: self.pages_moved - earlier.pages_moved,
            blocks_erased: self.blocks_erased - earlier.blocks_erased,
            out_of_order: self.out_of_order - earlier.out_of_order,
            unreadable: self.unreadable - earlier.unreadable,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

/// How a device behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// How long units are busy. Default [`UnitTimes::STAGEFS`].
    pub times: UnitTimes,
    /// What waiting is. Default virtual time.
    pub pace: Pace,
    /// Whether [`Zoned::cut_power`] can be used: what is under way is remembered, an erase with
    /// all that the block held. Default `false`.
    pub cuts: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            times: UnitTimes::STAGEFS,
            pace: Pace::of_virtual_time(),
            cuts: false,
        }
    }
}

/// What is known of an erase block.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// The page that can be programmed next.
    next: u32,
    erased: u32,
    half_erased: bool,
    worn: bool,
}

impl Block {
    /// Refuses to change it where it is worn out.
    fn check(&self, block: EraseBlock) -> Result<(), BlockError> {
        match self.worn {
            true => Err(BlockError::WornBlock { block: block.0 }),
            false => Ok(()),
        }
    }
}

struct State {
    blocks: Vec<Block>,
    units: Units,
    in_flight: Vec<InFlight>,
    counts: FlashCounts,
}

impl State {
    /// Counts an attempt to program what cannot be programmed now.
    fn refuse(&mut self, at: PageAt) -> BlockError {
        self.counts.out_of_order += 1;
        BlockError::OutOfOrder {
            block: at.block.0,
            page: at.page,
            expected: self.blocks[at.block.0 as usize].next,
        }
    }
}

/// An open-channel SSD.
pub struct Zoned {
    image: Image,
    behaviour: Behaviour,
    state: Mutex<State>,
}

impl std::fmt::Debug for Zoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zoned")
            .field("image", &self.image)
            .field("behaviour", &self.behaviour)
            .finish_non_exhaustive()
    }
}

impl Zoned {
    /// An erased device in memory. Gone when it is dropped.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn memory(geometry: Geometry, behaviour: Behaviour) -> Result<Self, BlockError> {
        assert!(geometry.is_sound(), "{geometry:?}");
        Self::with(Image::memory(geometry)?, behaviour)
    }

    /// An erased device in a file, whatever the file held.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn create(
        path: &Path,
        geometry: Geometry,
        behaviour: Behaviour,
    ) -> Result<Self, BlockError> {
        assert!(geometry.is_sound(), "{geometry:?}");
        Self::with(Image::create(path, geometry)?, behaviour)
    }

    /// The device in a file, as it was left.
    ///
    /// # Errors
    /// [`BlockError::Image`] if the file is something else; the operating system refuses.
    pub fn open(path: &Path, behaviour: Behaviour) -> Result<Self, BlockError> {
        Self::with(Image::open(path)?, behaviour)
    }

    fn with(image: Image, behaviour: Behaviour) -> Result<Self, BlockError> {
        let units = Units::new(image.geometry().units, behaviour.times);
        let state = State {
            blocks: blocks_of(&image)?,
            units,
            in_flight: Vec::new(),
            counts: FlashCounts::default(),
        };
        Ok(Zoned {
            image,
            behaviour,
            state: Mutex::new(state),
        })
    }

    /// How it is divided.
    pub fn geometry(&self) -> Geometry {
        self.image.geometry()
    }

    /// What is wrong with its image as a whole, if anything is.
    pub fn trouble(&self) -> Option<String> {
        self.image.trouble()
    }

    /// Its clock.
    pub fn pace(&self) -> &Pace {
        &self.behaviour.pace
    }

    /// What it has done since it was made or opened.
    pub fn counts(&self) -> FlashCounts {
        self.state.lock().counts
    }

    /// The page of a block that can be programmed next; the number of pages if it is full.
    pub fn next_page(&self, block: EraseBlock) -> u32 {
        self.state.lock().blocks[block.0 as usize].next
    }

    /// How often a block was erased in its life.
    pub fn erase_count(&self, block: EraseBlock) -> u32 {
        self.state.lock().blocks[block.0 as usize].erased
    }

    /// Whether a block has to be erased because that was cut short.
    pub fn is_half_erased(&self, block: EraseBlock) -> bool {
        self.state.lock().blocks[block.0 as usize].half_erased
    }

    /// Whether a block is worn out.
    pub fn is_worn(&self, block: EraseBlock) -> bool {
        self.state.lock().blocks[block.0 as usize].worn
    }

    /// Wears a block out: it can only be read from now on, also by a later opener of the image.
    ///
    /// # Errors
    /// What the operating system says of the image.
    pub fn wear_out(&self, block: EraseBlock) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        let is = &mut state.blocks[block.0 as usize];
        is.worn = true;
        self.image.set_block(block, *is)?;
        let in_flight = state.in_flight.iter_mut();
        in_flight.for_each(|command| command.wear_out(block));
        Ok(())
    }

    /// Programs a page. Returns when the unit has taken the command: durable after [`Zoned::flush`].
    ///
    /// # Errors
    /// [`BlockError::OutOfOrder`] if it is not the next page of its block;
    /// [`BlockError::HalfErased`]; [`BlockError::WornBlock`]; what the operating system says of
    /// the image.
    ///
    /// # Panics
    /// If `data` is not one page.
    pub fn program(
        &self,
        at: PageAt,
        data: &[u8],
        oob: &[u8; OOB_BYTES],
        purpose: Purpose,
    ) -> Result<(), BlockError> {
        assert_eq!(data.len(), self.geometry().page_bytes as usize);
        let mut state = self.state.lock();
        let block = state.blocks[at.block.0 as usize];
        block.check(at.block)?;
        if block.half_erased {
            return Err(BlockError::HalfErased { block: at.block.0 });
        }
        if block.next != at.page || at.page >= self.geometry().pages_per_block {
            return Err(state.refuse(at));
        }
        let record = Record {
            checksum: image::checksum(data, oob),
            oob: *oob,
        };
        self.image.program(at, data, &record)?;
        state.blocks[at.block.0 as usize].next = at.page + 1;
        state.counts.pages_programmed += 1;
        state.counts.pages_moved += u64::from(purpose == Purpose::Moved);
        if self.behaviour.cuts {
            state.in_flight.push(InFlight::Program(at));
        }
        let unit = self.geometry().unit(at.block);
        let until_ns = state.units.program(unit, self.pace().now_ns());
        drop(state);
        self.pace().wait_until_ns(until_ns);
        Ok(())
    }

    /// Counts an attempt to write to a page which its driver refuses, since the page is not where its
    /// zone goes on.
    pub(crate) fn refuse(&self, at: PageAt) -> BlockError {
        self.state.lock().refuse(at)
    }

    /// Reads a page and its metadata. An erased one is all ones.
    ///
    /// # Errors
    /// [`BlockError::TornPage`], [`BlockError::HalfErased`]; what the operating system says.
    ///
    /// # Panics
    /// If `into` is not one page.
    pub fn read(&self, at: PageAt, into: &mut [u8]) -> Result<[u8; OOB_BYTES], BlockError> {
        assert_eq!(into.len(), self.geometry().page_bytes as usize);
        let mut state = self.state.lock();
        state.counts.pages_read += 1;
        let unit = self.geometry().unit(at.block);
        let until_ns = state.units.read(unit, self.pace().now_ns());
        let found = self.look(&mut state, at, into);
        drop(state);
        self.pace().wait_until_ns(until_ns);
        found
    }

    /// Reads the metadata of a page alone, in no time: a translation layer keeps that of a
    /// block in the block's last pages, or in memory.
    ///
    /// # Errors
    /// As [`Zoned::read`].
    pub fn read_oob(&self, at: PageAt) -> Result<[u8; OOB_BYTES], BlockError> {
        let mut state = self.state.lock();
        state.counts.oob_read += 1;
        let mut page = vec![0; self.geometry().page_bytes as usize];
        self.look(&mut state, at, &mut page)
    }

    fn look(
        &self,
        state: &mut State,
        at: PageAt,
        into: &mut [u8],
    ) -> Result<[u8; OOB_BYTES], BlockError> {
        let block = state.blocks[at.block.0 as usize];
        if block.half_erased {
            state.counts.unreadable += 1;
            return Err(BlockError::HalfErased { block: at.block.0 });
        }
        let Some(record) = self.image.record(at)?.filter(|_| at.page < block.next) else {
            into.fill(0xff);
            return Ok([0xff; OOB_BYTES]);
        };
        self.image.data(at, into)?;
        if image::checksum(into, &record.oob) != record.checksum {
            state.counts.unreadable += 1;
            return Err(BlockError::TornPage {
                block: at.block.0,
                page: at.page,
            });
        }
        Ok(record.oob)
    }

    /// Erases a block, whatever it holds. Returns when the unit has taken the command: commands
    /// of *other* units before it may come later unless [`Zoned::flush`] is between.
    ///
    /// # Errors
    /// [`BlockError::WornBlock`]; what the operating system says of the image.
    pub fn erase(&self, block: EraseBlock) -> Result<(), BlockError> {
        let mut state = self.state.lock();
        state.blocks[block.0 as usize].check(block)?;
        if self.behaviour.cuts {
            let before = self.keep(&state, block)?;
            state.in_flight.push(before);
        }
        let mut is = Block {
            erased: state.blocks[block.0 as usize].erased + 1,
            half_erased: true,
            ..Block::default()
        };
        // Half erased while it happens: so a process that is killed leaves what a cut would.
        self.image.set_block(block, is)?;
        self.image.wipe(PageAt { block, page: 0 })?;
        is.half_erased = false;
        self.image.set_block(block, is)?;
        state.blocks[block.0 as usize] = is;
        state.counts.blocks_erased += 1;
        let unit = self.geometry().unit(block);
        let until_ns = state.units.erase(unit, self.pace().now_ns());
        drop(state);
        self.pace().wait_until_ns(until_ns);
        Ok(())
    }

    /// Waits until all units have done their requests.
    pub fn flush(&self) {
        let mut state = self.state.lock();
        state.in_flight.clear();
        state.counts.flushes += 1;
        let until_ns = state.units.idle_at_ns();
        drop(state);
        self.pace().wait_until_ns(until_ns);
    }
}

fn blocks_of(image: &Image) -> Result<Vec<Block>, BlockError> {
    let geometry = image.geometry();
    let all = 0..geometry.blocks();
    all.map(|number| image.block(geometry.block(number)))
        .collect()
}
