//! How much freed memory a process keeps.
//!
//! glibc gives each of many threads an arena of its own, and takes large blocks from arenas too once one of that size was
//! freed (`mallopt(3)`, dynamic threshold). A daemon whose work comes in waves (the plan of a chunk of a digest takes some
//! MiB for some ms, in several threads) so keeps the sum of its highest waves, which looks like a leak: 98 to 225 MiB where
//! 50 to 117 are in use.

use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks from this size on are mapped by themselves, and go back to the system when they are freed.
const MAPPED_BYTES: c_int = 512 << 10;
/// An arena keeps so much freed memory at its end.
const KEPT_BYTES: c_int = 1 << 20;

/// Has this process keep little of the memory that it frees, in as many arenas as there are processors but two at least.
/// Called before there are other threads, which would keep the arenas they have.
pub fn keep_little() {
    let processors = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    let arenas = c_int::try_from(processors).unwrap_or(c_int::MAX);
    for (what, value) in [
        (M_ARENA_MAX, arenas),
        (M_MMAP_THRESHOLD, MAPPED_BYTES),
        (M_TRIM_THRESHOLD, KEPT_BYTES),
    ] {
        // SAFETY: it changes settings of the allocator, under the allocator's own lock.
        let is_set = unsafe { libc::mallopt(what, value) };
        debug_assert_eq!(is_set, 1, "glibc knows setting {what}");
    }
}

/// What a process has of the system for its heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapUsage {
    /// Bytes that are in use.
    pub used_bytes: u64,
    /// Bytes that were freed and are kept for what comes next, resident or not.
    pub free_bytes: u64,
}

/// The heap of this process now. Walks the lists of what is free: some µs to some ms.
pub fn usage() -> HeapUsage {
    // SAFETY: it reads the allocator's counters, under the allocator's own locks.
    let info = unsafe { libc::mallinfo2() };
    HeapUsage {
        used_bytes: (info.uordblks + info.hblkhd) as u64,
        free_bytes: info.fordblks as u64,
    }
}

/// Least time between two looks of a [`Trimmer`].
const TRIM_EVERY_NS: u64 = 10_000_000_000;
/// So much freed memory may lie between what is in use.
const FREE_BYTES_MAX: u64 = 16 << 20;

/// Gives freed memory back that lies between blocks in use, which no threshold of glibc reaches: small blocks of a wave that
/// stay longer than the others hold the pages of all.
#[derive(Debug, Default)]
pub struct Trimmer {
    next_ns: AtomicU64,
}

impl Trimmer {
    /// Looks at the heap if it is time to, and gives back what is free if that is much. `now_ns` is a monotonic time in
    /// nanoseconds. Says whether it gave something back.
    pub fn look(&self, now_ns: u64) -> bool {
        if now_ns < self.next_ns.load(Ordering::Relaxed) {
            return false;
        }
        self.next_ns
            .store(now_ns + TRIM_EVERY_NS, Ordering::Relaxed);
        // SAFETY: it gives pages back that hold no block in use, under the allocator's own locks.
        usage().free_bytes > FREE_BYTES_MAX && unsafe { libc::malloc_trim(0) } == 1
    }
}

#[cfg(test)]
mod tests {
    /// Resident bytes of this process that no file backs.
    fn resident_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Whether this is the process of its own that the test `name` needs, since it looks at the whole heap; else it has been
    /// run in one.
    fn is_alone(name: &str) -> bool {
        const CHILD: &str = "SHALE_SYS_TEST_HEAP";
        if std::env::var(CHILD).is_ok() {
            return true;
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([&format!("heap::tests::{name}"), "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{said}"
        );
        false
    }

    /// Waves of large blocks in several threads leave next to nothing.
    #[test]
    fn waves_of_large_blocks_leave_little() {
        if !is_alone("waves_of_large_blocks_leave_little") {
            return;
        }
        super::keep_little();
        let before = resident_kib();
        // What stays a little longer lies above what goes.
        let wave = || {
            let mut stays = Vec::new();
            for round in 0..8 {
                let blocks: Vec<Vec<u8>> = (6..20).map(|n| vec![round; n * 100_000]).collect();
                stays.push(Box::new([blocks.len(); 16]));
            }
            stays
        };
        let stays = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(wave)).collect();
            let joined = threads.into_iter().map(|t| t.join().unwrap());
            joined.collect::<Vec<_>>()
        });
        assert_eq!(stays.len(), 8);
        let kept = resident_kib().saturating_sub(before);
        assert!(kept < 24 << 10, "{kept} KiB are kept");
    }

    /// Blocks in use between blocks that were freed keep no pages of these: neither of the main arena nor of another.
    #[test]
    fn holes_between_blocks_are_given_back() {
        if !is_alone("holes_between_blocks_are_given_back") {
            return;
        }
        super::keep_little();
        let before = resident_kib();
        let wave = || {
            let mut blocks: Vec<Vec<u8>> = (0..800).map(|_| vec![1; 100_000]).collect();
            let mut n = 0;
            blocks.retain(|_| {
                n += 1;
                n % 20 == 0
            });
            blocks
        };
        let stays = [wave(), std::thread::spawn(wave).join().unwrap()];
        let holes = resident_kib() - before;
        assert!(
            holes > 100 << 10,
            "there are holes to give back: {holes} KiB"
        );
        let trimmer = super::Trimmer::default();
        assert!(trimmer.look(5), "something is given back");
        assert!(!trimmer.look(6), "the next look is later");
        let kept = resident_kib().saturating_sub(before);
        assert!(kept < 16 << 10, "{kept} KiB are kept");
        assert!(super::usage().used_bytes > 8_000_000);
        assert_eq!(stays.map(|s| s.len()), [40, 40]);
    }
}
