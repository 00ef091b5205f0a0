//! The label blocks of a device on a medium without overwriting: blocks that are rewritten.
//!
//! Each version is a page, behind the one before, in one of two rows of pages. When that is full the
//! other one is erased and gets the newest versions of all; the full one stays until then. So at
//! any moment one of the two holds what was flushed last.

use super::IO_BYTES;
use crate::error::BlockError;

/// Label blocks that there are.
const LABELS: usize = 2;
/// Rows of pages that they are kept in.
pub const LABEL_ROWS: u32 = 2;
/// First bytes of the metadata of their pages.
const MAGIC: [u8; 8] = *b"SHLABEL\0";

/// What is written beside a version of a label block: which block it is, and the version's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    which: usize,
    sequence: u64,
}

impl Tag {
    /// Bytes of a tag.
    pub const BYTES: usize = 17;

    /// As it is written.
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16] = self.which as u8;
        bytes
    }

    /// The tag that was written so. `None`: these bytes are none.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Tag> {
        let which = usize::from(bytes[16]);
        let mut sequence = [0; 8];
        sequence.copy_from_slice(&bytes[8..16]);
        let sequence = u64::from_le_bytes(sequence);
        (bytes[..8] == MAGIC && which < LABELS).then_some(Tag { which, sequence })
    }
}

/// A version of a label block: its tag, and the block.
pub type Version = (Tag, Box<[u8]>);

/// Two rows of pages, each written in order and erased as a whole.
pub trait LabelRows {
    /// Pages of a row that are used up.
    fn used(&self, row: u32) -> u64;

    /// Whether one more page can be programmed before the row is erased.
    fn has_space(&self, row: u32) -> bool;

    /// What a page holds that is used up; `None`: no version.
    ///
    /// # Errors
    /// What the medium says.
    fn page(&self, row: u32, page: u64) -> Result<Option<Version>, BlockError>;

    /// Programs the next page of a row.
    ///
    /// # Errors
    /// What the medium says.
    fn program(&self, row: u32, tag: Tag, block: &[u8]) -> Result<(), BlockError>;

    /// Erases a row.
    ///
    /// # Errors
    /// What the medium says.
    fn erase_row(&self, row: u32) -> Result<(), BlockError>;

    /// Makes durable what was programmed.
    ///
    /// # Errors
    /// What the medium says.
    fn flush_rows(&self) -> Result<(), BlockError>;
}

/// The label blocks as they are now.
pub(crate) struct Labels {
    /// The row of the newest version.
    current: u32,
    /// Counts versions.
    sequence: u64,
    held: [Option<Box<[u8]>>; LABELS],
}

impl Labels {
    /// Finds the newest versions.
    pub(crate) fn open(rows: &impl LabelRows) -> Result<Labels, BlockError> {
        let mut labels = Labels {
            current: 0,
            sequence: 0,
            held: Default::default(),
        };
        let mut newest = [0; LABELS];
        for row in 0..LABEL_ROWS {
            let mut found = [false; LABELS];
            for page in (0..rows.used(row)).rev() {
                let Some((tag, block)) = rows.page(row, page)? else {
                    continue;
                };
                let Tag { which, sequence } = tag;
                found[which] = true;
                if sequence > newest[which] {
                    newest[which] = sequence;
                    labels.held[which] = Some(block);
                }
                if sequence > labels.sequence {
                    (labels.sequence, labels.current) = (sequence, row);
                }
                // What is before is older.
                if found == [true; LABELS] {
                    break;
                }
            }
        }
        Ok(labels)
    }

    /// Copies block `which` of the label area out: zeros if it was never written.
    pub(crate) fn get(&self, which: u64, into: &mut [u8]) {
        match self.held.get(which as usize).and_then(Option::as_ref) {
            Some(held) => into.copy_from_slice(held),
            None => into.fill(0),
        }
    }

    /// Writes a new version of block `which`.
    ///
    /// # Panics
    /// If it is no label block.
    pub(crate) fn put(
        &mut self,
        rows: &impl LabelRows,
        which: u64,
        from: &[u8],
    ) -> Result<(), BlockError> {
        let which = which as usize;
        assert!(which < LABELS, "block {which} of a device is no label");
        assert_eq!(from.len(), IO_BYTES);
        self.held[which] = Some(from.into());
        if rows.has_space(self.current) {
            return self.program(rows, which);
        }
        // The full row must hold on until the other one has it all.
        rows.flush_rows()?;
        self.current = (self.current + 1) % LABEL_ROWS;
        rows.erase_row(self.current)?;
        (0..LABELS).try_for_each(|which| self.program(rows, which))
    }

    fn program(&mut self, rows: &impl LabelRows, which: usize) -> Result<(), BlockError> {
        let Some(held) = &self.held[which] else {
            return Ok(());
        };
        self.sequence += 1;
        let sequence = self.sequence;
        rows.program(self.current, Tag { which, sequence }, held)
    }
}
