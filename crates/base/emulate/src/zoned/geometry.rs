//! How a device is divided: units, erase blocks, pages.

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

    /// Whether it is within the limits of the emulator.
    pub(super) fn is_sound(&self) -> bool {
        let blocks = u64::from(self.units) * u64::from(self.blocks_per_unit);
        (1..=1 << 24).contains(&blocks)
            && (1..=1 << 16).contains(&self.pages_per_block)
            && (512..=1 << 20).contains(&self.page_bytes)
            && self.page_bytes.is_multiple_of(512)
    }
}

/// An erase block of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EraseBlock(pub(super) u32);

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
