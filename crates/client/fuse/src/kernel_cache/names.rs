//! Names of one directory that the kernel has cached.
//!
//! They are dropped one by one, so each is noted before the kernel gets it. A notification about a name waits for all
//! requests on the directory that hold its lock. Only one kind does not: asking again for a name that was dropped. So
//! while a directory goes back and forth between clients, its names are given with the remark not to keep them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Names of one directory that are noted. Beyond that all names of all directories are asked for again.
pub(super) const NAMES_MAX: usize = 1 << 16;
/// A directory that was taken away less than this ago goes back and forth.
const RESTLESS: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Default)]
pub(super) struct Names {
    cached: HashSet<Box<[u8]>>,
    /// Too many to be noted.
    many: bool,
    taken: Option<Instant>,
}

/// Names that the kernel is to ask for again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cached {
    /// These of the directory.
    These(HashSet<Box<[u8]>>),
    /// More than were noted.
    Many,
}

impl Names {
    /// Before the kernel gets what a name stands for, or that it stands for nothing.
    pub(super) fn note(&mut self, name: &[u8]) {
        if self.many || self.cached.contains(name) {
            return;
        }
        if self.cached.len() >= NAMES_MAX {
            self.cached = HashSet::new();
            self.many = true;
        } else {
            self.cached.insert(name.into());
        }
    }

    /// Another client is about to get the directory.
    pub(super) fn leaves(&mut self) {
        self.taken = Some(Instant::now());
    }

    /// Whether the kernel may keep names of it.
    pub(super) fn may_be_kept(&self) -> bool {
        self.taken.is_none_or(|at| at.elapsed() > RESTLESS)
    }

    /// What the kernel is to ask for again; none is noted any more.
    pub(super) fn take(&mut self) -> Cached {
        let cached = std::mem::take(&mut self.cached);
        match std::mem::take(&mut self.many) {
            true => Cached::Many,
            false => Cached::These(cached),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_noted_up_to_a_limit() {
        let mut names = Names::default();
        names.note(b"a");
        names.note(b"a");
        assert_eq!(names.take(), Cached::These([b"a"[..].into()].into()));
        assert_eq!(names.take(), Cached::These(HashSet::new()));
        for n in 0..NAMES_MAX {
            names.note(&n.to_le_bytes());
        }
        assert!(!names.many && names.cached.len() == NAMES_MAX);
        names.note(b"one more");
        assert!(names.cached.is_empty());
        assert_eq!(names.take(), Cached::Many);
        names.note(b"again");
        assert_eq!(names.take(), Cached::These([b"again"[..].into()].into()));
    }

    #[test]
    fn names_of_a_directory_that_has_left_are_not_kept_for_a_while() {
        let mut names = Names::default();
        assert!(names.may_be_kept());
        names.leaves();
        assert!(!names.may_be_kept());
        names.taken = names.taken.and_then(|at| at.checked_sub(2 * RESTLESS));
        assert!(names.may_be_kept());
    }
}
