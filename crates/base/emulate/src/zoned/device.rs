//! The device: what each command does to its state and its image.

mod cut;
#[cfg(test)]
mod tests;

use std::path::Path;

use parking_lot::Mutex;

use super::behaviour::{Behaviour, FlashCounts, Purpose};
use super::geometry::{EraseBlock, Geometry, OOB_BYTES, PageAt};
use super::image::{self, Block, Image, Record};
use super::units::Units;
use cut::InFlight;
use shale_block::BlockError;
use shale_nvm::Pace;

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
