//! Which processes used a file through the mount.
//!
//! Three things are asked. Whether FUSE clients *use its contents now*, through the kernel's
//! pages: a client that could go past the mount leaves them the file. And whether anybody
//! *but one client* has asked for anything about it: if nobody has, what the kernel
//! thinks of its size matters to nobody but this client, which knows better. If somebody who is no client has
//! done so recently, or appends to it, the kernel alone makes it longer.
//!
//! Threads are noted, and looked for among those of a process when somebody asks. What has ended
//! uses nothing. Of the files used least recently nothing is known any more.
//!
//! Lock order: the shards are leaves.

use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
/// A file is in use for so long after it was read or written.
const IN_USE: Duration = Duration::from_millis(500);
/// A file is shared for so long after somebody asked for anything about it.
const SHARED: Duration = Duration::from_secs(10);
/// Files of one generation of a shard.
const FILES_MAX: usize = 1 << 10;
/// Threads of one file that are noted.
const THREADS: usize = 8;

/// A thread, when it asked last for anything, and when for the contents.
#[derive(Clone, Copy)]
struct Use {
    tid: u32,
    at: Instant,
    contents: Option<Instant>,
    /// It has appended to the file: it may have the size that it takes for its end in hand already.
    appends: bool,
}

/// The last threads of a file.
#[derive(Clone, Default)]
struct Used {
    /// Mostly one; there are many files.
    threads: SmallVec<[Use; 1]>,
    /// When one was left out for want of space: it may live.
    more: Option<Instant>,
    /// The file was made here: all is known.
    made: bool,
}
const _: () = assert!(size_of::<Used>() <= 88, "one for each file used recently");

/// Files used recently, and those used before them.
#[derive(Default)]
struct Shard {
    young: HashMap<u64, Used>,
    old: HashMap<u64, Used>,
}

/// See the module.
pub(crate) struct Users {
    shards: [Mutex<Shard>; SHARDS],
    /// A process before this one knew who used which file.
    continues: bool,
    began: Instant,
}

impl Users {
    pub(crate) fn new(continues: bool) -> Self {
        Self {
            shards: Default::default(),
            continues,
            began: Instant::now(),
        }
    }

