//! Inodes that a thread has used recently, each with its short way ([`InodeHandle`]).
//!
//! A list goes with the thread's slot, so nobody else touches it and it needs no lock; the
//! next thread of the slot goes on with it. An entry is found by the numbers of client and inode.
//! No client has the number of another one; and with an inode number that has
//! become another inode's a [`InodeHandle`] finds that one. So nothing has to be taken out when a
//! file is closed or a client is freed: an entry stays until another one needs its place.

use crate::client::Client;
use crate::pays;
use crate::thread::Thread;
use core::sync::atomic::{AtomicPtr, Ordering};
use shale_libfs::InodeHandle;

/// Inodes of one thread. Two that share a place are looked up in turns.
const ENTRIES: usize = 16;

struct Entry {
    /// Its number.
    client: u64,
    found: InodeHandle,
    /// Calls since the last lease.
    calls: u32,
}

/// The list of one thread.
pub struct Recent([Entry; ENTRIES]);

impl Recent {
    fn new() -> Self {
        Self(core::array::from_fn(|_| Entry {
            client: 0,
            found: InodeHandle::default(),
            calls: 0,
        }))
    }

    #[inline]
    fn get(&mut self, client: &Client, ino: u64) -> &mut Entry {
        let place = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let entry = &mut self.0[place as usize % ENTRIES];
        if entry.client != client.number || entry.found.ino() != ino {
            entry.begin(client, ino);
        }
        entry
    }
}

impl Entry {
    #[cold]
    fn begin(&mut self, client: &Client, ino: u64) {
        self.client = client.number;
        self.found = InodeHandle::new(ino);
        self.calls = 0;
    }
}

/// The list of a slot, made if there is none.
pub fn of_slot(place: &AtomicPtr<Recent>) -> *mut Recent {
    let there = place.load(Ordering::Acquire);
    if !there.is_null() {
        return there;
    }
    let made = Box::into_raw(Box::new(Recent::new()));
    place.store(made, Ordering::Release);
    made
}

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
            let entry = recent.get(client, ino);
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
