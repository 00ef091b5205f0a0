//! Counts of what a mapping did, per path, exact when read at quiescence.
//!
//! Invariants: a shard is added to without a locked instruction only by the one
//! thread whose pointer is in `owner`; what finds no shard of its own goes to the
//! common shard with locked additions. An owner is never replaced. A thread
//! that starts where an ended one had its control block takes over its shard, which
//! is sound because the two never run at once.

use std::arch::asm;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use shale_sys::threads::thread_pointer;

/// On whose behalf an access was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Path {
    /// The update log.
    Log = 0,
    /// File data in its place in the volume.
    Data = 1,
    /// Extent nodes, inodes, directories, bitmaps, superblocks.
    Structure = 2,
    /// The journal of structure changes.
    Journal = 3,
    /// Pages that client and daemon talk through, as the daemon uses them. (Clients use
    /// [`crate::SharedWords`], which counts nothing.)
    Control = 4,
}

impl Path {
    /// Every path, in the order of their numbers.
    pub const ALL: [Path; 5] = [
        Path::Log,
        Path::Data,
        Path::Structure,
        Path::Journal,
        Path::Control,
    ];
}

/// What is counted; the number is the place in a shard.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Count {
    BytesStored = 0,
    BytesStreamed = 1,
    LinesFlushed = 2,
    Fences = 3,
    BytesLoaded = 4,
}

const COUNTS: usize = 5;
const PATHS: usize = Path::ALL.len();
/// Threads of one mapping that count without a locked instruction.
const SHARDS: usize = 64;

#[repr(C, align(64))]
struct Shard {
    /// Thread pointer of the thread that owns the shard, 0 while nobody does.
    owner: AtomicUsize,
    counts: [[AtomicU64; COUNTS]; PATHS],
}

impl Shard {
    const fn new() -> Self {
        Shard {
            owner: AtomicUsize::new(0),
            counts: [const { [const { AtomicU64::new(0) }; COUNTS] }; PATHS],
        }
    }
}

/// The counters of one mapping.
pub(crate) struct Counters {
    shards: [Shard; SHARDS],
    common: Shard,
}

/// The shard the calling thread may add to.
#[derive(Clone, Copy)]
pub(crate) struct Local<'c> {
    shard: &'c Shard,
    owned: bool,
}

#[inline(always)]
fn home(thread: usize) -> usize {
    // Control blocks lie at the ends of stacks, megabytes apart: only a
    // multiplicative hash spreads them.
    ((thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}
const _: () = assert!(SHARDS == 1 << (64 - 58), "home() yields 6 bits");

impl Counters {
    pub(crate) const fn new() -> Self {
        Counters {
            shards: [const { Shard::new() }; SHARDS],
            common: Shard::new(),
        }
    }

    /// Finds the calling thread's shard.
    #[inline(always)]
    pub(crate) fn local(&self) -> Local<'_> {
        let thread = thread_pointer();
        let shard = &self.shards[home(thread)];
        if shard.owner.load(Ordering::Relaxed) == thread {
            return Local { shard, owned: true };
        }
        self.claim(thread)
    }

    #[cold]
    #[inline(never)]
    fn claim(&self, thread: usize) -> Local<'_> {
        for step in 0..SHARDS {
            let shard = &self.shards[(home(thread) + step) % SHARDS];
            let claimed =
                shard
                    .owner
                    .compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire);
            if claimed.is_ok() || claimed == Err(thread) {
                return Local { shard, owned: true };
            }
        }
        Local {
            shard: &self.common,
            owned: false,
        }
    }

    /// Sums all shards.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut sums = [[0_u64; COUNTS]; PATHS];
        for shard in self.shards.iter().chain([&self.common]) {
            for (row, counts) in sums.iter_mut().zip(&shard.counts) {
                for (sum, count) in row.iter_mut().zip(counts) {
                    *sum = sum.wrapping_add(count.load(Ordering::Acquire));
                }
            }
        }
        Snapshot {
            paths: sums.map(|row| PathCounts {
                bytes_stored: row[Count::BytesStored as usize],
                bytes_streamed: row[Count::BytesStreamed as usize],
                lines_flushed: row[Count::LinesFlushed as usize],
                fences: row[Count::Fences as usize],
                bytes_loaded: row[Count::BytesLoaded as usize],
            }),
        }
    }
}

