//! Space reservation: every record reserves what it may add to the volume, so
//! that a full volume is found out at the call and never at digest.
//!
//! The daemon hands out credits in large pieces; calls reserve from the credit at hand. What a
//! record has reserved is free again when it is digested, so these are worst cases
//! (DESIGN §16), whatever is digested together: mostly a record adds a fraction of it.

use shale_format::limits::BLOCK_BYTES;
use shale_proto::message::GRANT_AHEAD_BLOCKS;
use std::sync::atomic::{AtomicU64, Ordering};

/// Space is counted in this many bytes, as in a record's header.
pub const UNIT: u64 = 64;
/// Asked for at once when the piece at hand is used up, at most: of space and of blocks alike.
pub const PIECE_BYTES: u64 = 16 << 20;

const _: () = assert!(PIECE_BYTES == GRANT_AHEAD_BLOCKS as u64 * BLOCK_BYTES as u64);

/// Part of NVM that a client asks for ahead of use at most, of space and of blocks each: it keeps what it does
/// not use for as long as it does nothing, and nobody else can have it.
const AHEAD_PART: u64 = 128;

/// Bytes to ask for ahead of use, of NVM that is so large; at least what one small call needs.
pub fn ahead_bytes(nvm_bytes: u64) -> u64 {
    (nvm_bytes / AHEAD_PART).clamp(16 * BLOCK_BYTES as u64, PIECE_BYTES)
}

/// What a change of one tree may add to it: a full leaf that splits, and a root above the
/// two; or the first node of a file that had a single extent. (Inner nodes that split are
/// few, and the daemon's reserve is for them.)
pub const TREE_BYTES: u64 = 2 * BLOCK_BYTES as u64;
/// What a new inode may add: a block of the inode file, and the space that every inode
/// keeps for its entry among the orphans.
pub const INODE_BYTES: u64 = BLOCK_BYTES as u64 + 128;
/// What each block may add to the tree of its file: on a full volume every block may
/// become an extent of its own, 24 bytes in leaves that are half full.
const EXTENT_BYTES: u64 = UNIT;

/// What a change of content may add that brings `new` blocks, and writes `blocks` blocks
/// again with those.
fn content_bytes(new: u64, blocks: u64) -> u64 {
    blocks_bytes(new) + TREE_BYTES + EXTENT_BYTES * blocks
}

/// Blocks that a change of content can bring if `free` blocks are.
pub fn content_blocks(free: u64) -> u64 {
    blocks_bytes(free).saturating_sub(TREE_BYTES) / (BLOCK_BYTES as u64 + EXTENT_BYTES)
}

/// Blocks that are not reported as free: a new file, its name, and its last block need so much space beyond
/// what they fill.
pub const HIDDEN_BLOCKS: u64 = 8;

/// What a change may add that cuts a file's extents and gives back `freed` blocks for
/// certain: nothing from two on.
fn cut_bytes(freed: u64) -> u64 {
    TREE_BYTES.saturating_sub(freed.saturating_mul(BLOCK_BYTES as u64))
}

/// As [`content_bytes`], in a volume with lower tiers: whatever lies at the written blocks may
/// have moved below by the time of the digest, so each becomes a new block of NVM; and the
/// trees of the tiers below are cut.
fn tiered_content_bytes(blocks: u64) -> u64 {
    content_bytes(blocks, blocks) + LOWER_TREES_BYTES
}

/// As [`cut_bytes`], in a volume with lower tiers: nothing is given back for certain, and the
/// blocks at both ends may have to be copied up.
const TIERED_CUT_BYTES: u64 = TREE_BYTES + LOWER_TREES_BYTES + 2 * BLOCK_BYTES as u64;

/// What the trees of two lower tiers may grow by when a range of a file is taken out.
const LOWER_TREES_BYTES: u64 = 2 * TREE_BYTES;

/// What `blocks` blocks add.
pub fn blocks_bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

/// Space this client has and no record uses yet, in bytes.
#[derive(Default)]
pub struct Reservation {
    free: AtomicU64,
}

impl Reservation {
    /// Takes `bytes` (a multiple of [`UNIT`]); `false`: there is less.
    #[inline]
    pub fn take(&self, bytes: u64) -> bool {
        bytes == 0
            || self
                .free
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |f| {
                    f.checked_sub(bytes)
                })
                .is_ok()
    }

    /// Adds space.
    #[inline]
    pub fn add(&self, bytes: u64) {
        if bytes > 0 {
            self.free.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Takes everything that is free.
    pub fn drain(&self) -> u64 {
        self.free.swap(0, Ordering::Relaxed)
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }
}

/// What writing `blocks` blocks again, of which the file gets `new`, may add to a volume that has lower tiers or not.
#[inline]
pub fn write_bytes(tiered: bool, new: u64, blocks: u64) -> u64 {
    match tiered {
        false => content_bytes(new, blocks),
        true => tiered_content_bytes(blocks),
    }
}

/// What cutting a file may add, which gives back `freed` blocks.
pub fn shorten_bytes(tiered: bool, freed: u64) -> u64 {
    match tiered {
        false => cut_bytes(freed),
        true => TIERED_CUT_BYTES,
    }
}

/// What moving a file's extents may add.
pub fn shift_bytes(tiered: bool) -> u64 {
    TREE_BYTES + u64::from(tiered) * LOWER_TREES_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_back_two_blocks_needs_no_space() {
        assert_eq!(cut_bytes(0), 8192);
        assert_eq!(cut_bytes(1), 4096);
        assert_eq!((cut_bytes(2), cut_bytes(u64::MAX)), (0, 0));
        assert_eq!(content_bytes(1, 2), 4096 + 8192 + 128);
        for free in 3..10_000 {
            let fit = content_blocks(free);
            assert!(content_bytes(fit, fit) <= blocks_bytes(free), "{free}");
            assert!(
                content_bytes(fit + 1, fit + 1) > blocks_bytes(free),
                "{free}"
            );
        }
        assert!(content_bytes(1, 1) + INODE_BYTES + TREE_BYTES < blocks_bytes(HIDDEN_BLOCKS));
    }

    #[test]
    fn take_never_goes_below_zero() {
        let r = Reservation::default();
        assert!(!r.take(64));
        r.add(128);
        assert!(r.take(64) && r.take(64) && !r.take(64));
        r.add(640);
        assert_eq!((r.drain(), r.free()), (640, 0));
    }
}
