//! Names and attributes that the kernel has cached, and having it dropped before another client may
//! change it (DESIGN §9).
//!
//! * **Attributes and pages** go with one notification about their inode. Those
//!   that are on their way when it comes are known to the kernel by their age, or held
//!   under a page's lock that the notification waits for.
//! * **Names** have to be dropped one by one, so they are noted here before the kernel is
//!   cached one. A notification about a name waits for all requests on the directory that
//!   hold its lock. Only one kind does not: asking again for a name that was dropped. So
//!   while a directory ping-pongs between clients, its names are given with the
//!   remark not to keep them.
//!
//! Names are dropped by having them asked for again, not by detaching them: the working
//! directory of a process, and the path of an open file, stay what they are.
//!
//! Lock order: the shards are leaves.

use crate::serving::notify::{Inval, Notifier, keeps_nothing};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
/// Names of one directory that are noted. Beyond that all names of all directories are
/// asked for again.
const NAMES_MAX: usize = 1 << 16;
/// A directory that was taken away less than this ago ping-pongs.
const RESTLESS: Duration = Duration::from_secs(10);
/// A name that no directory has: a notification about it only waits.
const NO_NAME: &[u8] = b"/";

/// Names of one directory.
#[derive(Default)]
struct Names {
    cached: HashSet<Box<[u8]>>,
    /// Too many to be noted.
    many: bool,
    taken: Option<Instant>,
}

/// What the kernel has cached.
pub(crate) struct KernelDentries {
    directories: [Mutex<HashMap<u64, Names>>; SHARDS],
    /// Files with pages that a program wrote through a shared mapping.
    mapped: Mutex<HashSet<u64>>,
    any_mapped: AtomicBool,
    /// A process before this one gave names that are not noted here.
    unknown: AtomicBool,
    /// Clients besides this one.
    others: AtomicUsize,
}

impl KernelDentries {
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            directories: std::array::from_fn(|_| Mutex::default()),
            mapped: Mutex::default(),
            any_mapped: AtomicBool::new(false),
            unknown: AtomicBool::new(continues),
            others: AtomicUsize::new(0),
        }
    }

    fn shard(&self, dir: u64) -> &Mutex<HashMap<u64, Names>> {
        &self.directories[(dir.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// Notes a directory of which the kernel gets a listing: names come along with it.
    pub(crate) fn directory(&self, dir: u64) {
        self.shard(dir).lock().entry(dir).or_default();
    }

    /// Notes a name before the kernel gets what it stands for, or that it stands for nothing.
    pub(crate) fn name(&self, dir: u64, name: &[u8]) {
        let mut shard = self.shard(dir).lock();
        let names = shard.entry(dir).or_default();
        if names.many || names.cached.contains(name) {
            return;
        }
        if names.cached.len() >= NAMES_MAX {
            names.cached = HashSet::new();
            names.many = true;
        } else {
            names.cached.insert(name.into());
        }
    }

    /// Whether the kernel may keep names of a directory.
    pub(crate) fn keeps_names(&self, dir: u64) -> bool {
        let shard = self.shard(dir).lock();
        let taken = shard.get(&dir).and_then(|names| names.taken);
        taken.is_none_or(|at| at.elapsed() > RESTLESS)
    }

    /// Whether the kernel may keep attributes that it does not check the age of.
    pub(crate) fn alone(&self) -> bool {
        self.others.load(Ordering::Acquire) == 0
    }

    /// So many clients are there besides this one.
    pub(crate) fn set_others(&self, count: usize) {
        self.others.store(count, Ordering::Release);
    }

    /// Notes that a program writes a file through a shared mapping.
    pub(crate) fn written_mapped(&self, ino: u64) {
        if self.mapped.lock().insert(ino) {
            self.any_mapped.store(true, Ordering::Release);
        }
    }

    /// Whether a program may be writing a file through a shared mapping.
    pub(crate) fn is_mapped(&self, ino: u64) -> bool {
        self.any_mapped.load(Ordering::Acquire) && self.mapped.lock().contains(&ino)
    }

    /// The kernel has forgotten an inode, and everything below it.
    pub(crate) fn forget(&self, ino: u64) {
        self.shard(ino).lock().remove(&ino);
        if self.any_mapped.load(Ordering::Acquire) {
            self.mapped.lock().remove(&ino);
        }
    }

    /// Has everything about an inode dropped. Waits for requests.
    ///
    /// # Errors
    /// The kernel keeps what it has.
    pub(crate) fn drop_all(&self, notifier: &Notifier, ino: u64) -> io::Result<()> {
        if self.unknown.load(Ordering::Acquire) {
            // From now on every name is asked for here, and noted.
            notifier.inc_epoch()?;
            self.unknown.store(false, Ordering::Release);
        }
        let directory = {
            let mut shard = self.shard(ino).lock();
            let names = shard.get_mut(&ino);
            names.map(|n| n.taken = Some(Instant::now())).is_some()
        };
        if directory {
            // Waits for who is telling names, so that none is noted behind our back.
            notifier.expire_entry(ino, NO_NAME)?;
            self.drop_names(notifier, ino)?;
        }
        notifier.inval_inode(ino, Inval::All)
    }

    /// Has all names asked for again, and all that is kept about these inodes dropped. Waits for requests.
    pub(crate) fn drop_whole(&self, notifier: &Notifier, inos: &[u64]) {
        let names = notifier.inc_epoch();
        let kept = |done: &io::Result<()>| done.as_ref().is_err_and(|e| !keeps_nothing(e));
        if kept(&names) {
            tracing::error!(?names, "the kernel keeps names");
        }
        for &ino in inos {
            let done = notifier.inval_inode(ino, Inval::All);
            if kept(&done) {
                tracing::error!(ino, ?done, "the kernel keeps what it has");
            }
        }
    }

    fn drop_names(&self, notifier: &Notifier, dir: u64) -> io::Result<()> {
        let (cached, many) = match self.shard(dir).lock().get_mut(&dir) {
            Some(names) => (
                std::mem::take(&mut names.cached),
                std::mem::take(&mut names.many),
            ),
            None => return Ok(()),
        };
        if many {
            return notifier.inc_epoch();
        }
        cached
            .iter()
            .try_for_each(|name| notifier.expire_entry(dir, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_noted_up_to_a_limit() {
        let dentries = KernelDentries::new(false);
        dentries.name(5, b"a");
        dentries.name(5, b"a");
        for n in 0..NAMES_MAX {
            dentries.name(6, &n.to_le_bytes());
        }
        let count = |dir| {
            let shard = dentries.shard(dir).lock();
            (shard[&dir].cached.len(), shard[&dir].many)
        };
        assert_eq!(count(5), (1, false));
        assert_eq!(count(6), (NAMES_MAX, false));
        dentries.name(6, b"one more");
        assert_eq!(count(6), (0, true));
        dentries.forget(6);
        dentries.name(6, b"again");
        assert_eq!(count(6), (1, false));
        assert!(dentries.keeps_names(5));
        dentries.shard(5).lock().get_mut(&5).unwrap().taken = Some(Instant::now());
        assert!(!dentries.keeps_names(5) && dentries.keeps_names(7));
    }

    #[test]
    fn mapped_files_are_known_until_they_are_forgotten() {
        let dentries = KernelDentries::new(false);
        assert!(!dentries.is_mapped(5) && dentries.alone());
        dentries.written_mapped(5);
        assert!(dentries.is_mapped(5) && !dentries.is_mapped(6));
        dentries.forget(5);
        assert!(!dentries.is_mapped(5));
        dentries.set_others(2);
        assert!(!dentries.alone());
    }
}
