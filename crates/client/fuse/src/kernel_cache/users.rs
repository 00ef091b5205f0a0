//! Which processes used one file through the mount.
//!
//! Three things are asked. Whether FUSE clients *use its contents now*, through the kernel's pages: a client that could go
//! past the mount leaves them the file. And whether anybody *but one client* has asked for anything about it: if nobody
//! has, what the kernel thinks of its size matters to nobody but this client, which knows better. If somebody who is no
//! client has done so recently, or appends to it, the kernel alone makes it longer.
//!
//! Threads are noted, and looked for among those of a process when somebody asks, which reads `/proc`: from a copy, with
//! no lock held. What has ended uses nothing.

use smallvec::SmallVec;
use std::path::Path;
use std::time::{Duration, Instant};

/// A file is in use for so long after it was read or written.
const IN_USE: Duration = Duration::from_millis(500);
/// A file is shared for so long after somebody asked for anything about it.
pub(super) const SHARED: Duration = Duration::from_secs(10);
/// Threads of one file that are noted.
pub(super) const THREADS: usize = 8;

/// A thread, when it asked last for anything, and when for the contents.
#[derive(Debug, Clone, Copy)]
struct Use {
    tid: u32,
    at: Instant,
    contents: Option<Instant>,
    /// It has appended to the file: it may have the size that it takes for its end in hand already.
    appends: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct FileUsers {
    /// Mostly one; there are many files.
    threads: SmallVec<[Use; 1]>,
    /// When one was left out for want of space: it may live.
    more: Option<Instant>,
    /// The file was made here: all is known.
    is_new: bool,
}
const _: () = assert!(
    size_of::<FileUsers>() <= 88,
    "one for each file used recently"
);

impl FileUsers {
    /// Thread `tid` asks for something about the file; for its `contents`. `true`: for the first time.
    pub(super) fn note(&mut self, tid: u32, contents: bool) -> bool {
        let at = Instant::now();
        let contents = contents.then_some(at);
        if let Some(known) = self.threads.iter_mut().find(|u| u.tid == tid) {
            known.at = at;
            known.contents = contents.or(known.contents);
            return false;
        }
        self.add(Use {
            tid,
            at,
            contents,
            appends: false,
        });
        true
    }

    /// The file is new: nobody used it before.
    pub(super) fn is_new(&mut self) {
        self.is_new = true;
    }

    /// Thread `tid`, which was noted, appends to the file.
    pub(super) fn appends(&mut self, tid: u32) {
        let threads = self.threads.iter_mut();
        threads
            .filter(|u| u.tid == tid)
            .for_each(|u| u.appends = true);
    }

    /// For how long the contents are in use yet by other processes than `clients`.
    pub(super) fn in_use_besides(&self, clients: &[i32]) -> Option<Duration> {
        let left = |u: &Use| {
            let left = IN_USE.checked_sub(u.contents?.elapsed())?;
            let of_client = clients.iter().any(|&pid| is_thread(u.tid, pid));
            (!of_client && lives(u.tid)).then_some(left)
        };
        self.threads.iter().filter_map(left).max()
    }

    /// Whether processes other than `clients` asked for anything about the file recently, or append to it; or it may be
    /// so. `inherited`: for how long this process has served a mount that one before it served.
    pub(super) fn is_shared(&self, clients: &[i32], inherited: Option<Duration>) -> bool {
        let shares = |u: &Use| {
            let of_client = || clients.iter().any(|&pid| is_thread(u.tid, pid));
            (u.appends || u.at.elapsed() < SHARED) && lives(u.tid) && !of_client()
        };
        let unknown = !self.is_new && inherited.is_some_and(|since| since < SHARED);
        let more = self.more.is_some_and(|at| at.elapsed() < SHARED);
        unknown || more || self.threads.iter().any(shares)
    }