impl Local<'_> {
    #[inline(always)]
    pub(crate) fn add(self, path: Path, count: Count, amount: usize) {
        let word = &self.shard.counts[path as usize][count as usize];
        if self.owned {
            // SAFETY: the word is a live, aligned u64 and only this thread adds to it
            // without a lock. One instruction, so that a signal handler which counts
            // too cannot come between load and store.
            unsafe {
                asm!("add qword ptr [{word}], {amount}", word = in(reg) word.as_ptr(),
                     amount = in(reg) amount, options(nostack));
            }
        } else {
            word.fetch_add(amount as u64, Ordering::AcqRel);
        }
    }
}

/// What one path cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathCounts {
    /// Bytes stored in any way: words, copies, non-temporal stores.
    pub bytes_stored: u64,
    /// Those of `bytes_stored` that were stored non-temporally.
    pub bytes_streamed: u64,
    /// Cache lines of which the write-back was asked for.
    pub lines_flushed: u64,
    /// Fences.
    pub fences: u64,
    /// Bytes copied out, words included.
    pub bytes_loaded: u64,
}

impl Sub for PathCounts {
    type Output = PathCounts;

    fn sub(self, earlier: PathCounts) -> PathCounts {
        PathCounts {
            bytes_stored: self.bytes_stored - earlier.bytes_stored,
            bytes_streamed: self.bytes_streamed - earlier.bytes_streamed,
            lines_flushed: self.lines_flushed - earlier.lines_flushed,
            fences: self.fences - earlier.fences,
            bytes_loaded: self.bytes_loaded - earlier.bytes_loaded,
        }
    }
}

/// All counts of a mapping at one moment. `later - earlier` is what happened between.
///
/// Exact when no thread is inside an access; otherwise each count is one that was
/// true at some moment during the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    paths: [PathCounts; PATHS],
}

impl Snapshot {
    /// The counts of one path.
    pub fn path(&self, path: Path) -> PathCounts {
        self.paths[path as usize]
    }

    /// The counts of all paths together.
    pub fn total(&self) -> PathCounts {
        let mut total = PathCounts::default();
        for path in &self.paths {
            total.bytes_stored += path.bytes_stored;
            total.bytes_streamed += path.bytes_streamed;
            total.lines_flushed += path.lines_flushed;
            total.fences += path.fences;
            total.bytes_loaded += path.bytes_loaded;
        }
        total
    }
}

impl Sub for Snapshot {
    type Output = Snapshot;

    fn sub(self, earlier: Snapshot) -> Snapshot {
        let mut difference = Snapshot::default();
        for (index, path) in difference.paths.iter_mut().enumerate() {
            *path = self.paths[index] - earlier.paths[index];
        }
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_are_exact() {
        const THREADS: usize = SHARDS + 16;
        const ROUNDS: usize = 2_000;
        let counters = Counters::new();
        let all_running = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    all_running.wait();
                    for _ in 0..ROUNDS {
                        counters.local().add(Path::Log, Count::BytesStored, 3);
                        counters.local().add(Path::Journal, Count::Fences, 1);
                    }
                });
            }
        });
        let snapshot = counters.snapshot();
        let rounds = (THREADS * ROUNDS) as u64;
        assert_eq!(snapshot.path(Path::Log).bytes_stored, 3 * rounds);
        assert_eq!(snapshot.path(Path::Journal).fences, rounds);
        assert_eq!(snapshot.total().bytes_loaded, 0);
        let common = &counters.common.counts[Path::Log as usize][Count::BytesStored as usize];
        assert!(
            common.load(Ordering::Relaxed) > 0,
            "more threads than shards must reach the common shard"
        );
    }

    #[test]
    fn snapshots_subtract() {
        let counters = Counters::new();
        counters.local().add(Path::Data, Count::BytesLoaded, 10);
        let before = counters.snapshot();
        counters.local().add(Path::Data, Count::BytesLoaded, 7);
        let spent = counters.snapshot() - before;
        assert_eq!(spent.path(Path::Data).bytes_loaded, 7);
        assert_eq!(spent.total(), spent.path(Path::Data));
    }
}
