//! Files on which this process may have record locks (`F_SETLK`). It loses all that it has on a file when it closes any
//! descriptor of it (fcntl(2)). A placeholder is none: to close one would keep the locks, and to materialise it closes
//! the descriptor by which the kernel has opened the file, and would lose them. So a file is no placeholder once it may be
//! locked: the kernel opens it.
//!
//! Who locks notes it first and materialises the file's placeholders then; who makes a placeholder looks here afterwards. So
//! one of both sees the other. No memory is asked for and nobody waits: a call on a file that is new to the library notes it, too.

use core::sync::atomic::{AtomicU64, Ordering, fence};

/// A power of two.
const SLOTS: usize = 1024;
/// Inodes that were locked, each in its slot; 0: none.
static LOCKED: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
/// Several with the same slot: all that have it count as locked.
const SEVERAL: u64 = u64::MAX;

fn slot(ino: u64) -> &'static AtomicU64 {
    let mixed = ino.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    &LOCKED[(mixed >> (u64::BITS - SLOTS.trailing_zeros())) as usize]
}

/// A lock on an inode is about to be asked for.
pub fn note(ino: u64) {
    let (slot, order) = (slot(ino), Ordering::SeqCst);
    if let Err(found) = slot.compare_exchange(0, ino, order, order)
        && found != ino
    {
        slot.store(SEVERAL, order);
    }
    // Before it looks for placeholders.
    fence(Ordering::SeqCst);
}

/// Whether an inode may be locked by this process.
pub fn may_be(ino: u64) -> bool {
    // Behind the placeholder that was made.
    fence(Ordering::SeqCst);
    matches!(slot(ino).load(Ordering::SeqCst), found if found == ino || found == SEVERAL)
}

/// In a child, which has no locks.
pub fn forget_all() {
    for slot in &LOCKED {
        slot.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found() {
        assert!(!may_be(7));
        note(7);
        note(7);
        assert!(may_be(7) && !may_be(8));
        // One more than there are slots: two have the same.
        let inodes = 1 << 40..(1 << 40) + SLOTS as u64 + 1;
        inodes.clone().for_each(note);
        assert!(inodes.clone().all(may_be) && may_be(7));
        forget_all();
        assert!(!inodes.into_iter().any(may_be) && !may_be(7));
    }
}
