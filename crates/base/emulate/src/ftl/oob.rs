//! What stands in a page's metadata: which blocks it holds, and when it was programmed.
//!
//! | Bytes | What |
//! | --- | --- |
//! | 0 … 3 | kind: data or list of trimmed blocks |
//! | 8 … 15 | sequence number, one more for each page of the device |
//! | 16 … 19, 20 … 23 | logical block in each half; all ones: none. Of a list: number of ranges |
//!
//! A list's page holds ranges, each first logical block and number of blocks (u32, u32).

use crate::zoned::OOB_BYTES;

/// Bytes of a logical block.
pub const BLOCK_BYTES: usize = 4096;

/// Logical blocks of a page.
pub(super) const SLOTS: usize = 2;

/// No logical block.
pub(super) const NONE: u32 = u32::MAX;

const DATA: u32 = u32::from_le_bytes(*b"data");
const TRIMS: u32 = u32::from_le_bytes(*b"trim");

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// These logical blocks.
    Data([u32; SLOTS]),
    /// So many ranges of blocks that were trimmed.
    Trims(u32),
}

/// The metadata of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Oob {
    pub sequence: u64,
    pub kind: Kind,
}

impl Oob {
    pub fn to_bytes(self) -> [u8; OOB_BYTES] {
        let (kind, words) = match self.kind {
            Kind::Data(blocks) => (DATA, blocks),
            Kind::Trims(ranges) => (TRIMS, [ranges, NONE]),
        };
        let mut bytes = [0; OOB_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&words[0].to_le_bytes());
        bytes[20..24].copy_from_slice(&words[1].to_le_bytes());
        bytes
    }

    /// `None`: no page of an FTL, an erased one for instance.
    pub fn from_bytes(bytes: &[u8; OOB_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let kind = match word(0) {
            DATA => Kind::Data([word(16), word(20)]),
            TRIMS => Kind::Trims(word(16)),
            _ => return None,
        };
        let sequence = u64::from(word(8)) | u64::from(word(12)) << 32;
        Some(Oob { sequence, kind })
    }
}

/// Puts ranges into a page.
pub(super) fn put_ranges(ranges: &[(u32, u32)], page: &mut [u8]) {
    for ((first, count), bytes) in ranges.iter().zip(page.chunks_exact_mut(8)) {
        bytes[..4].copy_from_slice(&first.to_le_bytes());
        bytes[4..].copy_from_slice(&count.to_le_bytes());
    }
}

/// The first `ranges` ranges of a page.
pub(super) fn ranges(page: &[u8], ranges: u32) -> impl Iterator<Item = (u32, u32)> {
    page.chunks_exact(8).take(ranges as usize).map(|bytes| {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        (word(0), word(4))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for kind in [Kind::Data([7, NONE]), Kind::Trims(3)] {
            let oob = Oob {
                sequence: 0x1_2345_6789,
                kind,
            };
            assert_eq!(Oob::from_bytes(&oob.to_bytes()), Some(oob));
        }
        assert_eq!(Oob::from_bytes(&[0xff; OOB_BYTES]), None);
        let mut page = [0; 32];
        put_ranges(&[(1, 2), (9, 1)], &mut page);
        assert_eq!(ranges(&page, 2).collect::<Vec<_>>(), [(1, 2), (9, 1)]);
    }
}
