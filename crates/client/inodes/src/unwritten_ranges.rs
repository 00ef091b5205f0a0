//! Blocks that a file was given without data (`fallocate`) and that the volume does
//! not know of yet: they take space and count as the file's.

use rangemap::RangeSet;
use shale_format::LogPos;
use std::ops::Range;

/// Ranges of file blocks.
#[derive(Default)]
pub struct UnwrittenRanges {
    ranges: RangeSet<u64>,
    newest: LogPos,
}

impl UnwrittenRanges {
    /// Adds blocks, by the record that ends at `end`.
    pub fn add(&mut self, blocks: Range<u64>, end: LogPos) {
        if !blocks.is_empty() {
            self.ranges.insert(blocks);
            self.newest = self.newest.max(end);
        }
    }

    /// Takes blocks away: they were cut off or punched out.
    pub fn remove(&mut self, blocks: Range<u64>) {
        if !blocks.is_empty() {
            self.ranges.remove(blocks);
        }
    }

    /// Number of blocks of `blocks` that are here.
    pub fn count(&self, blocks: Range<u64>) -> u64 {
        if blocks.is_empty() {
            return 0;
        }
        let touched = self.ranges.overlapping(&blocks);
        touched
            .map(|r| r.end.min(blocks.end) - r.start.max(blocks.start))
            .sum()
    }

    /// Forgets everything once the volume has all of it.
    pub fn purge_below(&mut self, digested: LogPos) {
        if self.newest <= digested {
            self.ranges.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_split_and_count() {
        let mut a = UnwrittenRanges::default();
        a.add(10..20, LogPos(1));
        a.add(15..30, LogPos(2));
        assert_eq!(a.count(0..100), 20);
        a.remove(12..14);
        assert_eq!((a.count(0..100), a.count(11..15)), (18, 2));
        a.remove(0..11);
        assert_eq!(a.count(0..100), 17);
        a.purge_below(LogPos(1));
        assert_eq!(a.count(0..100), 17);
        a.purge_below(LogPos(2));
        assert_eq!(a.count(0..100), 0);
    }
}
