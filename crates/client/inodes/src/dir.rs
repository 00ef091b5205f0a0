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

/// The log's changes to one directory.
///
/// A key is among the entries or among the removed ones, not in both. They are apart since who lists a directory goes through the
/// entries only: where names come and go, a mail directory, thousands were removed for each one that is there.
#[derive(Default)]
pub struct DirState {
    /// Entries, each with the position behind the record that made it.
    entries: BTreeMap<DirKey, (Entry, LogPos)>,
    /// Keys that have no entry any more, while the volume may have one, each with the position behind the record that removed it.
    removed: BTreeMap<DirKey, LogPos>,
}

impl DirState {
    /// Whether the log says anything about `key`: then what the volume has there is old.
    pub fn is_changed(&self, key: DirKey) -> bool {
        self.entries.contains_key(&key) || self.removed.contains_key(&key)
    }

    /// Entries of the group that `group` is in.
    pub fn group(&self, group: DirKey) -> impl Iterator<Item = (DirKey, &Entry)> {
        let first = group.group_start();
        let last = DirKey(first.0 + DirKey::COLLISIONS);
        self.entries.range(first..last).map(|(&k, (e, _))| (k, e))
    }

    /// Entries from `key` on, ascending.
    pub fn from(&self, key: DirKey) -> impl Iterator<Item = (DirKey, &Entry)> {
        self.entries.range(key..).map(|(&k, (e, _))| (k, e))
    }

    /// Notes an entry, or that there is none any more. `end`: position behind the record that says so.
    pub fn set(&mut self, key: DirKey, entry: Option<Entry>, end: LogPos) {
        match entry {
            Some(entry) => {
                self.entries.insert(key, (entry, end));
                self.removed.remove(&key);
            }
            None => {
                self.removed.insert(key, end);
                self.entries.remove(&key);
            }
        }
    }

    /// Drops what the volume has by now.
    pub fn purge_below(&mut self, digested: LogPos) {
        if !self.entries.is_empty() {
            self.entries.retain(|_, (_, end)| *end > digested);
        }
        if !self.removed.is_empty() {
            self.removed.retain(|_, end| *end > digested);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_an_entry_or_removed_until_the_volume_has_it() {
        let entry = |ino| Entry {
            ino,
            kind: 8,
            name: Box::from(&b"n"[..]),
        };
        let inos =
            |state: &DirState| -> Vec<u64> { state.from(DirKey(0)).map(|(_, e)| e.ino).collect() };
        let (a, b) = (DirKey(64), DirKey(65));
        let mut state = DirState::default();
        assert!(!state.is_changed(a) && inos(&state).is_empty());
        state.set(a, Some(entry(1)), LogPos(10));
        state.set(b, Some(entry(2)), LogPos(20));
        assert_eq!(inos(&state), [1, 2]);
        state.set(a, None, LogPos(30));
        assert!(state.is_changed(a) && inos(&state) == [2]);
        assert_eq!(state.group(a).map(|(k, _)| k).collect::<Vec<_>>(), [b]);
        state.set(a, Some(entry(3)), LogPos(40));
        assert_eq!(inos(&state), [3, 2]);
        state.set(b, None, LogPos(50));
        // The record that removed it is not digested yet: the volume may have the one that made it.
        state.purge_below(LogPos(40));
        assert!(!state.is_changed(a) && state.is_changed(b) && inos(&state).is_empty());
        state.purge_below(LogPos(50));
        assert!(!state.is_changed(b));
    }
}
