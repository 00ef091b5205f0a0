//! Which page is programmed next: streams over all units.
//!
//! Each stream has at most one open block in each unit and goes round the units, so that they
//! work side by side. What is moved goes to other blocks than what is written: it is
//! colder. A block is opened with the fewest erases among the free ones of its unit (StageFS:
//! dynamic wear levelling).

use crate::zoned::{EraseBlock, PageAt, Zoned};

/// Who programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// The user of the device.
    Written = 0,
    /// Cleaning.
    Moved = 1,
}

const STREAMS: usize = 2;

/// Free erase blocks that only cleaning may open: one to move a whole block to, one for lists of
/// trimmed blocks, and as many again for what halves of pages cost.
pub(super) const RESERVE: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// Begun before the device was opened; can be gone on with.
    Begun,
    Open,
    Full,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    block: EraseBlock,
    next: u32,
}

#[derive(Debug)]
pub(super) struct Place {
    pages_per_block: u32,
    units: usize,
    uses: Vec<Use>,
    free: Vec<Vec<EraseBlock>>,
    free_blocks: usize,
    begun: Vec<Vec<EraseBlock>>,
    open: [Vec<Option<Open>>; STREAMS],
    turn: [usize; STREAMS],
}

impl Place {
    /// Sorts the blocks of a device by what they hold.
    pub fn of(flash: &Zoned) -> Self {
        let geometry = flash.geometry();
        let units = geometry.units as usize;
        let mut place = Place {
            pages_per_block: geometry.pages_per_block,
            units,
            uses: vec![Use::Full; geometry.blocks() as usize],
            free: vec![Vec::new(); units],
            free_blocks: 0,
            begun: vec![Vec::new(); units],
            open: [vec![None; units], vec![None; units]],
            turn: [0; STREAMS],
        };
        for number in 0..geometry.blocks() {
            let block = geometry.block(number);
            let next = flash.next_page(block);
            if next == 0 {
                place.freed(block);
            } else if next < geometry.pages_per_block {
                place.uses[number as usize] = Use::Begun;
                place.begun[number as usize % units].push(block);
            }
        }
        place
    }

    /// A block is about to be cleaned: nobody goes on with it.
    pub fn cleans(&mut self, block: EraseBlock) {
        let number = block.number() as usize;
        self.uses[number] = Use::Full;
        self.begun[number % self.units].retain(|begun| *begun != block);
    }

    /// A block is erased.
    pub fn freed(&mut self, block: EraseBlock) {
        let number = block.number() as usize;
        self.uses[number] = Use::Free;
        self.free[number % self.units].push(block);
        self.free_blocks += 1;
    }

    /// Erase blocks that hold nothing.
    pub fn free_blocks(&self) -> usize {
        self.free_blocks
    }

    /// Whether a block may be cleaned: no stream is writing to it, and it is not free.
    pub fn can_clean(&self, block: EraseBlock) -> bool {
        matches!(self.uses[block.number() as usize], Use::Full | Use::Begun)
    }

    fn may_open(&self, stream: Stream) -> bool {
        match stream {
            Stream::Written => self.free_blocks > RESERVE,
            Stream::Moved => self.free_blocks > 0,
        }
    }

    /// Whether [`Place::take`] finds a page.
    pub fn has_page(&self, stream: Stream) -> bool {
        self.may_open(stream)
            || self.open[stream as usize].iter().any(Option::is_some)
            || self.begun.iter().any(|begun| !begun.is_empty())
    }

    /// The page to program next; `None` if there is none for this stream. It must be programmed.
    pub fn take(&mut self, flash: &Zoned, stream: Stream) -> Option<PageAt> {
        // Cleaning opens a block of the reserve only where nothing else has space.
        let thrifty = self.free_blocks <= RESERVE;
        let ways = [!thrifty, true];
        for open_freely in ways.into_iter().skip(usize::from(!thrifty)) {
            for step in 0..self.units {
                let unit = (self.turn[stream as usize] + step) % self.units;
                let opens = open_freely && self.may_open(stream);
                if let Some(page) = self.take_in(flash, stream, unit, opens) {
                    self.turn[stream as usize] = (unit + 1) % self.units;
                    return Some(page);
                }
            }
        }
        None
    }

    fn take_in(
        &mut self,
        flash: &Zoned,
        stream: Stream,
        unit: usize,
        opens: bool,
    ) -> Option<PageAt> {
        if self.open[stream as usize][unit].is_none() {
            self.open[stream as usize][unit] = self.open_block(flash, unit, opens);
        }
        let open = self.open[stream as usize][unit].as_mut()?;
        let page = PageAt {
            block: open.block,
            page: open.next,
        };
        open.next += 1;
        if open.next == self.pages_per_block {
            self.uses[page.block.number() as usize] = Use::Full;
            self.open[stream as usize][unit] = None;
        }
        Some(page)
    }

    fn open_block(&mut self, flash: &Zoned, unit: usize, opens: bool) -> Option<Open> {
        let block = match self.begun[unit].pop() {
            Some(block) => block,
            None => {
                let free = self.free[unit].iter().enumerate().filter(|_| opens);
                let (n, _) = free.min_by_key(|(_, block)| flash.erase_count(**block))?;
                self.free_blocks -= 1;
                self.free[unit].swap_remove(n)
            }
        };
        self.uses[block.number() as usize] = Use::Open;
        Some(Open {
            block,
            next: flash.next_page(block),
        })
    }
}
