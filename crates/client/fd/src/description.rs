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

use crate::placeholder;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use shale_interpose::raw::{self, nr};

/// Who has the offset.
pub mod mode {
    /// The kernel, for now.
    pub const KERNEL: u32 = 0;
    /// The description.
    pub const FAST: u32 = 1;
    /// The kernel, for good.
    pub const HANDED_OVER: u32 = 2;
    /// Nobody: a placeholder that was opened with `O_PATH`.
    pub const PATH_ONLY: u32 = 3;
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
    /// Access mode, `O_APPEND` and `O_DSYNC`, as for `open`; with `PLACEHOLDER` and `DIRECTORY`.
    pub flags: AtomicU32,
    /// Which mount ([`crate::mounts`]), numbered alike in the whole family, or [`NOT_PLACED`].
    pub mount: AtomicU32,
    /// Descriptors of all processes in the lower half; 0: free. In the upper half the generation:
    /// how often it was taken.
    users: AtomicU64,
    /// A value of [`pages`].
    pub past_pages: AtomicU32,
    /// What its calls took by way of the mount, ns; with [`SERVED`].
    spent: AtomicU32,
    /// In [`mode::KERNEL`]: not before this time does it become fast (ns, monotonic).
    pub not_before_ns: AtomicI64,
    /// During a write of the lock's holder, if others share the description: where it will end. 0: there
    /// is none.
    pending: AtomicU64,
}

const _: () = assert!(size_of::<Description>() == 64);
/// The number of no mount: nobody has asked yet on which mount the file lies, or whether on any. Until then the file
/// stays with the kernel, and its inode number is 0.
pub const NOT_PLACED: u32 = u32::MAX;
/// What a call counts for that is not measured, ns. A description is young until it has had
/// some of these.
const CALL_NS: u32 = 1_000;
const YOUNG_NS: u32 = 16 * CALL_NS;
/// The library has served the description, or another one of the file: the kernel may know an old size.
const SERVED: u32 = 1 << 31;
/// In [`Description::flags`]: its descriptors are placeholders.
const PLACEHOLDER: u32 = 1 << 31;
/// In [`Description::flags`]: it is a directory, which only a placeholder's can be.
const DIRECTORY: u32 = 1 << 30;
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
    // Another thread was faster and has made it.
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
pub struct OffsetGuard {
    description: &'static Description,
    tid: u32,
}

/// Set in the lock's word when somebody sleeps.
const WAITED_FOR: u32 = 1 << 31;
/// After this time a waiter looks whether the holder still lives, and goes on.
const LOOK_MS: u32 = 100;

impl Description {
    /// Takes the lock for thread `tid`. The lock of a thread that was killed is taken over, and so is
    /// that of one that was stopped: it finds out when it goes on ([`OffsetGuard::begin`], [`OffsetGuard::moved`]).
    #[inline]
    pub fn lock(&'static self, tid: i32) -> OffsetGuard {
        let tid = tid as u32;
        if self
            .lock
            .compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_slowly(tid);
        }
        OffsetGuard {
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
        let mut stopped = None;
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
            if self.lock.load(Ordering::Relaxed) != wanted {
                continue;
            }
            let state = state(wanted & !WAITED_FOR);
            let was_stopped = stopped == Some(wanted);
            stopped = (state == State::Stopped).then_some(wanted);
            let stuck = match state {
                State::Goes => false,
                State::Gone => true,
                // A second look: it is not just being traced.
                State::Stopped => was_stopped,
            };
            if stuck && self.take_over(wanted, tid, state) {
                return;
            }
        }
    }

    /// Takes the lock from a thread that does not go on.
    fn take_over(&self, from: u32, tid: u32, state: State) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let lock = &self.lock;
        if lock
            .compare_exchange(from, tid | WAITED_FOR, acquire, relaxed)
            .is_err()
        {
            return false;
        }
        let to = self.pending.swap(0, Ordering::AcqRel);
        // What was killed has not returned: it need not have been.
        let moves = state == State::Stopped && to != 0;
        if moves && self.mode.load(relaxed) == mode::FAST {
            self.offset.store(to, relaxed);
        }
        true
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
        if self.is_placeholder() {
            placeholder::materialise(self.index(), "left to the mount");
        }
        self.use_pages(fd);
        if self.mode.load(Ordering::Relaxed) == mode::FAST {
            let offset = self.offset.load(Ordering::Relaxed);
            raw::lseek(fd, offset as i64, libc::SEEK_SET);
            crate::mounts::refresh_size(fd);
        }
        if self.is_held_here() {
            self.mode.store(mode, Ordering::Release);
        }
    }

    /// Whether this thread has the lock: who is stopped with it may lose it.
    fn is_held_here(&self) -> bool {
        self.lock.load(Ordering::Relaxed) & !WAITED_FOR == raw::gettid() as u32
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
        if offset < 0 || !self.is_held_here() {
            return false;
        }
        self.use_pages(fd);
        self.spent.fetch_or(SERVED, Ordering::Relaxed);
        self.offset.store(offset as u64, Ordering::Relaxed);
        self.mode.store(mode::FAST, Ordering::Release);
        true
    }
}

