//! The short way of a thread to an inode that it has used recently ([`crate::fd::recent`]).

use crate::client::Client;
use crate::pays;
use crate::thread::Thread;
use core::sync::atomic::Ordering;
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
    // SAFETY: the list came from a box that is never freed and goes with the slot, which only
    // this thread has. Calls from inside of a call pass, so this is the only reference.
    match unsafe { thread.recent.load(Ordering::Relaxed).as_mut() } {
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
    }
}
