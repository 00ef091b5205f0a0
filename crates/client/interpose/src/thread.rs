//! What is known of each thread, and how a fork waits until no other thread is inside.
//!
//! A thread's block lies in static thread-local storage of the initial-exec kind, which
//! is reached without a call and without allocation. Threads that serve calls also
//! have a slot each in a table that others can see: `turn` is odd while the thread
//! works on tables or in libfs, and another number each time. A fork raises a flag, has all processors
//! see it (`membarrier`), and waits until no slot is busy: then no lock is held that the
//! child would never see released. What threads may have found before it was taken out of sight
//! is freed when each was outside since ([`Busy`]). Being busy costs two plain stores and two loads.

use crate::inside::with_signals_blocked_raw;
use crate::raw::{self, nr};
use core::arch::asm;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};

/// Bytes of a `siginfo_t`.
pub const SIGINFO_BYTES: usize = 128;

/// A thread's own block. Zero when the thread begins.
#[repr(C)]
pub struct Thread {
    /// Not 0 while the thread is inside this library: calls pass, signals wait.
    pub inside: AtomicU32,
    /// Not 0 while a call of the thread is served, be it inside or in a system call that is made for it.
    pub serving: AtomicU32,
    /// Number of the signal that waits, 0: none.
    pub pending: AtomicI32,
    /// Number of the process when the block was set up.
    pub pid: AtomicI32,
    /// Number of the thread; 0: the block is not set up.
    pub tid: AtomicI32,
    /// A `vfork` was begun by this thread, and who runs may be the child in our memory: what it
    /// inherits, of the crate that serves; null: none.
    pub vfork: AtomicPtr<()>,
    /// In a child that was made with a stack: its upper end.
    pub child_stack: AtomicUsize,
    /// Slot plus 1; 0: none.
    pub slot: AtomicU32,
    /// Upper end of the stack for served calls ([`crate::stack`]); 0: none yet.
    pub stack: AtomicUsize,
    /// What the crate that serves keeps for the slot ([`keep_for_slots`]); null: nothing.
    pub kept: AtomicPtr<()>,
    /// File for which the thread has asked for a lease in the call that it is in, or one before; 0: none.
    pub asked: AtomicU64,
    /// File that goes back to the mount after the call; 0: none.
    pub leaves: AtomicU64,
    /// First address of a page that the thread has written to last; 0: none.
    pub writable_page: AtomicUsize,
    /// Not 0: what the thread's end runs is there ([`Self::prepare`]).
    prepared: AtomicU32,
    /// Signals to block again when the waiting one has been sent.
    pub mask: core::cell::UnsafeCell<u64>,
    /// What the kernel said of the signal that waits.
    pub info: core::cell::UnsafeCell<[u64; SIGINFO_BYTES / 8]>,
}

/// Bytes reserved in thread-local storage.
pub const THREAD_BYTES: usize = 256;
const _: () = assert!(size_of::<Thread>() <= THREAD_BYTES);

core::arch::global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".balign 64",
    ".hidden shale_thread",
    ".globl shale_thread",
    ".type shale_thread,@object",
    "shale_thread:",
    ".zero {bytes}",
    ".size shale_thread, {bytes}",
    ".text",
    bytes = const THREAD_BYTES,
);

/// The calling thread's block.
#[inline(always)]
pub fn this() -> &'static Thread {
    let at: *const Thread;
    // SAFETY: reads the block's offset from the GOT and the thread's base; every thread
    // that runs this code has static thread-local storage.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + shale_thread@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(pure, readonly, nostack)
        );
    }
    // SAFETY: the block lives as long as the thread, which is as long as this
    // reference is used: it is never handed to another thread.
    unsafe { &*at }
}

/// Slots of threads. A thread beyond waits until another one has ended.
const SLOTS: usize = 1 << 14;

/// A thread as others see it, a cache line each.
#[repr(C, align(64))]
struct Slot {
    owner: AtomicI32,
    /// Odd: the thread is busy. One more with each beginning and each end.
    turn: AtomicU32,
    /// Upper end of a stack that goes with the slot; 0: none yet.
    stack: AtomicUsize,
    /// What is kept for its threads, one after the other; null: nothing yet.
    kept: AtomicPtr<()>,
}

static SLOT: [Slot; SLOTS] = [const {
    Slot {
        owner: AtomicI32::new(0),
        turn: AtomicU32::new(0),
        stack: AtomicUsize::new(0),
        kept: AtomicPtr::new(core::ptr::null_mut()),
    }
}; SLOTS];
/// What makes that.
static MAKE: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Makes what is kept for a slot; it is never freed, and used by the slot's thread only.
pub type Make = fn() -> *mut ();

/// Has `make` called for each slot that is taken from now on and has nothing yet: its thread finds that in [`Thread::kept`].
pub fn keep_for_slots(make: Make) {
    MAKE.store(make as *mut (), Ordering::Release);
}

