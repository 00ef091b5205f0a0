//! Whole paths of directories in memory (Strata §3.1): a walk along a known path costs
//! one look into a table instead of one lookup per component.
//!
//! An entry says where a path led one caller, with every permission on the way
//! checked. It holds while nothing on the way can have changed:
//! * this process changes a directory or symbolic link (renames or removes one, or
//!   changes the permissions of one): a generation is counted up, which ends all entries;
//! * another process can do so only after it has taken a lease away: an entry has the
//!   lease words of all inodes on its way and holds only while they are the same.
//!
//! Files come and go without ending entries: the last component of a path is never
//! part of one. The table's locks are leaves.

use parking_lot::RwLock;
use shale_inodes::dirents::{KIND_DIR, KIND_SYMLINK};
use shale_sys::mutants;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A shard above this many paths is emptied.
const SHARD_PATHS_MAX: usize = 2048;
const SHARDS: usize = 32;

/// An inode on the way and its lease word when it was passed.
pub(crate) type Passed = (u64, u32);

/// A path of a directory as one caller names it: the further groups of a user are the same in all of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedPath<'a> {
    pub uid: u32,
    pub gid: u32,
    /// The directory in which it begins.
    pub start: u64,
    pub path: &'a [u8],
}

struct Known {
    uid: u32,
    gid: u32,
    start: u64,
    path: Box<[u8]>,
    generation: u64,
    passed: Box<[Passed]>,
    dir: u64,
}

/// Paths that were walked.
pub(crate) struct PathCache {
    hasher: RandomState,
    shards: [RwLock<HashMap<u64, Known>>; SHARDS],
    generation: AtomicU64,
}

impl PathCache {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| RwLock::default()),
            generation: AtomicU64::new(0),
        }
    }

    /// An entry for an inode of this type was removed or moved. Called before the
    /// inode's lock is given up.
    pub(crate) fn entry_gone(&self, kind: u8) {
        if kind == KIND_DIR || kind == KIND_SYMLINK {
            self.permissions_changed();
        }
    }

    /// A directory's owner, group or mode has changed.
    pub(crate) fn permissions_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// To be read before a walk that [`Self::note`] is given.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn hash(&self, way: &CachedPath<'_>) -> u64 {
        self.hasher
            .hash_one((way.uid, way.gid, way.start, way.path))
    }

    fn shard(&self, hash: u64) -> &RwLock<HashMap<u64, Known>> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// The directory that the path leads to, if that is certain.
    pub(crate) fn get(&self, way: &CachedPath<'_>, lease_word: impl Fn(u64) -> u32) -> Option<u64> {
        let hash = self.hash(way);
        let shard = self.shard(hash).read();
        let found = shard.get(&hash).filter(|k| {
            (k.uid, k.gid, k.start, &*k.path) == (way.uid, way.gid, way.start, way.path)
                && k.generation == self.generation()
                && (k.passed.iter().all(|&(ino, word)| lease_word(ino) == word)
                    || mutants::is_on("path-unleased"))
        });
        found.map(|k| k.dir)
    }

    /// Notes where a path has led, in a walk that began at `generation`.
    pub(crate) fn note(&self, way: &CachedPath<'_>, generation: u64, passed: &[Passed], dir: u64) {
        let hash = self.hash(way);
        let known = Known {
            uid: way.uid,
            gid: way.gid,
            start: way.start,
            path: way.path.into(),
            generation,
            passed: passed.into(),
            dir,
        };
        let mut shard = self.shard(hash).write();
        if shard.len() >= SHARD_PATHS_MAX {
            shard.clear();
        }
        shard.insert(hash, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_with_generation_lease_and_caller() {
        let cache = PathCache::new();
        let way = CachedPath {
            uid: 1,
            gid: 2,
            start: 1,
            path: b"/a/b",
        };
        let held = |_| 7;
        assert_eq!(cache.get(&way, held), None);
        cache.note(&way, cache.generation(), &[(1, 7), (20, 7)], 30);
        assert_eq!(cache.get(&way, held), Some(30));
        assert_eq!(
            cache.get(&way, |ino| if ino == 20 { 8 } else { 7 }),
            None,
            "lease lost"
        );
        assert_eq!(
            cache.get(&CachedPath { uid: 3, ..way }, held),
            None,
            "another user"
        );
        assert_eq!(
            cache.get(
                &CachedPath {
                    path: b"/a/c",
                    ..way
                },
                held
            ),
            None,
            "another path"
        );
        assert_eq!(
            cache.get(&CachedPath { start: 4, ..way }, held),
            None,
            "from another directory"
        );
        cache.entry_gone(8);
        assert_eq!(
            cache.get(&way, held),
            Some(30),
            "a file's name ends nothing"
        );
        let before = cache.generation();
        cache.entry_gone(KIND_SYMLINK);
        assert_eq!(cache.get(&way, held), None);
        cache.note(&way, before, &[], 30);
        assert_eq!(
            cache.get(&way, held),
            None,
            "the walk began before the change"
        );
    }
}
