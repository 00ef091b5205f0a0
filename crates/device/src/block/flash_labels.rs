//! The label blocks of a device on raw flash: blocks that are rewritten, on a medium without
//! overwriting.
//!
//! Each version is a page, behind the one before, in one of two erase blocks. When that is full the
//! other one is erased and gets the newest versions of all; the full one stays until then. So at
//! any moment one of the two holds what was flushed last.

use super::IO_BYTES;
use crate::error::DeviceError;
use crate::zoned::{EraseBlock, OOB_BYTES, PageAt, Purpose, Zoned};

/// Label blocks that there are.
const LABELS: usize = 2;
/// Erase blocks that they take.
pub(super) const LABEL_ERASE_BLOCKS: u32 = 2;
/// First bytes of the metadata of their pages.
const MAGIC: [u8; 8] = *b"SHLABEL\0";

/// The label blocks as they are now.
pub(super) struct Labels {
    /// The erase block of the newest version.
    current: u32,
    /// Counts versions.
    sequence: u64,
    held: [Option<Box<[u8]>>; LABELS],
}

fn oob(which: usize, sequence: u64) -> [u8; OOB_BYTES] {
    let mut oob = [0xff; OOB_BYTES];
    oob[..8].copy_from_slice(&MAGIC);
    oob[8..16].copy_from_slice(&sequence.to_le_bytes());
    oob[16] = which as u8;
    oob
}

/// Which label block a page holds, and the number of the version.
fn parse(oob: &[u8; OOB_BYTES]) -> Option<(usize, u64)> {
    let which = usize::from(oob[16]);
    let mut sequence = [0; 8];
    sequence.copy_from_slice(&oob[8..16]);
    (oob[..8] == MAGIC && which < LABELS).then(|| (which, u64::from_le_bytes(sequence)))
}

impl Labels {
    /// Finds the newest versions.
    pub(super) fn open(flash: &Zoned) -> Result<Labels, DeviceError> {
        let mut labels = Labels {
            current: 0,
            sequence: 0,
            held: Default::default(),
        };
        let mut newest = [0; LABELS];
        let mut page = vec![0; flash.geometry().page_bytes as usize];
        for number in 0..LABEL_ERASE_BLOCKS {
            let block = flash.geometry().block(number);
            for n in 0..flash.next_page(block) {
                let found = match flash.read(PageAt { block, page: n }, &mut page) {
                    Ok(oob) => parse(&oob),
                    // A power cut in the midst of programming it, or of erasing its block.
                    Err(DeviceError::TornPage { .. } | DeviceError::HalfErased { .. }) => None,
                    Err(e) => return Err(e),
                };
                let Some((which, sequence)) = found.filter(|(w, s)| *s > newest[*w]) else {
                    continue;
                };
                newest[which] = sequence;
                labels.held[which] = Some(page[..IO_BYTES].into());
                if sequence > labels.sequence {
                    (labels.sequence, labels.current) = (sequence, number);
                }
            }
        }
        Ok(labels)
    }

    /// Copies block `which` of the label area out: zeros if it was never written.
    pub(super) fn get(&self, which: u64, into: &mut [u8]) {
        match self.held.get(which as usize).and_then(Option::as_ref) {
            Some(held) => into.copy_from_slice(held),
            None => into.fill(0),
        }
    }

    /// Writes a new version of block `which`.
    ///
    /// # Panics
    /// If it is no label block.
    pub(super) fn put(
        &mut self,
        flash: &Zoned,
        which: u64,
        from: &[u8],
    ) -> Result<(), DeviceError> {
        let which = which as usize;
        assert!(which < LABELS, "block {which} of a device is no label");
        self.held[which] = Some(from.into());
        let block = flash.geometry().block(self.current);
        let pages = flash.geometry().pages_per_block;
        if flash.next_page(block) < pages && !flash.is_half_erased(block) {
            return self.program(flash, block, which);
        }
        // The full block must hold on until the other one has it all.
        flash.flush();
        self.current = (self.current + 1) % LABEL_ERASE_BLOCKS;
        let block = flash.geometry().block(self.current);
        flash.erase(block)?;
        (0..LABELS).try_for_each(|which| self.program(flash, block, which))
    }

    fn program(
        &mut self,
        flash: &Zoned,
        block: EraseBlock,
        which: usize,
    ) -> Result<(), DeviceError> {
        let Some(held) = &self.held[which] else {
            return Ok(());
        };
        let mut data = held.to_vec();
        data.resize(flash.geometry().page_bytes as usize, 0);
        self.sequence += 1;
        let page = flash.next_page(block);
        let oob = oob(which, self.sequence);
        flash.program(PageAt { block, page }, &data, &oob, Purpose::Written)
    }
}
