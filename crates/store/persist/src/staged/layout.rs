//! Where the parts of an area lie.
//!
//! ```text
//! header 0 | header 1 | staging ring | table, pages of image 1 | table, pages of image 2
//! ```

use super::PAGE_BYTES;
use super::error::{Result, no_area};
use shale_format::staged::SUM_BYTES;

/// Least bytes of a staging ring.
pub const STAGING_BYTES_MIN: u64 = 1 << 20;
/// Most bytes of a memory tier: its pages have numbers of 32 bits.
pub const MEMORY_BYTES_MAX: u64 = 1 << 43;
/// Checksums in one block of a table.
pub(super) const SUMS_PER_BLOCK: usize = PAGE_BYTES / SUM_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;

/// How large the parts of an area are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaLayout {
    /// Bytes of the memory tier, a multiple of [`PAGE_BYTES`].
    pub memory_bytes: u64,
    /// Bytes of the staging ring, a multiple of [`PAGE_BYTES`], at least [`STAGING_BYTES_MIN`].
    pub staging_bytes: u64,
}

impl AreaLayout {
    /// All that the area takes on its device.
    pub fn bytes(&self) -> u64 {
        self.image_at(2)
    }

    /// Refuses what no area can be.
    pub(super) fn check(&self) -> Result<()> {
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE);
        if !whole(self.memory_bytes) || !(PAGE..=MEMORY_BYTES_MAX).contains(&self.memory_bytes) {
            return no_area(format!(
                "memory_bytes is {}; expected a multiple of {PAGE_BYTES} from {PAGE_BYTES} to {MEMORY_BYTES_MAX}",
                self.memory_bytes
            ));
        }
        let most = MEMORY_BYTES_MAX;
        if !whole(self.staging_bytes) || !(STAGING_BYTES_MIN..=most).contains(&self.staging_bytes) {
            return no_area(format!(
                "staging_bytes is {}; expected a multiple of {PAGE_BYTES} from {STAGING_BYTES_MIN} to {most}",
                self.staging_bytes
            ));
        }
        Ok(())
    }

    /// Pages of the memory tier.
    pub(super) fn pages(&self) -> u64 {
        self.memory_bytes / PAGE
    }

    /// Bytes of a table, with its padding.
    pub(super) fn table_bytes(&self) -> u64 {
        (self.pages() * SUM_BYTES as u64).next_multiple_of(PAGE)
    }

    /// Byte of the area at which header block `n` (0 or 1) begins.
    pub(super) fn header_at(n: u64) -> u64 {
        n * PAGE
    }

    /// Byte of the area at which the ring begins.
    pub(super) fn ring_at() -> u64 {
        2 * PAGE
    }

    fn image_at(&self, which: usize) -> u64 {
        let image_bytes = self.table_bytes() + self.memory_bytes;
        Self::ring_at() + self.staging_bytes + which as u64 * image_bytes
    }

    /// Byte of the area at which the table of image `which` (0 or 1) begins.
    pub(super) fn table_at(&self, which: usize) -> u64 {
        self.image_at(which)
    }

    /// Byte of the area at which page `page` of image `which` lies.
    pub(super) fn page_at(&self, which: usize, page: u64) -> u64 {
        self.image_at(which) + self.table_bytes() + page * PAGE
    }
}