impl Description {
    /// Its number.
    fn index(&self) -> u32 {
        let bytes = core::ptr::from_ref(self) as usize - TABLE.load(Ordering::Acquire);
        (bytes / size_of::<Self>()) as u32
    }

    /// Whether its descriptors are [placeholders](crate::placeholder).
    #[inline]
    pub fn is_placeholder(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & PLACEHOLDER != 0
    }

    /// Its descriptors are placeholders: what is served of it needs no call of the kernel's before. When it is taken.
    /// `path_only`: it was opened with `O_PATH`.
    pub fn mark_placeholder(&self, is_directory: bool, path_only: bool) {
        let directory = if is_directory { DIRECTORY } else { 0 };
        self.flags
            .fetch_or(PLACEHOLDER | directory, Ordering::Relaxed);
        self.begin_counting(true);
        let mode = match path_only {
            true => mode::PATH_ONLY,
            false => mode::FAST,
        };
        self.mode.store(mode, Ordering::Release);
    }

    /// Whether it is a placeholder that was opened with `O_PATH`.
    #[inline]
    pub fn is_path_only(&self) -> bool {
        self.mode.load(Ordering::Acquire) == mode::PATH_ONLY
    }

    /// Whether it is a directory.
    #[inline]
    pub fn is_directory(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DIRECTORY != 0
    }

    /// The kernel has opened the file.
    pub fn materialised(&self) {
        self.flags.fetch_and(!PLACEHOLDER, Ordering::Relaxed);
    }

    /// Begins what is counted of a description, when it is taken. `served`: its file was served before.
    pub fn begin_counting(&self, served: bool) {
        self.spent
            .store(u32::from(served) * SERVED, Ordering::Relaxed);
    }

    /// What its calls took by way of the mount, ns.
    pub fn spent_ns(&self) -> u32 {
        self.spent.load(Ordering::Relaxed) & !SERVED
    }

    /// Whether the kernel may know an old size of the file, since the library has served it.
    pub fn was_served(&self) -> bool {
        self.spent.load(Ordering::Relaxed) & SERVED != 0
    }

    /// Whether it is known on which mount the file lies ([`NOT_PLACED`]).
    #[inline]
    pub fn is_placed(&self) -> bool {
        self.mount.load(Ordering::Acquire) != NOT_PLACED
    }

    /// Whether the file is with the mount, and has been used so little that nothing has to be known of it.
    #[inline]
    pub fn is_young(&self) -> bool {
        self.spent.load(Ordering::Relaxed) < YOUNG_NS
            && self.mode.load(Ordering::Acquire) == mode::KERNEL
    }

    /// A call on a young description.
    #[inline]
    pub fn used_once(&self) {
        self.spend(CALL_NS);
    }

    /// The library serves the file, by another description.
    pub fn note_served(&self) {
        self.spent.fetch_or(SERVED, Ordering::AcqRel);
    }

    /// A call took so long.
    pub fn spend(&self, ns: u32) {
        if self.spent_ns() < SERVED / 2 {
            self.spent.fetch_add(ns, Ordering::Relaxed);
        }
    }

    /// Takes something away from what was counted.
    pub fn unspend(&self, ns: u32) {
        let less = |spent: u32| Some((spent & SERVED) | (spent & !SERVED).saturating_sub(ns));
        // It always gives something.
        let _ = self
            .spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Has the file be the mount's until it pays again. The lock is held.
    pub fn to_mount(&self, fd: i32) {
        self.begin_counting(true);
        match self.mode.load(Ordering::Relaxed) {
            mode::FAST => self.to_kernel(fd, mode::KERNEL),
            // A call that found the file away has left it to the kernel already.
            _ => self.use_pages(fd),
        }
    }
}

impl OffsetGuard {
    /// A call at the offset begins; a write says where it will end, others 0. Should this thread be stopped
    /// in it, others that share the description go on from there. Gives whether there are others; `None`: they
    /// have the lock by now, and the call restarts.
    #[inline]
    pub fn begin(&self, to: u64) -> Option<bool> {
        let shared = self.description.users.load(Ordering::Relaxed) as u32 > 1;
        (!shared || self.begin_shared(to)).then_some(shared)
    }

