//! Open file descriptions: what descriptors that were duplicated, inherited by `fork` or
//! both share.
//!
//! They live in one shared anonymous mapping, made at start and inherited by every child
//! that does not exec. Each says who has the offset:
//!
//! * [`mode::FAST`]: it does; the kernel's offset means nothing.
//! * [`mode::KERNEL`]: the kernel, for now; calls are made under the description's lock, so
//!   that the offset can be taken back between two of them.
//! * [`mode::HANDED_OVER`]: the kernel, for good: another program image or the receiver of a
//!   message shares the kernel's description and knows nothing of this one.
//!
//! Invariant: `offset` is meaningful in `FAST` only and changes under the lock; a change
//! of mode moves the offset over first.

use crate::raw::{self, nr};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Who has the offset.
pub mod mode {
    /// The kernel, for now.
    pub const KERNEL: u32 = 0;
    /// The description.
    pub const FAST: u32 = 1;
    /// The kernel, for good.
    pub const HANDED_OVER: u32 = 2;
}

/// How the kernel's calls on a description use its pages.
pub mod pages {
    /// As the program says.
    pub const OWN: u32 = 0;
    /// They go past them for now.
    pub const PAST: u32 = 1;
    /// They would go past them, but for one that writes behind the end.
    pub const BUT_ONCE: u32 = 2;
}

/// Descriptions of one family of processes. More open files are left to the kernel.
pub const DESCRIPTIONS: usize = 1 << 16;

/// One open file description.
#[repr(C, align(64))]
pub struct Description {
    lock: AtomicU32,
    /// A value of [`mode`].
    pub mode: AtomicU32,
    /// Next byte to read or write.
    pub offset: AtomicU64,
    /// Inode number.
    pub ino: AtomicU64,
    /// Access mode and `O_APPEND`, as for `open`.
    pub flags: AtomicU32,
    /// Which mount ([`crate::mounts`]), numbered alike in the whole family.
    pub mount: AtomicU32,
    /// Descriptors of all processes in the lower half; 0: free. In the upper half the generation:
    /// how often it was taken.
    users: AtomicU64,
    /// A value of [`pages`].
    pub past_pages: AtomicU32,
    /// In [`mode::KERNEL`]: not before this time does it become fast (ns, monotonic).
    pub not_before_ns: AtomicI64,
}

const _: () = assert!(size_of::<Description>() == 64);
const DIRECT: i64 = libc::O_DIRECT as i64;
const BYTES: usize = DESCRIPTIONS * size_of::<Description>();

/// Where the table lies; 0 before [`make`].
static TABLE: AtomicUsize = AtomicUsize::new(0);
/// Where to look for a free one next.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Makes the shared table. Once, at start; `false`: there is no memory.
pub fn make() -> bool {
    if TABLE.load(Ordering::Acquire) != 0 {
        return true;
    }
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    // SAFETY: a new mapping where the kernel chooses disturbs nothing.
    let at = unsafe { raw::syscall(nr::MMAP, &[0, BYTES as u64, protection, flags, u64::MAX, 0]) };
    if at < 0 {
        return false;
    }
    // Whoever was faster has made it.
    let _ = TABLE.compare_exchange(0, at as usize, Ordering::AcqRel, Ordering::Acquire);
    true
}

/// Description `index`, which came from [`take`].
#[inline]
pub fn get(index: u32) -> &'static Description {
    assert!((index as usize) < DESCRIPTIONS);
    let table = TABLE.load(Ordering::Acquire) as *const Description;
    assert!(!table.is_null(), "made before the first call is served");
    // SAFETY: the table has that many elements, is never unmapped, and holds atomics
    // only, for which every content is valid.
    unsafe { &*table.add(index as usize) }
}

const GENERATION: u64 = 1 << 32;

/// Descriptors of all processes that are of a description.
pub fn users(index: u32) -> u32 {
    get(index).users.load(Ordering::Acquire) as u32
}

/// How often a description was taken: another number, another file.
pub fn generation(index: u32) -> u32 {
    (get(index).users.load(Ordering::Acquire) / GENERATION) as u32
}

