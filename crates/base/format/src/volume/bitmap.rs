//! Free-space bitmaps: one bit a block, set while the block is in use.
//!
//! Each 4 KiB bitmap block has a header with a checksum, so that a damaged
//! bitmap is found before a block is given out twice.

use crate::checksum::crc32c;
use crate::checksummed::{self, Sealed, sealed};
use crate::layout::layout;
use crate::limits::BLOCK_BYTES;
use crate::{BlockAddr, FormatError};
use zerocopy::IntoBytes;

/// First bytes of a bitmap block: "SHALEBMP".
pub const BITMAP_MAGIC: u64 = u64::from_le_bytes(*b"SHALEBMP");
/// 64-bit words of bits in one bitmap block.
pub const WORDS_PER_BLOCK: usize = (BLOCK_BYTES - BitmapHeader::BYTES) / 8;
/// Bits in one bitmap block.
pub const BITS_PER_BLOCK: u64 = WORDS_PER_BLOCK as u64 * 64;

layout! {
    /// Header of a bitmap block; the bits follow as 504 little-endian words
    pub struct BitmapHeader: 64 {
        /// "SHALEBMP"
        pub magic: u64,
        /// address of this block
        pub addr: u64,
        /// number of the batch that wrote it
        pub txid: u64,
        /// CRC-32C of the block with this field 0
        pub crc: u32,
        /// 0
        pub reserved: [u8; 36],
    }
}

sealed!(BitmapHeader, "bitmap block", BITMAP_MAGIC);

/// Bitmap blocks that `blocks` blocks need.
pub fn blocks_for(blocks: u64) -> u64 {
    blocks.div_ceil(BITS_PER_BLOCK)
}

/// A whole bitmap block with its checksum.
pub fn encode(
    addr: BlockAddr,
    txid: u64,
    words: &[u64; WORDS_PER_BLOCK],
) -> Box<[u8; BLOCK_BYTES]> {
    let mut block = Box::new([0u8; BLOCK_BYTES]);
    let mut h = BitmapHeader {
        magic: BITMAP_MAGIC,
        addr: addr.raw(),
        txid,
        crc: 0,
        reserved: [0; 36],
    };
    block[..64].copy_from_slice(h.as_bytes());
    block[64..].copy_from_slice(words.as_bytes());
    h.crc = crc32c(&block[..]);
    block[..64].copy_from_slice(h.as_bytes());
    block
}

/// Checks a bitmap block read at `addr` and gives its words.
pub fn decode(
    block: &[u8; BLOCK_BYTES],
    addr: BlockAddr,
) -> Result<Box<[u64; WORDS_PER_BLOCK]>, FormatError> {
    let at = addr.index();
    let (h, rest) = checksummed::read::<BitmapHeader>(&block[..], at)?;
    if h.addr != addr.raw() {
        let found = BlockAddr::from_raw(h.addr).index();
        return Err(FormatError::Misplaced {
            what: BitmapHeader::WHAT,
            at,
            found,
        });
    }
    checksummed::verify(&h, rest, at)?;
    let mut words = Box::new([0u64; WORDS_PER_BLOCK]);
    words.as_mut_bytes().copy_from_slice(rest);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let mut words = [0u64; WORDS_PER_BLOCK];
        words[7] = 0x55;
        let addr = BlockAddr::nvm(9);
        let mut block = encode(addr, 3, &words);
        assert_eq!(*decode(&block, addr).unwrap(), words);
        assert!(matches!(
            decode(&block, BlockAddr::nvm(8)),
            Err(FormatError::Misplaced { .. })
        ));
        block[100] ^= 1;
        assert!(matches!(
            decode(&block, addr),
            Err(FormatError::Checksum { .. })
        ));
    }
}