    #[cold]
    fn begin_shared(&self, to: u64) -> bool {
        let still = self.is_still();
        if still {
            self.description.pending.store(to, Ordering::Release);
        }
        still
    }

    fn is_still(&self) -> bool {
        self.description.lock.load(Ordering::Relaxed) & !WAITED_FOR == self.tid
    }

    /// The call, for which [`Self::begin`] gave `shared`, has not moved the offset.
    pub fn end(&self, shared: bool) {
        if shared && self.is_still() {
            self.description.pending.store(0, Ordering::Relaxed);
        }
    }

    /// The call has moved the offset. `false`: others have the lock by now, and the offset is not touched.
    #[inline]
    pub fn moved(&self, shared: bool, from: u64, to: u64) -> bool {
        let offset = &self.description.offset;
        if !shared {
            offset.store(to, Ordering::Relaxed);
            return true;
        }
        let (acqrel, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let still = self.is_still() && offset.compare_exchange(from, to, acqrel, relaxed).is_ok();
        self.end(shared);
        still
    }
}

impl Drop for OffsetGuard {
    #[inline]
    fn drop(&mut self) {
        let lock = &self.description.lock;
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        let freed = |from: u32| lock.compare_exchange(from, 0, release, relaxed).is_ok();
        // Else somebody waits, or has taken it over.
        if !freed(self.tid) && freed(self.tid | WAITED_FOR) {
            raw::futex_wake(lock, 1);
        }
    }
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Goes,
    /// By a signal, or a debugger.
    Stopped,
    /// It does not exist, or is dead already.
    Gone,
}

/// What a thread of any process does.
fn state(tid: u32) -> State {
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
    if fd == raw::fail(libc::ENOENT) {
        return State::Gone;
    }
    if fd < 0 {
        return State::Goes;
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
    match behind.get(2) {
        Some(b'Z' | b'X') | None => State::Gone,
        Some(b'T' | b't') => State::Stopped,
        Some(_) => State::Goes,
    }
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
    fn threads_go_stop_or_are_gone() {
        let own = raw::gettid() as u32;
        assert_eq!([own, 1].map(state), [State::Goes; 2]);
        let ended = std::thread::spawn(raw::gettid).join().unwrap() as u32;
        // It is joined a moment before the kernel has taken it away.
        let becomes = |tid: u32, wanted: State| {
            (0..1_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                state(tid) == wanted
            })
        };
        assert!(becomes(ended, State::Gone));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        assert!(becomes(child.id(), State::Stopped));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What a holder that is stopped in the middle of a write was about to write stays its own.
    #[test]
    fn the_lock_of_who_is_stopped_in_a_call_is_taken_over() {
        let _turn = IN_TURNS.lock();
        assert!(make());
        let index = take().unwrap();
        add_user(index);
        let d = get(index);
        d.mode.store(mode::FAST, Ordering::Relaxed);
        d.offset.store(100, Ordering::Relaxed);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let stopped = OffsetGuard {
            description: d,
            tid: child.id(),
        };
        d.lock.store(child.id(), Ordering::Relaxed);
        assert_eq!(
            stopped.begin(130),
            Some(true),
            "another one has a descriptor"
        );
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
        let own = d.lock(raw::gettid());
        assert_eq!(d.offset.load(Ordering::Relaxed), 130);
        let shared = own.begin(0).unwrap();
        assert!(own.moved(shared, 130, 150));
        // It goes on: its call has ended, and nothing here is its own any more.
        assert!(!stopped.moved(true, 100, 130) && stopped.begin(0).is_none());
        drop(stopped);
        assert_eq!(d.lock.load(Ordering::Relaxed) & !WAITED_FOR, own.tid);
        assert_eq!(d.offset.load(Ordering::Relaxed), 150);
        drop(own);
        assert_eq!(d.lock.load(Ordering::Relaxed), 0);
        child.kill().unwrap();
        child.wait().unwrap();
        drop_user(index);
        drop_user(index);
    }
}
