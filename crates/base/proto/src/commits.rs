//! How much is committed beside what a call waits for, where logs lie in memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// Least and most bytes.
const BYTES: (u64, u64) = (256 << 10, 4 << 20);
/// What a device is taken to write in so many nanoseconds is a byte: 250 MB/s.
const NS_PER_BYTE: u64 = 4;
/// A shorter time counts at once; without one, what counts grows by this part with each commit.
const GROWTH_PART: u64 = 32;

/// Bytes of others' records that a call may find before its own in the commit that it waits for, and in the one on its way: what the
/// device writes in about the time of the shortest commits of late. So a call waits about twice as long beside a copy as alone, and where a
/// commit takes long by itself, as on a disk, little more is gained by writing little.
#[derive(Debug, Default)]
pub struct BytesBeside {
    /// The shortest time of late, in nanoseconds; 0: none is known yet.
    shortest_ns: AtomicU64,
}

impl BytesBeside {
    /// A commit took so long.
    pub fn note(&self, ns: u64) {
        let shortest = self.shortest_ns.load(Ordering::Relaxed);
        let grown = match shortest {
            0 => ns,
            _ => shortest.saturating_add(shortest / GROWTH_PART),
        };
        // Two threads that note at once lose one of the two.
        self.shortest_ns
            .store(ns.min(grown).max(1), Ordering::Relaxed);
    }

    /// How many.
    #[inline]
    pub fn bytes(&self) -> u64 {
        let (least, most) = BYTES;
        (self.shortest_ns.load(Ordering::Relaxed) / NS_PER_BYTE).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_commits_of_late_count() {
        let beside = BytesBeside::default();
        assert_eq!(beside.bytes(), BYTES.0);
        beside.note(6_000_000);
        assert_eq!(beside.bytes(), 1_500_000);
        beside.note(200_000);
        assert_eq!(beside.bytes(), BYTES.0, "a fast device");
        (0..200).for_each(|_| beside.note(6_000_000));
        assert_eq!(beside.bytes(), 1_500_000, "a slow one");
        (0..200).for_each(|_| beside.note(u64::MAX));
        assert_eq!(beside.bytes(), BYTES.1);
    }
}
