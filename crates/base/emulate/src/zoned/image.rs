//! Where the emulator keeps what is on the flash: a file, or memory that looks like one.
//!
//! | Bytes | What |
//! | --- | --- |
//! | 0 … 4095 | magic, version, geometry |
//! | then 8 per erase block | times erased (u32), flags (u32): 1 half erased, 2 worn out |
//! | then 64 per page | programmed (u32), checksum (u32), 56 bytes out of band |
//! | then, at a multiple of 4096 | the pages |
//!
//! Integers are little-endian. An erased page is a hole in the file; it reads as ones
//! because its record says that it is erased. Data is written before its record, so a
//! process that is killed between leaves an erased page.

use std::path::Path;

use super::geometry::{EraseBlock, Geometry, OOB_BYTES, PageAt};
use shale_block::{BlockDevice, BlockError, FileDevice};
use shale_nvm::crc32c;

const MAGIC: u32 = u32::from_le_bytes(*b"SHoc");
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 4096;
const BLOCK_BYTES: u64 = 8;
const RECORD_BYTES: u64 = 8 + OOB_BYTES as u64;
const PROGRAMMED: u32 = u32::from_le_bytes(*b"prog");
/// Flags of an erase block.
const HALF_ERASED: u32 = 1;
const WORN: u32 = 2;

/// Whether the file is an image of flash, by its first bytes. It is not locked, and may be damaged.
pub fn is_image(path: &Path) -> bool {
    let mut magic = [0; 4];
    let file = std::fs::File::open(path);
    let read = file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && u32::from_le_bytes(magic) == MAGIC
}

/// The file with the numbers to find things in it.
#[derive(Debug)]
pub(super) struct Image {
    medium: FileDevice,
    geometry: Geometry,
}

/// What is known of an erase block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Block {
    /// The page that can be programmed next.
    pub next: u32,
    pub erased: u32,
    pub half_erased: bool,
    pub worn: bool,
}

impl Block {
    /// Refuses to change it where it is worn out.
    pub fn check(&self, block: EraseBlock) -> Result<(), BlockError> {
        match self.worn {
            true => Err(BlockError::WornBlock { block: block.0 }),
            false => Ok(()),
        }
    }
}

/// What is known of a page beside its data.
pub(super) struct Record {
    pub checksum: u32,
    pub oob: [u8; OOB_BYTES],
}