    /// How long ago a process other than `pid` asked last for anything about the file; `None`: none that is known of has,
    /// or it has ended. Long, if there may be some that is not known of, since a process before this one served (`inherited`).
    pub(super) fn others(&self, pid: i32, inherited: bool) -> Option<Duration> {
        let others = self.threads.iter();
        let others = others.filter(|u| lives(u.tid) && !is_thread(u.tid, pid));
        let last = others.map(|u| u.at).chain(self.more).max();
        let unknown = inherited && !self.is_new;
        last.map(|at| at.elapsed())
            .or(unknown.then_some(Duration::MAX))
    }

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
pub(crate) fn is_thread(tid: u32, pid: i32) -> bool {
    i64::from(tid) == i64::from(pid) || Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_not_kept_from_a_file_by_itself() {
        let (mut users, own) = (FileUsers::default(), std::process::id());
        let pid = own as i32;
        assert_eq!(users.in_use_besides(&[pid]), None);
        assert!(users.note(own, true) && !users.note(own, false));
        assert_eq!(users.in_use_besides(&[1, pid]), None);
        assert!(
            users
                .in_use_besides(&[1])
                .is_some_and(|left| left <= IN_USE)
        );
        let (tids, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tids.send(rustix::thread::gettid().as_raw_pid() as u32).ok();
            ended.recv().ok();
        });
        users.note(tid.recv().unwrap(), true);
        assert_eq!(users.in_use_besides(&[pid]), None, "a thread of its own");
        assert_eq!(users.others(pid, false), None);
        // Another process, and the own one again: both are remembered.
        users.note(1, true);
        users.note(own, true);
        assert!(users.in_use_besides(&[pid]).is_some());
        assert!(users.others(pid, false).is_some());
        let mut ended = FileUsers::default();
        ended.note(u32::MAX, true);
        assert_eq!(ended.in_use_besides(&[1]), None, "there is no such thread");
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn who_has_only_asked_about_a_file_does_not_use_its_contents() {
        let (mut users, own) = (FileUsers::default(), std::process::id() as i32);
        users.note(1, false);
        assert_eq!(users.in_use_besides(&[own]), None);
        assert!(users.others(own, false).is_some());
        assert_eq!(users.others(1, false), None);
    }

    #[test]
    fn a_file_is_shared_with_recent_openers_and_appenders() {
        let (mut users, own) = (FileUsers::default(), std::process::id() as i32);
        assert!(!users.is_shared(&[own], None));
        users.note(own as u32, true);
        assert!(!users.is_shared(&[own], None) && users.is_shared(&[], None));
        users.note(1, false);
        assert!(users.is_shared(&[own], None) && !users.is_shared(&[own, 1], None));
        for known in users.threads.iter_mut() {
            known.at = known.at.checked_sub(SHARED).unwrap();
        }
        assert!(!users.is_shared(&[own], None));
        users.appends(1);
        let why = "it may be about to append once more";
        assert!(users.is_shared(&[own], None), "{why}");
        let mut ended = FileUsers::default();
        ended.note(u32::MAX, true);
        ended.appends(u32::MAX);
        assert!(!ended.is_shared(&[own], None), "it has ended");
        let nothing = FileUsers::default();
        assert!(nothing.is_shared(&[], Some(Duration::ZERO)));
        assert!(!nothing.is_shared(&[], Some(SHARED)));
    }

    #[test]
    fn of_what_a_process_before_saw_only_new_files_are_known() {
        let (mut new, mut old) = (FileUsers::default(), FileUsers::default());
        new.is_new();
        assert_eq!(new.others(1, true), None);
        assert!(!new.is_shared(&[], Some(Duration::ZERO)));
        assert_eq!(old.others(1, true), Some(Duration::MAX));
        old.note(1, true);
        assert_eq!(old.others(1, true), Some(Duration::MAX));
        assert_eq!(old.in_use_besides(&[1]), None);
    }

    #[test]
    fn those_that_do_not_fit_are_not_forgotten_while_they_may_live() {
        let mut users = FileUsers::default();
        for tid in (0..8 * THREADS as u32).map(|n| u32::MAX - n) {
            users.note(tid, true);
        }
        assert_eq!(users.others(1, false), None, "they have all ended");
        for _ in 0..THREADS {
            users.note(0, false);
        }
        assert!(users.others(1, false).is_some(), "nobody knows who that is");
        let live = std::fs::read_dir("/proc").unwrap().filter_map(|e| {
            let name = e.unwrap().file_name();
            name.to_str()?.parse::<u32>().ok()
        });
        let live: Vec<u32> = live.take(THREADS + 1).collect();
        if live.len() == THREADS + 1 {
            let mut users = FileUsers::default();
            for &tid in &live {
                assert!(users.note(tid, false));
            }
            assert!(users.more.is_some());
        }
    }
}
