//! What a session that serves a kernel keeps for it: which inodes the kernel has
//! references to, and which it may have cached something of recently.
//!
//! Both are changed inside the read section and under a lease on the inode, so a caller that took the
//! lease and waited for a grace period sees everything (DESIGN §9).

use parking_lot::Mutex;
use shale_format::Ino;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 64;
const BUCKETS: usize = 4096;

fn hash(ino: u64) -> u64 {
    ino.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// See the module. A session that serves no kernel keeps nothing.
#[derive(Default)]
pub struct KernelRefs(OnceLock<References>);

struct References {
    /// References by inode; none is not noted.
    references: [Mutex<HashMap<u64, u64>>; SHARDS],
    /// Times that inodes of a bucket were used.
    used: Box<[AtomicU64]>,
    /// The kernel has no references from before.
    complete: bool,
}

impl References {
    fn new(continues: bool) -> Self {
        Self {
            references: std::array::from_fn(|_| Mutex::default()),
            used: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            complete: !continues,
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, u64>> {
        &self.references[(hash(ino) >> 58) as usize % SHARDS]
    }

    fn bucket(&self, ino: u64) -> &AtomicU64 {
        &self.used[(hash(ino) >> 52) as usize % BUCKETS]
    }

    /// The kernel may cache something of the inode.
    fn note_use(&self, ino: u64) {
        self.bucket(ino).fetch_add(1, Ordering::AcqRel);
    }

    /// The kernel gets a reference. A caller that finds none after it has read the count of uses finds that
    /// count changed.
    fn refer(&self, ino: u64) {
        *self.shard(ino).lock().entry(ino).or_default() += 1;
        self.note_use(ino);
    }

    /// The kernel gave references back; whether it has none left.
    fn unrefer(&self, ino: u64, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        match shard.get_mut(&ino) {
            Some(n) if *n > count => {
                *n -= count;
                false
            }
            _ => {
                shard.remove(&ino);
                true
            }
        }
    }

    /// The kernel has the root from the start: it never looks it up.
    fn in_use(&self, ino: u64) -> bool {
        !self.complete || ino == Ino::ROOT.0 || self.shard(ino).lock().contains_key(&ino)
    }
}

impl KernelRefs {
    /// From now on a kernel is served. `continues`: one that a process before this one served, so that it may have
    /// references to any inode.
    pub fn serve(&self, continues: bool) {
        // Serving twice would change nothing.
        let _ = self.0.set(References::new(continues));
    }

    /// Whether a kernel is served.
    #[inline]
    pub fn is_served(&self) -> bool {
        self.0.get().is_some()
    }

    /// The kernel may cache something of the inode.
    #[inline]
    pub fn note_use(&self, ino: u64) {
        if let Some(kernel) = self.0.get() {
            kernel.note_use(ino);
        }
    }

    /// The kernel gets a reference to an inode that the call holds a lease on.
    pub fn refer(&self, ino: u64) {
        if let Some(kernel) = self.0.get() {
            kernel.refer(ino);
        }
    }

    /// The kernel gave `count` references to an inode back; whether it has none left.
    pub fn unrefer(&self, ino: u64, count: u64) -> bool {
        self.0.get().is_none_or(|k| k.unrefer(ino, count))
    }

    /// Whether the kernel that is served may have a reference to an inode.
    pub fn refers_to(&self, ino: u64) -> bool {
        self.0.get().is_some_and(|k| k.in_use(ino))
    }

    /// Whether a kernel that is served is known to have a reference: as
    /// [`Self::refers_to`], but of references from before nothing is known.
    pub fn knows(&self, ino: u64) -> bool {
        let known = |k: &References| k.shard(ino).lock().contains_key(&ino);
        self.0.get().is_some_and(known)
    }

    /// The inodes that the kernel is known to have references to, and the root.
    pub fn all(&self) -> Vec<u64> {
        let shards = self.0.get().map(|k| &k.references);
        let known = shards.into_iter().flatten();
        let all = known.flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>());
        all.chain([Ino::ROOT.0]).collect()
    }

    /// How often calls have used an inode, or others that are counted together with it.
    pub fn uses_of(&self, ino: u64) -> u64 {
        let uses = self.0.get();
        uses.map_or(0, |k| k.bucket(ino).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_counted_by_inode() {
        let kernel = References::new(false);
        assert!(!kernel.in_use(5));
        let used = || kernel.bucket(5).load(Ordering::Acquire);
        let before = used();
        (0..3).for_each(|_| kernel.refer(5));
        assert_ne!(used(), before, "who found no reference before finds out");
        assert!(!kernel.unrefer(5, 2) && kernel.in_use(5) && !kernel.in_use(6));
        assert!(kernel.unrefer(5, 1) && !kernel.in_use(5));
        assert!(kernel.unrefer(5, 1), "unknown: none left");
        assert!(References::new(true).in_use(5), "from before");
        assert!(kernel.in_use(Ino::ROOT.0), "without being looked up");
    }
}