fn is_taken_now(index: u32) -> bool {
    let users = &get(index).users;
    let found = users.load(Ordering::Relaxed);
    let taken = found.wrapping_add(GENERATION + 1);
    found as u32 == 0
        && users
            .compare_exchange(found, taken, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
}

/// A free description, with one user; `None`: there is none.
pub fn take() -> Option<u32> {
    if TABLE.load(Ordering::Acquire) == 0 {
        return None;
    }
    let start = NEXT.load(Ordering::Relaxed);
    for step in 0..DESCRIPTIONS as u32 {
        let index = start.wrapping_add(step) % DESCRIPTIONS as u32;
        if is_taken_now(index) {
            // Low ones first: their memory is in use already.
            NEXT.store(if step < 64 { start } else { index }, Ordering::Relaxed);
            return Some(index);
        }
    }
    None
}

/// A descriptor more.
pub fn add_user(index: u32) {
    get(index).users.fetch_add(1, Ordering::AcqRel);
}

/// A descriptor more, if the description is not free and was not taken again since it had this
/// generation.
pub fn add_user_of(index: u32, generation: u32) -> bool {
    let one_more = |found: u64| {
        let same = (found / GENERATION) as u32 == generation && found as u32 != 0;
        same.then_some(found + 1)
    };
    let users = &get(index).users;
    users
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more)
        .is_ok()
}

/// A descriptor less.
pub fn drop_user(index: u32) {
    if get(index).users.fetch_sub(1, Ordering::AcqRel) as u32 == 1 {
        NEXT.fetch_min(index, Ordering::Relaxed);
    }
}

/// The lock of a description, held.
pub struct Held {
    description: &'static Description,
    tid: u32,
}

/// Set in the lock's word when somebody sleeps.
const WAITED_FOR: u32 = 1 << 31;
/// After this time a waiter looks whether the holder still lives.
const LOOK_MS: u32 = 100;