/// The error-correcting code of a page, which only finds errors here.
pub(super) fn checksum(data: &[u8], oob: &[u8; OOB_BYTES]) -> u32 {
    let state = crc32c::update(crc32c::START, data);
    crc32c::finish(crc32c::update(state, oob))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn records_at(geometry: Geometry) -> u64 {
    HEADER_BYTES + u64::from(geometry.blocks()) * BLOCK_BYTES
}

fn data_at(geometry: Geometry) -> u64 {
    (records_at(geometry) + geometry.pages() * RECORD_BYTES).next_multiple_of(4096)
}

fn image_bytes(geometry: Geometry) -> u64 {
    data_at(geometry) + geometry.pages() * u64::from(geometry.page_bytes)
}

impl Image {
    pub fn memory(geometry: Geometry) -> Result<Self, BlockError> {
        Self::new(FileDevice::memory(image_bytes(geometry))?, geometry)
    }

    /// Makes an image of erased flash, whatever the file held.
    pub fn create(path: &Path, geometry: Geometry) -> Result<Self, BlockError> {
        let medium = FileDevice::create(path, image_bytes(geometry))?;
        medium.discard(0, medium.bytes())?;
        Self::new(medium, geometry)
    }

    fn new(medium: FileDevice, geometry: Geometry) -> Result<Self, BlockError> {
        let Geometry {
            units,
            blocks_per_unit,
            pages_per_block,
            page_bytes,
        } = geometry;
        let words = [
            MAGIC,
            VERSION,
            units,
            blocks_per_unit,
            pages_per_block,
            page_bytes,
        ];
        medium.write(0, &words.map(u32::to_le_bytes).concat())?;
        Ok(Image { medium, geometry })
    }

    /// Opens an image and finds out its geometry.
    pub fn open(path: &Path) -> Result<Self, BlockError> {
        let medium = FileDevice::open(path)?;
        let refuse = |what, expected: u64, found: u64| BlockError::Image {
            path: path.to_owned(),
            what,
            expected,
            found,
        };
        if medium.bytes() < HEADER_BYTES {
            return Err(refuse("length", HEADER_BYTES, medium.bytes()));
        }
        let mut header = [0; 24];
        medium.read(0, &mut header)?;
        let field = |n: usize| word(&header, n * 4);
        for (n, what, expected) in [(0, "magic", MAGIC), (1, "version", VERSION)] {
            if field(n) != expected {
                return Err(refuse(what, expected.into(), field(n).into()));
            }
        }
        let geometry = Geometry {
            units: field(2),
            blocks_per_unit: field(3),
            pages_per_block: field(4),
            page_bytes: field(5),
        };
        if !geometry.is_sound() {
            return Err(refuse("geometry", 1, 0));
        }
        if medium.bytes() != image_bytes(geometry) {
            return Err(refuse("length", image_bytes(geometry), medium.bytes()));
        }
        Ok(Image { medium, geometry })
    }

    pub fn trouble(&self) -> Option<String> {
        self.medium.trouble()
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn record_at(&self, at: PageAt) -> u64 {
        records_at(self.geometry) + self.geometry.page_number(at) * RECORD_BYTES
    }

    fn page_at(&self, at: PageAt) -> u64 {
        let page_bytes = u64::from(self.geometry.page_bytes);
        data_at(self.geometry) + self.geometry.page_number(at) * page_bytes
    }

    /// What is known of a block.
    pub fn block(&self, block: EraseBlock) -> Result<Block, BlockError> {
        let mut bytes = [0; BLOCK_BYTES as usize];
        let at = HEADER_BYTES + u64::from(block.number()) * BLOCK_BYTES;
        self.medium.read(at, &mut bytes)?;
        let flags = word(&bytes, 4);
        Ok(Block {
            next: self.programmed(block)?,
            erased: word(&bytes, 0),
            half_erased: flags & HALF_ERASED != 0,
            worn: flags & WORN != 0,
        })
    }

    /// Notes all of that but its pages.
    pub fn set_block(&self, block: EraseBlock, is: Block) -> Result<(), BlockError> {
        let flags = HALF_ERASED * u32::from(is.half_erased) + WORN * u32::from(is.worn);
        let words = [is.erased, flags];
        let at = HEADER_BYTES + u64::from(block.number()) * BLOCK_BYTES;
        self.medium.write(at, &words.map(u32::to_le_bytes).concat())
    }

    /// The record of a page, `None` while it is erased.
    pub fn record(&self, at: PageAt) -> Result<Option<Record>, BlockError> {
        let mut bytes = [0; RECORD_BYTES as usize];
        self.medium.read(self.record_at(at), &mut bytes)?;
        let mut oob = [0; OOB_BYTES];
        oob.copy_from_slice(&bytes[8..]);
        Ok((word(&bytes, 0) == PROGRAMMED).then(|| Record {
            checksum: word(&bytes, 4),
            oob,
        }))
    }

    pub fn data(&self, at: PageAt, into: &mut [u8]) -> Result<(), BlockError> {
        self.medium.read(self.page_at(at), into)
    }

    /// Writes a page with the code of what it should hold, `checksum`.
    pub fn program(&self, at: PageAt, data: &[u8], record: &Record) -> Result<(), BlockError> {
        self.medium.write(self.page_at(at), data)?;
        let mut bytes = [0; RECORD_BYTES as usize];
        bytes[..4].copy_from_slice(&PROGRAMMED.to_le_bytes());
        bytes[4..8].copy_from_slice(&record.checksum.to_le_bytes());
        bytes[8..].copy_from_slice(&record.oob);
        self.medium.write(self.record_at(at), &bytes)
    }

    /// Takes pages from `from` to the end of their block away.
    pub fn wipe(&self, from: PageAt) -> Result<(), BlockError> {
        let pages = u64::from(self.geometry.pages_per_block - from.page);
        let records = vec![0; (pages * RECORD_BYTES) as usize];
        self.medium.write(self.record_at(from), &records)?;
        let bytes = pages * u64::from(self.geometry.page_bytes);
        self.medium.discard(self.page_at(from), bytes)
    }

    /// Pages of a block that are programmed: they are the first.
    fn programmed(&self, block: EraseBlock) -> Result<u32, BlockError> {
        let pages = self.geometry.pages_per_block;
        let mut bytes = vec![0; pages as usize * RECORD_BYTES as usize];
        let first = PageAt { block, page: 0 };
        self.medium.read(self.record_at(first), &mut bytes)?;
        let mut records = bytes.chunks_exact(RECORD_BYTES as usize);
        let last = records.rposition(|record| word(record, 0) == PROGRAMMED);
        Ok(last.map_or(0, |n| n as u32 + 1))
    }
}
