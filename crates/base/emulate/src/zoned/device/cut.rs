//! A power cut: which commands each unit had done.
//!
//! The image holds all commands as done. A cut undoes the last ones of each unit, from the
//! last to the first; what it leaves follows from the seed alone.

use std::collections::BTreeMap;

use super::{State, Zoned, blocks_of};
use crate::zoned::geometry::{EraseBlock, PageAt};
use crate::zoned::image::{self, Block, Record};
use crate::zoned::units::Units;
use shale_block::BlockError;
use shale_sys::random::next_random;

/// A command that a unit may not have done yet, with what there was before.
pub(super) enum InFlight {
    Program(PageAt),
    Erase {
        block: EraseBlock,
        was: Block,
        /// Data and record of its programmed pages.
        pages: Vec<(Vec<u8>, Record)>,
    },
}

impl InFlight {
    /// A block has worn out: a power cut does not change that.
    pub(super) fn wear_out(&mut self, worn: EraseBlock) {
        if let InFlight::Erase { block, was, .. } = self
            && *block == worn
        {
            was.worn = true;
        }
    }

    fn block(&self) -> EraseBlock {
        match self {
            InFlight::Program(at) => at.block,
            InFlight::Erase { block, .. } => *block,
        }
    }
}

impl Zoned {
    /// What a block holds, before it is erased.
    pub(super) fn keep(&self, state: &State, block: EraseBlock) -> Result<InFlight, BlockError> {
        let was = state.blocks[block.0 as usize];
        let mut pages = Vec::new();
        for page in 0..was.next {
            let at = PageAt { block, page };
            let Some(record) = self.image.record(at)? else {
                continue;
            };
            let mut data = vec![0; self.geometry().page_bytes as usize];
            self.image.data(at, &mut data)?;
            pages.push((data, record));
        }
        Ok(InFlight::Erase { block, was, pages })
    }

    /// Cuts power, and gives it back. What is left of the commands since the last flush is
    /// one of the states that the module describes, chosen by `seed`; counters go on.
    ///
    /// # Errors
    /// What the operating system says of the image.
    ///
    /// # Panics
    /// If the device was not made with [`crate::zoned::Behaviour::cuts`].
    pub fn cut_power(&self, seed: u64) -> Result<(), BlockError> {
        assert!(self.behaviour.cuts, "made without cuts");
        let mut state = self.state.lock();
        let mut random = seed;
        let mut queues: BTreeMap<u32, Vec<InFlight>> = BTreeMap::new();
        for command in std::mem::take(&mut state.in_flight) {
            let unit = self.geometry().unit(command.block());
            queues.entry(unit).or_default().push(command);
        }
        for queue in queues.into_values() {
            let done = next_random(&mut random) as usize % (queue.len() + 1);
            let in_its_midst = next_random(&mut random).is_multiple_of(2);
            let undone: Vec<_> = queue.into_iter().skip(done).enumerate().collect();
            for (n, command) in undone.into_iter().rev() {
                match n == 0 && in_its_midst {
                    true => self.tear(command, next_random(&mut random))?,
                    false => self.undo(command)?,
                }
            }
        }
        state.blocks = blocks_of(&self.image)?;
        state.units = Units::new(self.geometry().units, self.behaviour.times);
        Ok(())
    }

    fn undo(&self, command: InFlight) -> Result<(), BlockError> {
        match command {
            InFlight::Program(at) => self.image.wipe(at),
            InFlight::Erase { block, was, pages } => {
                self.image.set_block(block, was)?;
                for (page, (data, record)) in (0..).zip(pages) {
                    self.image.program(PageAt { block, page }, &data, &record)?;
                }
                Ok(())
            }
        }
    }

    fn tear(&self, command: InFlight, random: u64) -> Result<(), BlockError> {
        match command {
            InFlight::Program(at) => {
                let Some(mut record) = self.image.record(at)? else {
                    return Ok(());
                };
                let mut data = vec![0; self.geometry().page_bytes as usize];
                self.image.data(at, &mut data)?;
                // Cells that were not reached are still erased.
                let reached = random as usize % data.len();
                data[reached..].fill(0xff);
                // A page that ends with ones may be whole by then; not what was asked for.
                record.checksum ^=
                    u32::from(image::checksum(&data, &record.oob) == record.checksum);
                self.image.program(at, &data, &record)
            }
            InFlight::Erase { block, was, .. } => {
                let is = Block {
                    erased: was.erased + 1,
                    half_erased: true,
                    ..was
                };
                self.image.set_block(block, is)
            }
        }
    }
}