impl Description {
    /// Takes the lock for thread `tid`. The lock of a thread that was killed is taken over.
    #[inline]
    pub fn lock(&'static self, tid: i32) -> Held {
        let tid = tid as u32;
        if self
            .lock
            .compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_slowly(tid);
        }
        Held {
            description: self,
            tid,
        }
    }

    #[cold]
    fn lock_slowly(&self, tid: u32) {
        for _ in 0..200 {
            if self
                .lock
                .compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        loop {
            let seen = self.lock.load(Ordering::Relaxed);
            let wanted = if seen == 0 {
                tid | WAITED_FOR
            } else {
                seen | WAITED_FOR
            };
            if self
                .lock
                .compare_exchange(seen, wanted, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            if seen == 0 {
                return;
            }
            raw::futex_wait(&self.lock, wanted, LOOK_MS);
            let stuck = self.lock.load(Ordering::Relaxed) == wanted && !lives(wanted & !WAITED_FOR);
            if stuck
                && self
                    .lock
                    .compare_exchange(
                        wanted,
                        tid | WAITED_FOR,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                return;
            }
        }
    }

    /// Has the kernel's calls on this description go past its pages, where it can: what other
    /// clients do under their leases and what these calls do is then in one order. The kernel
    /// fills its pages before, and drops them after, the file system knows. The lock is held.
    pub fn leave_pages(&self, fd: i32) {
        let flags = raw::fcntl(fd, libc::F_GETFL, 0);
        let set = |flags| raw::fcntl(fd, libc::F_SETFL, flags) >= 0;
        if flags >= 0 && flags & DIRECT == 0 && set((flags | DIRECT) as u64) {
            self.past_pages.store(pages::PAST, Ordering::Relaxed);
        }
    }

    /// Of calls that go past the pages, those that write behind the `end` that the kernel knows, or
    /// at any end, do not: the kernel would have the new size before it drops the pages of the
    /// old one, and show zeros. Nobody can see those pages before the write is done.
    /// The lock is held.
    pub fn place_write(&self, fd: i32, behind: bool) {
        let (before, after) = match behind {
            true => (pages::PAST, pages::BUT_ONCE),
            false => (pages::BUT_ONCE, pages::PAST),
        };
        if self.past_pages.load(Ordering::Relaxed) != before {
            return;
        }
        let flags = raw::fcntl(fd, libc::F_GETFL, 0);
        let flags = if behind {
            flags & !DIRECT
        } else {
            flags | DIRECT
        };
        if flags >= 0 && raw::fcntl(fd, libc::F_SETFL, flags as u64) >= 0 {
            self.past_pages.store(after, Ordering::Relaxed);
        }
    }

    /// Ends what [`Self::leave_pages`] began. The lock is held.
    pub fn use_pages(&self, fd: i32) {
        if self.past_pages.swap(pages::OWN, Ordering::Relaxed) != pages::OWN {
            let flags = raw::fcntl(fd, libc::F_GETFL, 0);
            // A descriptor that is gone needs nothing.
            raw::fcntl(fd, libc::F_SETFL, (flags & !DIRECT) as u64);
        }
    }

    /// Hands the offset to the kernel. `fd`: a descriptor of this description; the lock is held.
    pub fn to_kernel(&self, fd: i32, mode: u32) {
        self.use_pages(fd);
        if self.mode.load(Ordering::Relaxed) == mode::FAST {
            let offset = self.offset.load(Ordering::Relaxed);
            raw::lseek(fd, offset as i64, libc::SEEK_SET);
            crate::mounts::settle_size(fd);
        }
        self.mode.store(mode, Ordering::Release);
    }

    /// Hands the offset to the kernel until `until_ns`, past its pages. The lock is held.
    pub fn to_mediated(&self, fd: i32, until_ns: i64) {
        self.not_before_ns.store(until_ns, Ordering::Relaxed);
        self.to_kernel(fd, mode::KERNEL);
        self.leave_pages(fd);
    }

    /// Takes the offset from the kernel; `false`: the kernel refuses. The lock is held.
    pub fn to_fast(&self, fd: i32) -> bool {
        let offset = raw::lseek(fd, 0, libc::SEEK_CUR);
        if offset < 0 {
            return false;
        }
        self.use_pages(fd);
        self.offset.store(offset as u64, Ordering::Relaxed);
        self.mode.store(mode::FAST, Ordering::Release);
        true
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        let lock = &self.description.lock;
        let seen = lock.swap(0, Ordering::Release);
        debug_assert_eq!(seen & !WAITED_FOR, self.tid);
        if seen & WAITED_FOR != 0 {
            raw::futex_wake(lock, 1);
        }
    }
}

/// Whether a thread of any process exists and is not dead already.
fn lives(tid: u32) -> bool {
    let mut path = *b"/proc/0000000000/stat\0";
    let mut rest = tid;
    for digit in path[6..16].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // The kernel takes no leading zeros: shift the digits down.
    let zeros = path[6..15].iter().take_while(|&&d| d == b'0').count();
    path.copy_within(6 + zeros.., 6);
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    // SAFETY: the path ends with a zero byte.
    let fd = unsafe { raw::syscall(nr::OPEN, &[path.as_ptr() as u64, flags, 0, 0, 0, 0]) };
    if fd < 0 {
        return fd != raw::fail(libc::ENOENT);
    }
    let mut text = [0u8; 256];
    // SAFETY: the buffer is as long as said.
    let n = unsafe {
        raw::syscall(
            nr::READ,
            &[fd as u64, text.as_mut_ptr() as u64, 256, 0, 0, 0],
        )
    };
    raw::close(fd as i32);
    let text = &text[..n.max(0) as usize];
    let behind = text
        .iter()
        .rposition(|&c| c == b')')
        .map_or(&[][..], |at| &text[at..]);
    !matches!(behind.get(2), Some(b'Z' | b'X') | None)
}

/// Tests that count users take turns.
#[cfg(test)]
pub(crate) static IN_TURNS: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_locked_shared_and_freed() {
        let _turn = IN_TURNS.lock();
        assert!(make());
        let index = take().unwrap();
        let d = get(index);
        let tid = raw::gettid();
        let held = d.lock(tid);
        let waiter = std::thread::spawn(move || {
            let _held = get(index).lock(raw::gettid());
            get(index).offset.fetch_add(1, Ordering::Relaxed)
        });
        std::thread::sleep(std::time::Duration::from_millis(250));
        d.offset.store(5, Ordering::Relaxed);
        drop(held);
        assert_eq!(waiter.join().unwrap(), 5);
        // A holder that is gone.
        let ended = std::thread::spawn(raw::gettid).join().unwrap();
        d.lock.store(ended as u32, Ordering::Relaxed);
        drop(d.lock(tid));
        drop_user(index);
        let generation = generation(index);
        assert!(!add_user_of(index, generation), "free");
        assert_eq!(take(), Some(index));
        assert!(!add_user_of(index, generation), "another file");
        assert!(add_user_of(index, generation + 1) && users(index) == 2);
        drop_user(index);
        drop_user(index);
    }

    #[test]
    fn threads_live_or_not() {
        assert!(lives(raw::gettid() as u32) && lives(1));
        let ended = std::thread::spawn(raw::gettid).join().unwrap() as u32;
        // It is joined a moment before the kernel has taken it away.
        let gone = (0..1_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            !lives(ended)
        });
        assert!(gone);
    }
}
