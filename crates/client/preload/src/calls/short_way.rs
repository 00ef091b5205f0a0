//! The short way of a thread to an inode that it has used recently ([`shale_fd::recent`]).

use crate::client::Client;
use crate::pays;
use core::sync::atomic::Ordering;
use shale_fd::recent;
use shale_interpose::thread::Thread;
use shale_libfs::InodeHandle;

/// Calls `f` with the thread's short way to an inode. The thread is busy, and `f` does not
/// come back here.
#[inline]
pub fn with<T>(
    thread: &Thread,
    client: &Client,
    ino: u64,
    f: impl FnOnce(&mut InodeHandle) -> T,
) -> T {
    let serve = |recent: Option<&mut recent::Recent>| match recent {
        Some(recent) => {
            let entry = recent.get(client.number, ino);
            entry.calls = entry.calls.saturating_add(1);
            let result = f(&mut entry.found);
            if thread.asked.load(Ordering::Relaxed) == ino {
                pays::leased(thread, client, ino, core::mem::take(&mut entry.calls));
            }
            result
        }
        None => f(&mut InodeHandle::new(ino)),
    };
    // SAFETY: the calling thread's. Calls from inside of a call pass, and `f` does not come back.
    unsafe { recent::with(thread, serve) }
}
