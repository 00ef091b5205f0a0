//! The files that a client which yields has asked for a lease on.
//!
//! Such a client leaves a file to the kernel when it is asked to, bypassing the kernel's page cache, and until the same moment as
//! all others do: so what it does through the mount keeps nobody from the file. Files that it has not asked for,
//! or given back, it uses on the mount as any program there, and is counted among these.

use shale_proto::ASKED_FILES;
use std::collections::HashSet;

/// The last [`ASKED_FILES`] files at most. Who has asked for more counts as a FUSE client for
/// the others, which costs time and nothing else.
#[derive(Default)]
pub struct Asked {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Asked {
    /// It asks for a lease on a file.
    pub fn note(&mut self, ino: u64) {
        if self.young.len() >= ASKED_FILES / 2 && !self.young.contains(&ino) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&ino);
        self.young.insert(ino);
    }

    /// It gives a file back.
    pub fn forget(&mut self, ino: u64) {
        self.young.remove(&ino);
        self.old.remove(&ino);
    }

    /// Whether it has asked for a file.
    pub fn has(&self, ino: u64) -> bool {
        self.young.contains(&ino) || self.old.contains(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_remembered_until_they_are_given_back_or_many_were_asked_for() {
        let mut asked = Asked::default();
        for ino in 0..10 * ASKED_FILES as u64 {
            asked.note(ino);
            asked.note(7);
            assert!(asked.has(ino) && asked.has(7));
            assert!(asked.young.len() + asked.old.len() <= ASKED_FILES);
        }
        assert!(!asked.has(8));
        asked.forget(7);
        assert!(!asked.has(7));
    }
}