/// What is kept for a slot, made if there is nothing.
fn kept_of(place: &AtomicPtr<()>) -> *mut () {
    let (there, make) = (place.load(Ordering::Acquire), MAKE.load(Ordering::Acquire));
    if !there.is_null() || make.is_null() {
        return there;
    }
    // SAFETY: only `keep_for_slots` stores there, and it stores such a function.
    let made = unsafe { core::mem::transmute::<*mut (), Make>(make) }();
    place.store(made, Ordering::Release);
    made
}

/// One more than the highest slot ever taken.
static SLOTS_END: AtomicUsize = AtomicUsize::new(0);
/// 1 while a fork waits or runs.
static FORKING: AtomicU32 = AtomicU32::new(0);

const MEMBARRIER_PRIVATE_EXPEDITED: u64 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: u64 = 1 << 4;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: u64 = 1 << 2;

/// Tells the kernel that this process takes part in barriers: those of its own forks, and
/// the daemon's, which enter read sections. Needed again after fork and exec. `false`: the kernel refuses (a seccomp filter, say), and nothing can be
/// served, since neither would see who is busy.
#[must_use]
pub fn register_barriers() -> bool {
    plain_membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED) >= 0
        && plain_membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED) >= 0
}

/// What this thread has stored is seen by every thread of the process from now on, and what they have done so far is
/// seen by this one.
pub fn barrier() {
    plain_membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
}

/// The kernel's number of this thread, which is prepared.
pub fn tid() -> i32 {
    this().tid.load(Ordering::Relaxed)
}

fn plain_membarrier(command: u64) -> i64 {
    raw::plain(nr::MEMBARRIER, command, 0, 0)
}

impl Thread {
    /// Sets the block up, once per thread.
    #[cold]
    pub fn set_up(&self) {
        self.pid.store(raw::getpid(), Ordering::Relaxed);
        let tid = raw::gettid();
        self.tid.store(tid, Ordering::Relaxed);
        if self.slot.load(Ordering::Relaxed) == 0 {
            let slot = take_slot(tid);
            self.slot.store(slot as u32 + 1, Ordering::Relaxed);
            let stack = crate::stack::of_slot(&SLOT[slot].stack);
            self.stack.store(stack, Ordering::Relaxed);
            self.kept
                .store(kept_of(&SLOT[slot].kept), Ordering::Relaxed);
        }
    }

    /// Has `make` allocate, once per thread, what its end has to run: later a fork that holds the locks of
    /// `malloc` may wait for it. Only in calls about a file of ours: those that `malloc` itself makes,
    /// which has its locks then, are about none.
    #[inline]
    pub fn prepare(&self, make: impl FnOnce()) {
        if self.prepared.swap(1, Ordering::Relaxed) == 0 {
            // A handler that allocates, too, or jumps away, waits.
            with_signals_blocked_raw(self, || {
                make();
                0
            });
        }
    }

    /// Whether that was done.
    #[inline(always)]
    pub fn is_prepared(&self) -> bool {
        self.prepared.load(Ordering::Relaxed) != 0
    }

    /// Marks the thread busy; waits while a fork runs.
    #[inline]
    pub fn begin(&self) {
        if self.tid.load(Ordering::Relaxed) == 0 {
            self.set_up();
        }
        let slot = &SLOT[self.slot.load(Ordering::Relaxed) as usize - 1];
        loop {
            slot.turn
                .store(slot.turn.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
            // The barrier of the fork orders this store and the load below.
            compiler_fence(Ordering::SeqCst);
            if FORKING.load(Ordering::Acquire) == 0 {
                return;
            }
            slot.end();
            while FORKING.load(Ordering::Acquire) != 0 {
                raw::futex_wait(&FORKING, 1, 10);
            }
        }
    }

    /// Ends what [`Self::begin`] began.
    #[inline]
    pub fn end(&self) {
        let slot = &SLOT[self.slot.load(Ordering::Relaxed) as usize - 1];
        compiler_fence(Ordering::SeqCst);
        slot.end();
    }
}

impl Slot {
    fn is_busy(&self) -> bool {
        self.turn.load(Ordering::Acquire) & 1 != 0
    }

    #[inline(always)]
    fn end(&self) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn
            .store((turn | 1).wrapping_add(1), Ordering::Release);
    }

    /// Whether a busy slot's thread has ended: by a system call of its own, in the middle of a call.
    fn is_deserted(&self) -> bool {
        !lives(self.owner.load(Ordering::Relaxed))
    }
}

/// The threads that were busy at some moment: slots and turns.
pub struct Busy(Vec<(usize, u32)>);

impl Busy {
    /// Now. A thread that is not among them has nothing that was taken out of sight before.
    pub fn now() -> Self {
        // A thread's turn is seen here, or it sees what was taken out of sight.
        barrier();
        let turns = slots().iter().map(|s| s.turn.load(Ordering::Acquire));
        Self(
            turns
                .enumerate()
                .filter(|(_, turn)| turn & 1 != 0)
                .collect(),
        )
    }