    fn shard(&self, ino: u64) -> &Mutex<Shard> {
        &self.shards[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// Thread `tid` asks for something about a file; for its `contents`. `true`: for the first time.
    pub(crate) fn note(&self, ino: u64, tid: u32, contents: bool) -> bool {
        let at = Instant::now();
        let mut shard = self.shard(ino).lock();
        let used = shard.used(ino);
        let contents = contents.then_some(at);
        if let Some(known) = used.threads.iter_mut().find(|u| u.tid == tid) {
            known.at = at;
            known.contents = contents.or(known.contents);
            return false;
        }
        let new = Use {
            tid,
            at,
            contents,
            appends: false,
        };
        used.add(new);
        true
    }

    /// The file is new: nobody used it before.
    pub(crate) fn made(&self, ino: u64) {
        self.shard(ino).lock().used(ino).made = true;
    }

    /// For how long the contents are in use yet by other processes than `clients`.
    pub(crate) fn besides(&self, ino: u64, clients: &[i32]) -> Option<Duration> {
        let used = self.shard(ino).lock().get(ino)?;
        let left = |u: &Use| {
            let left = IN_USE.checked_sub(u.contents?.elapsed())?;
            let of_client = clients.iter().any(|&pid| is_thread(u.tid, pid));
            (!of_client && lives(u.tid)).then_some(left)
        };
        used.threads.iter().filter_map(left).max()
    }

    /// Thread `tid`, which was noted, appends to a file.
    pub(crate) fn appends(&self, ino: u64, tid: u32) {
        let mut shard = self.shard(ino).lock();
        let threads = shard.used(ino).threads.iter_mut();
        threads
            .filter(|u| u.tid == tid)
            .for_each(|u| u.appends = true);
    }

    /// Whether processes other than `clients` asked for anything about a file recently, or append to it;
    /// or it may be so.
    pub(crate) fn shared(&self, ino: u64, clients: &[i32]) -> bool {
        let used = self.shard(ino).lock().get(ino).unwrap_or_default();
        let shares = |u: &Use| {
            let of_client = || clients.iter().any(|&pid| is_thread(u.tid, pid));
            (u.appends || u.at.elapsed() < SHARED) && lives(u.tid) && !of_client()
        };
        let unknown = self.continues && !used.made && self.began.elapsed() < SHARED;
        let more = used.more.is_some_and(|at| at.elapsed() < SHARED);
        unknown || more || used.threads.iter().any(shares)
    }

    /// How long ago a process other than `pid` asked last for anything about a file; `None`: none
    /// that is known of has, or it has ended. Long, if there may be some that is not known of.
    pub(crate) fn others(&self, ino: u64, pid: i32) -> Option<Duration> {
        let used = self.shard(ino).lock().get(ino).unwrap_or_default();
        let others = used.threads.iter();
        let others = others.filter(|u| !is_thread(u.tid, pid) && lives(u.tid));
        let last = others.map(|u| u.at).chain(used.more).max();
        let unknown = self.continues && !used.made;
        last.map(|at| at.elapsed())
            .or(unknown.then_some(Duration::MAX))
    }

    /// The kernel has forgotten an inode.
    pub(crate) fn forget(&self, ino: u64) {
        let mut shard = self.shard(ino).lock();
        shard.young.remove(&ino);
        shard.old.remove(&ino);
    }
}

impl Shard {
    fn get(&self, ino: u64) -> Option<Used> {
        self.young.get(&ino).or_else(|| self.old.get(&ino)).cloned()
    }

    /// What is known of a file that is used now.
    fn used(&mut self, ino: u64) -> &mut Used {
        if !self.young.contains_key(&ino) {
            if self.young.len() >= FILES_MAX {
                self.old = std::mem::take(&mut self.young);
            }
            let known = self.old.remove(&ino).unwrap_or_default();
            self.young.insert(ino, known);
        }
        self.young.entry(ino).or_default()
    }
}

impl Used {
    fn add(&mut self, new: Use) {
        let looked = self.more.is_some_and(|at| at.elapsed() < IN_USE);
        if self.threads.len() >= THREADS && !looked {
            self.threads.retain(|u| lives(u.tid));
        }
        if self.threads.len() < THREADS {
            return self.threads.push(new);
        }
        self.more = Some(new.at);
        if let Some(oldest) = self.threads.iter_mut().min_by_key(|u| u.at) {
            *oldest = new;
        }
    }
}

/// Whether a thread has not ended. The kernel, and who lives in a place with numbers of its own,
/// have number 0.
fn lives(tid: u32) -> bool {
    tid == 0 || Path::new(&format!("/proc/{tid}")).exists()
}

/// Whether a thread is one of a process.
fn is_thread(tid: u32, pid: i32) -> bool {
    i64::from(tid) == i64::from(pid) || Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_kept_from_a_file_by_itself() {
        let (users, own) = (Users::new(false), std::process::id());
        assert_eq!(users.besides(5, &[own as i32]), None);
        assert!(users.note(5, own, true) && !users.note(5, own, false));
        assert_eq!(users.besides(5, &[1, own as i32]), None);
        assert!(users.besides(5, &[1]).is_some_and(|left| left <= IN_USE));
        let (tids, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tids.send(rustix::thread::gettid().as_raw_pid() as u32).ok();
            ended.recv().ok();
        });
        users.note(5, tid.recv().unwrap(), true);
        assert_eq!(users.besides(5, &[own as i32]), None, "a thread of its own");
        assert_eq!(users.others(5, own as i32), None);
        // Another process, and the own one again: both are remembered.
        users.note(5, 1, true);
        users.note(5, own, true);
        assert!(users.besides(5, &[own as i32]).is_some());
        assert!(users.others(5, own as i32).is_some());
        users.note(6, u32::MAX, true);
        assert_eq!(users.besides(6, &[1]), None, "there is no such thread");
        drop(end);
        thread.join().unwrap();
        users.forget(5);
        assert_eq!(users.besides(5, &[1]), None);
        assert_eq!(users.others(5, 1), None);
    }

    #[test]
    fn who_has_only_asked_about_a_file_does_not_use_its_contents() {
        let (users, own) = (Users::new(false), std::process::id() as i32);
        users.note(5, 1, false);
        assert_eq!(users.besides(5, &[own]), None);
        assert!(users.others(5, own).is_some());
        assert_eq!(users.others(5, 1), None);
    }

    #[test]
    fn a_file_is_shared_with_recent_openers_and_appenders() {
        let (users, own) = (Users::new(false), std::process::id() as i32);
        assert!(!users.shared(5, &[own]));
        users.note(5, own as u32, true);
        assert!(!users.shared(5, &[own]) && users.shared(5, &[]));
        users.note(5, 1, false);
        assert!(users.shared(5, &[own]) && !users.shared(5, &[own, 1]));
        let long_ago = |users: &Users| {
            let mut shard = users.shard(5).lock();
            for known in shard.used(5).threads.iter_mut() {
                known.at = known.at.checked_sub(SHARED).unwrap();
            }
        };
        long_ago(&users);
        assert!(!users.shared(5, &[own]));
        users.appends(5, 1);
        assert!(
            users.shared(5, &[own]),
            "it may be about to append once more"
        );
        users.note(6, u32::MAX, true);
        users.appends(6, u32::MAX);
        assert!(!users.shared(6, &[own]), "it has ended");
        assert!(Users::new(true).shared(7, &[]), "nothing is known yet");
    }

    #[test]
    fn of_what_a_process_before_saw_only_new_files_are_known() {
        let users = Users::new(true);
        users.made(5);
        assert_eq!(users.others(5, 1), None);
        assert_eq!(users.others(6, 1), Some(Duration::MAX));
        users.note(6, 1, true);
        assert_eq!(users.others(6, 1), Some(Duration::MAX));
        assert_eq!(users.besides(6, &[1]), None);
    }

    #[test]
    fn those_that_do_not_fit_are_not_forgotten_while_they_may_live() {
        let users = Users::new(false);
        for tid in (0..8 * THREADS as u32).map(|n| u32::MAX - n) {
            users.note(5, tid, true);
        }
        assert_eq!(users.others(5, 1), None, "they have all ended");
        for _ in 0..THREADS {
            users.note(5, 0, false);
        }
        assert!(users.others(5, 1).is_some(), "nobody knows who that is");
        let live = std::fs::read_dir("/proc").unwrap().filter_map(|e| {
            let name = e.unwrap().file_name();
            name.to_str()?.parse::<u32>().ok()
        });
        let live: Vec<u32> = live.take(THREADS + 1).collect();
        if live.len() == THREADS + 1 {
            for &tid in &live {
                assert!(users.note(6, tid, false));
            }
            assert!(users.shard(6).lock().get(6).unwrap().more.is_some());
        }
    }

    #[test]
    fn files_used_long_ago_do_not_stay() {
        let users = Users::new(false);
        let files = (3 * FILES_MAX * SHARDS) as u64;
        for ino in 0..files {
            users.note(ino, 1, true);
            users.note(0, 1, true);
        }
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        assert!(users.shards.iter().all(|s| count(s) <= 2 * FILES_MAX));
        assert!(users.others(0, 2).is_some(), "used again and again");
        assert!(users.others(files - 1, 2).is_some());
    }
}
