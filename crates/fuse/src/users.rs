//! Which programs on the mount used the contents of a file lately.
//!
//! Those whose calls go through the kernel's pages are noted: a client that could go past the mount
//! leaves them the file. The clients that do so are told by their numbers.
//!
//! Lock order: the shards are leaves.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
/// A file is in use for so long after it was read or written.
const IN_USE: Duration = Duration::from_millis(500);
/// Files of one shard that are noted; beyond that those not in use any more are taken out.
const FILES_MAX: usize = 1 << 12;

/// A thread that used a file, and when.
type Use = (u32, Instant);

/// The last two threads of each file: one may be a client's.
#[derive(Default)]
pub(crate) struct Users([Mutex<HashMap<u64, [Option<Use>; 2]>>; SHARDS]);

impl Users {
    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, [Option<Use>; 2]>> {
        &self.0[(ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % SHARDS]
    }

    /// Thread `tid` uses a file.
    pub(crate) fn note(&self, ino: u64, tid: u32) {
        let now = Instant::now();
        let mut shard = self.shard(ino).lock();
        if shard.len() >= FILES_MAX {
            shard.retain(|_, used| used.iter().flatten().any(|u| u.1.elapsed() < IN_USE));
        }
        let used = shard.entry(ino).or_default();
        if used[0].is_some_and(|u| u.0 != tid) {
            used.swap(0, 1);
        }
        used[0] = Some((tid, now));
    }

    /// For how long the file is in use yet by other processes than `clients`. What has ended
    /// uses nothing.
    pub(crate) fn besides(&self, ino: u64, clients: &[i32]) -> Option<Duration> {
        let used = *self.shard(ino).lock().get(&ino)?;
        let left = |&(tid, at): &Use| {
            let left = IN_USE.checked_sub(at.elapsed())?;
            let of_client = clients.iter().any(|&pid| is_thread(tid, pid));
            (!of_client && lives(tid)).then_some(left)
        };
        used.iter().flatten().filter_map(left).max()
    }

    /// The kernel has forgotten an inode.
    pub(crate) fn forget(&self, ino: u64) {
        self.shard(ino).lock().remove(&ino);
    }
}

fn lives(tid: u32) -> bool {
    Path::new(&format!("/proc/{tid}")).exists()
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
        let (users, own) = (Users::default(), std::process::id());
        assert_eq!(users.besides(5, &[own as i32]), None);
        users.note(5, own);
        assert_eq!(users.besides(5, &[1, own as i32]), None);
        assert!(users.besides(5, &[1]).is_some_and(|left| left <= IN_USE));
        let (told, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            told.send(rustix::thread::gettid().as_raw_pid() as u32).ok();
            ended.recv().ok();
        });
        users.note(5, tid.recv().unwrap());
        assert_eq!(users.besides(5, &[own as i32]), None, "a thread of its own");
        // Another process, and the own one again: both are remembered.
        users.note(5, 1);
        users.note(5, own);
        assert!(users.besides(5, &[own as i32]).is_some());
        users.note(6, u32::MAX);
        assert_eq!(users.besides(6, &[1]), None, "there is no such thread");
        drop(end);
        thread.join().unwrap();
        users.forget(5);
        assert_eq!(users.besides(5, &[1]), None);
    }

    #[test]
    fn files_that_are_not_used_any_more_do_not_stay() {
        let users = Users::default();
        let long_ago = Instant::now().checked_sub(2 * IN_USE).unwrap();
        for ino in 0..(2 * FILES_MAX * SHARDS) as u64 {
            users
                .shard(ino)
                .lock()
                .insert(ino, [Some((1, long_ago)), None]);
            users.note(0, 1);
        }
        let shard = users.shard(0).lock();
        assert!(shard.len() <= FILES_MAX + 1, "{}", shard.len());
    }
}