    /// Whether all of them have ended that call meanwhile.
    pub fn have_ended(&mut self) -> bool {
        self.0.retain(|&(slot, turn)| {
            let slot = &SLOT[slot];
            slot.turn.load(Ordering::Acquire) == turn && !slot.is_deserted()
        });
        self.0.is_empty()
    }
}

/// The slots that were ever taken.
fn slots() -> &'static [Slot] {
    &SLOT[..SLOTS_END.load(Ordering::Acquire)]
}

/// A slot for a thread: a free one, or one whose thread has ended.
fn take_slot(tid: i32) -> usize {
    let claim = |among: &'static [Slot], from: i32| {
        among.iter().position(|s| {
            let mine = s
                .owner
                .compare_exchange(from, tid, Ordering::AcqRel, Ordering::Relaxed);
            mine.is_ok()
        })
    };
    loop {
        // The number may have belonged to a thread that has ended.
        if let Some(free) = claim(slots(), tid).or_else(|| claim(slots(), 0)) {
            return free;
        }
        let ended = slots().iter().filter(|slot| {
            let owner = slot.owner.load(Ordering::Relaxed);
            let free = |owner| {
                slot.owner
                    .compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed)
            };
            owner != 0 && !lives(owner) && free(owner).is_ok()
        });
        if ended.count() > 0 {
            continue;
        }
        let end = SLOTS_END.load(Ordering::Relaxed);
        if end == SLOTS {
            raw::yield_now();
        } else {
            // Another thread that adds some adds them for all.
            let more = (end + SLOTS_STEP).min(SLOTS);
            let _ = SLOTS_END.compare_exchange(end, more, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Slots are scanned in steps of this many.
const SLOTS_STEP: usize = 64;

fn lives(tid: i32) -> bool {
    const TGKILL: u32 = 234;
    // SAFETY: no pointers; signal 0 only asks.
    let asked = unsafe { raw::syscall(TGKILL, &[raw::getpid() as u64, tid as u64, 0, 0, 0, 0]) };
    asked != raw::fail(libc::ESRCH)
}

/// Other threads stand still, outside, until this is dropped.
pub struct Alone(());

/// Waits until no other thread is busy. The calling thread must not be.
pub fn alone() -> Alone {
    while FORKING
        .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        raw::futex_wait(&FORKING, 1, 10);
    }
    barrier();
    for slot in slots() {
        let mut spins = 0u32;
        while slot.is_busy() {
            if spins > 10_000 && spins.is_multiple_of(1000) && slot.is_deserted() {
                slot.end();
            }
            spins += 1;
            if spins > 100 {
                raw::yield_now();
            }
        }
    }
    Alone(())
}

impl Drop for Alone {
    fn drop(&mut self) {
        FORKING.store(0, Ordering::Release);
        raw::futex_wake(&FORKING, i32::MAX as u32);
    }
}

/// In a child: only the calling thread is left.
pub fn only_this_is_left() {
    for slot in slots() {
        slot.owner.store(0, Ordering::Relaxed);
        slot.turn.store(0, Ordering::Relaxed);
        // Its thread may have been changing it in the moment that was copied.
        slot.kept.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    FORKING.store(0, Ordering::Relaxed);
    let this = this();
    this.slot.store(0, Ordering::Relaxed);
    this.vfork.store(core::ptr::null_mut(), Ordering::Relaxed);
    this.set_up();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads of other tests may be busy, too.
    fn end_soon(busy: &mut Busy) -> bool {
        let begun = std::time::Instant::now();
        while !busy.have_ended() && begun.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        busy.have_ended()
    }

    /// A thread that is busy again was outside meanwhile.
    #[test]
    fn the_busy_are_waited_for_once() {
        assert!(register_barriers());
        let (to, steps) = std::sync::mpsc::channel::<()>();
        let (done, turns) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let me = this();
            for _ in 0..2 {
                me.begin();
                done.send(()).unwrap();
                steps.recv().unwrap();
                me.end();
            }
        });
        turns.recv().unwrap();
        let mut busy = Busy::now();
        assert!(!busy.have_ended() && !busy.have_ended());
        to.send(()).unwrap();
        turns.recv().unwrap();
        assert!(end_soon(&mut busy));
        let mut busy = Busy::now();
        assert!(!busy.have_ended());
        to.send(()).unwrap();
        thread.join().unwrap();
        assert!(end_soon(&mut busy));
    }

    #[test]
    fn blocks_are_per_thread_and_alone_waits_for_the_busy() {
        assert!(register_barriers());
        let busy = std::thread::spawn(|| {
            let me = this();
            me.begin();
            assert_eq!(me.tid.load(Ordering::Relaxed), raw::gettid());
            std::thread::sleep(std::time::Duration::from_millis(50));
            me.end();
            me as *const Thread as usize
        });
        std::thread::sleep(std::time::Duration::from_millis(10));
        let since = std::time::Instant::now();
        drop(alone());
        assert!(since.elapsed() > std::time::Duration::from_millis(20));
        assert_ne!(busy.join().unwrap(), this() as *const Thread as usize);
    }
}
