//! Directory entries that are newer in the log than in the volume.
//!
//! An entry's key (hash and twin number) is its place in the directory's tree and
//! its `readdir` cookie, so the log's changes lie over the tree key by key.

use shale_format::{DirKey, LogPos};
use std::collections::BTreeMap;

/// An entry as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Inode.
    pub ino: u64,
    /// `d_type`.
    pub kind: u8,
    /// Name.
    pub name: Box<[u8]>,
}

/// What the log says about one key: an entry, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The entry; `None`: removed.
    pub entry: Option<Entry>,
    /// Position behind the record that says so.
    pub end: LogPos,
}

/// The log's changes to one directory.
#[derive(Default)]
pub struct DirState {
    changes: BTreeMap<DirKey, Change>,
}

impl DirState {
    /// What the log says about `key`.
    pub fn get(&self, key: DirKey) -> Option<&Change> {
        self.changes.get(&key)
    }

    /// Changes of the group that `group` is in.
    pub fn group(&self, group: DirKey) -> impl Iterator<Item = (DirKey, &Change)> {
        let first = group.group_start();
        let last = DirKey(first.0 + DirKey::COLLISIONS);
        self.changes.range(first..last).map(|(&k, c)| (k, c))
    }

    /// Changes from `key` on, ascending.
    pub fn from(&self, key: DirKey) -> impl Iterator<Item = (DirKey, &Change)> {
        self.changes.range(key..).map(|(&k, c)| (k, c))
    }

    /// Notes an entry, or that there is none any more.
    pub fn set(&mut self, key: DirKey, entry: Option<Entry>, end: LogPos) {
        self.changes.insert(key, Change { entry, end });
    }

    /// Drops what the volume has by now.
    pub fn purge_below(&mut self, digested: LogPos) {
        if !self.changes.is_empty() {
            self.changes.retain(|_, c| c.end > digested);
        }
    }
}
