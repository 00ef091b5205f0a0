//! Inodes that a thread has used recently, each with its short way ([`InodeHandle`]).
//!
//! A list goes with the thread's slot, so nobody else touches it and it needs no lock; the
//! next thread of the slot goes on with it. An entry is found by the numbers of client and inode.
//! No client has the number of another one; and with an inode number that has
//! become another inode's a [`InodeHandle`] finds that one. So nothing has to be taken out when a
//! file is closed or a client is freed: an entry stays until another one needs its place.

use core::sync::atomic::Ordering;
use shale_interpose::thread::Thread;
use shale_libfs::InodeHandle;

/// Inodes of one thread. Two that share a place are looked up in turns.
const ENTRIES: usize = 16;

/// One inode.
pub struct Entry {
    /// Number of its client.
    client: u64,
    /// The short way.
    pub found: InodeHandle,
    /// Calls since the last lease.
    pub calls: u32,
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

    /// The entry of an inode of the client with this number.
    #[inline]
    pub fn get(&mut self, client: u64, ino: u64) -> &mut Entry {
        let place = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let entry = &mut self.0[place as usize % ENTRIES];
        if entry.client != client || entry.found.ino() != ino {
            entry.begin(client, ino);
        }
        entry
    }
}

impl Entry {
    #[cold]
    fn begin(&mut self, client: u64, ino: u64) {
        self.client = client;
        self.found = InodeHandle::new(ino);
        self.calls = 0;
    }
}

/// A list for a slot, as [`shale_interpose::thread::keep_for_slots`] wants it: a [`Recent`] in a box that is never freed.
pub fn make() -> *mut () {
    Box::into_raw(Box::new(Recent::new())).cast()
}

/// Calls `f` with the list of a thread; `None`: there is none.
///
/// # Safety
/// `thread` is the calling thread's own, and `f` does not come back here.
#[inline]
pub unsafe fn with<T>(thread: &Thread, f: impl FnOnce(Option<&mut Recent>) -> T) -> T {
    let list = thread.kept.load(Ordering::Relaxed).cast::<Recent>();
    // SAFETY: what `make` made is kept for slots, and nothing else. It goes with the slot, which only this thread has, and nobody else has a
    // reference meanwhile.
    f(unsafe { list.as_mut() })
}
