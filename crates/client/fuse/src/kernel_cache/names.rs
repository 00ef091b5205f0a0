//! Names of one directory that the kernel has cached.
//!
//! They are dropped one by one, so each is noted before the kernel gets it. A notification about a name waits for all
//! requests on the directory that hold its lock. Only one kind does not: asking again for a name that was dropped. So
//! while a directory goes back and forth between clients, those names are given with the remark not to keep them. Names that the
//! kernel has not had yet, that it makes or that it lists are kept.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Names of one directory that are noted. Beyond that all names of all directories are asked for again.
pub(super) const NAMES_MAX: usize = 1 << 16;
/// A directory that was taken away less than this ago goes back and forth.
const RESTLESS: Duration = Duration::from_secs(10);

/// Names up to a limit: those that the kernel may know of a directory.
#[derive(Debug, Default, PartialEq, Eq)]
struct NameSet {
    these: HashSet<Box<[u8]>>,
    /// Too many to be noted: any name may be one.
    many: bool,
}

impl NameSet {
    fn insert(&mut self, name: &[u8]) {
        if self.has(name) {
            return;
        }
        if self.these.len() >= NAMES_MAX {
            self.all();
        } else {
            self.these.insert(name.into());
        }
    }

    /// Any name may be one.
    fn all(&mut self) {
        self.these = HashSet::new();
        self.many = true;
    }

    fn has(&self, name: &[u8]) -> bool {
        self.many || self.these.contains(name)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Names {
    cached: NameSet,
    /// Those that were dropped while the directory goes back and forth: the kernel may have them still, and ask again for them.
    dropped: NameSet,
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
        self.cached.insert(name);
    }

    /// Another client is about to get the directory.
    pub(super) fn leaves(&mut self) {
        if !self.is_restless() {
            self.dropped = NameSet::default();
        }
        self.taken = Some(Instant::now());
    }

    fn is_restless(&self) -> bool {
        self.taken.is_some_and(|at| at.elapsed() <= RESTLESS)
    }

    /// Whether the kernel may keep the answer when it asks for a name.
    pub(super) fn may_be_kept(&self, name: &[u8]) -> bool {
        !self.is_restless() || !self.dropped.has(name)
    }

    /// What the kernel is to ask for again; none is noted any more.
    pub(super) fn take(&mut self) -> Cached {
        let cached = std::mem::take(&mut self.cached);
        if cached.many {
            self.dropped.all();
            return Cached::Many;
        }
        cached
            .these
            .iter()
            .for_each(|name| self.dropped.insert(name));
        Cached::These(cached.these)
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
        assert!(!names.cached.many && names.cached.these.len() == NAMES_MAX);
        names.note(b"one more");
        assert!(names.cached.these.is_empty());
        assert_eq!(names.take(), Cached::Many);
        names.note(b"again");
        assert_eq!(names.take(), Cached::These([b"again"[..].into()].into()));
    }

    #[test]
    fn names_that_were_dropped_are_not_kept_for_a_while() {
        let mut names = Names::default();
        let kept = |names: &Names| [&b"a"[..], b"b", b"c"].map(|name| names.may_be_kept(name));
        let leave = |names: &mut Names| {
            names.leaves();
            names.take();
        };
        names.note(b"a");
        assert_eq!(kept(&names), [true; 3]);
        leave(&mut names);
        assert_eq!(kept(&names), [false, true, true]);
        names.note(b"b");
        leave(&mut names);
        assert_eq!(kept(&names), [false, false, true], "those before, too");
        let later = |names: &mut Names| {
            names.taken = names.taken.and_then(|at| at.checked_sub(2 * RESTLESS));
        };
        later(&mut names);
        assert_eq!(kept(&names), [true; 3]);
        leave(&mut names);
        assert_eq!(kept(&names), [true; 3], "none was noted since");
        (0..=NAMES_MAX).for_each(|n| names.note(&n.to_le_bytes()));
        leave(&mut names);
        assert_eq!(kept(&names), [false; 3], "nobody knows which ones");
    }
}
