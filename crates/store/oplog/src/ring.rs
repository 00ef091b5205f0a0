//! Who owns which bytes of the ring: admit, reserve, publish, release.
//!
//! `tail` ≤ `published` ≤ `reserved` ≤ `tail + bytes`. Invariants:
//! * `free` + bytes held by permits + (`reserved` − `tail`) = ring bytes. So a thread that
//!   holds a permit can reserve without waiting, and live ranges never overlap.
//! * A claim belongs to one thread until it publishes it. `published` moves over the
//!   claims in their order, each only after its owner made it durable: everything
//!   before `published` is complete, and the call that returns saw all earlier ones.
//! * No record straddles the ring's end. The one claim that would is filled with pads
//!   and its owner claims again; it cannot straddle twice, since its own first claim
//!   keeps `tail` back. Hence a permit holds twice the bytes it is asked for.
//!
//! There is no I/O here: the log's bytes are written by [`crate::append`].
//! Lock order: each queue's lock is a leaf.

use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering, barrier, compiler_fence};
use crate::sync::{SPINS, YIELDS, spin, yield_now};
use shale_sys::mutants;
use std::sync::PoisonError;
use std::time::Duration;

/// `pos` modulo the ring's length, which mostly is a power of two: a division costs more
/// than all else that an append does with its position.
#[inline]
pub(crate) fn in_ring(ring_bytes: u64, pos: u64) -> u64 {
    if ring_bytes.is_power_of_two() {
        pos & (ring_bytes - 1)
    } else {
        pos % ring_bytes
    }
}

/// Part of the ring that one permit can be for at most, and so a chain of records.
pub const PERMIT_PART: u64 = 4;

/// Keeps words that different threads store to in different cache lines.
#[repr(align(64))]
struct Line<T>(T);

/// A range of positions: `start` included, `end` not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// First position.
    pub start: u64,
    /// One past the last position.
    pub end: u64,
}

/// What [`Ring::reserve`] gave: positions that the caller fills and publishes, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an unpublished claim stops every later call"]
pub struct Allocation {
    /// A claim that met the ring's end, which is at `.1`: a pad before and one behind it.
    pub padding: Option<(LogRange, u64)>,
    /// The claim for the records.
    pub claim: LogRange,
}

/// Threads that sleep until a condition on the ring's words holds.
struct Queue {
    sleepers: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Queue {
    fn new() -> Self {
        Self {
            sleepers: AtomicU32::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Sleeps until `done` holds or, with a limit, until that time has passed once.
    ///
    /// No wake-up is lost: the sleeper counts itself, then looks; the waker changes
    /// the word, then looks at the count. The sleeper has every thread do what it does in
    /// this order, so that the waker need not wait until its stores are in memory.
    fn sleep(&self, limit: Option<Duration>, done: impl Fn() -> bool) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        barrier();
        while !done() {
            match limit {
                None => {
                    guard = self
                        .changed
                        .wait(guard)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Some(limit) => {
                    let (g, timeout) = self
                        .changed
                        .wait_timeout(guard, limit)
                        .unwrap_or_else(PoisonError::into_inner);
                    guard = g;
                    if timeout.timed_out() {
                        break;
                    }
                }
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
    }

    /// Wakes the sleepers. Call after the word that they look at has changed.
    #[inline]
    fn wake(&self) {
        compiler_fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
        drop(guard);
    }
}

/// The words of one log's ring, in the memory of its only writing process.
pub struct Ring {
    bytes: u64,
    reserved: Line<AtomicU64>,
    published: Line<AtomicU64>,
    free: Line<AtomicU64>,
    tail: Line<AtomicU64>,
    order: Queue,
    waiters: Queue,
    /// Not 0: a thread panicked with a claim that it had not published.
    abandoned: AtomicU32,
}

/// Says, when it is dropped, that the thread's claims will not be published.
pub(crate) struct Unpublished<'a>(&'a Ring);

impl Unpublished<'_> {
    /// All is published.
    #[inline]
    pub(crate) fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unpublished<'_> {
    fn drop(&mut self) {
        self.0.abandoned.store(1, Ordering::SeqCst);
        self.0.order.wake();
    }
}

/// The right to append some bytes. What is left of it goes back when it is dropped.
pub struct LogReservation<'a> {
    ring: &'a Ring,
    left: u64,
    held: u64,
}

/// A permit that is put aside: numbers, to be kept where a thread finds them again without
/// a lock, and to be given to [`Ring::resume`] once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkedPermit {
    /// Bytes of records that can be appended with it.
    pub left: u64,
    /// Bytes of the ring that it holds.
    pub held: u64,
}

impl LogReservation<'_> {
    /// Bytes of records that can still be appended with it.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Puts the permit aside for a later append.
    #[inline]
    pub fn keep(mut self) -> ParkedPermit {
        self.put_aside()
    }

    /// As [`Self::keep`]; what stays here is nothing. The permit is not moved: as a whole it
    /// could only be loaded when its parts are in memory, behind all that was stored before.
    #[inline(always)]
    pub fn put_aside(&mut self) -> ParkedPermit {
        let kept = ParkedPermit {
            left: self.left,
            held: self.held,
        };
        (self.left, self.held) = (0, 0);
        kept
    }
}

impl Drop for LogReservation<'_> {
    fn drop(&mut self) {
        if self.held > 0 {
            self.ring.give_back(self.held);
        }
    }
}

impl Ring {
    /// A ring of `bytes` bytes that keeps the records in [`tail`, `head`) and goes on at `head`.
    pub fn new(bytes: u64, tail: u64, head: u64) -> Self {
        assert!(
            tail <= head && head - tail <= bytes,
            "tail {tail}, head {head} in a ring of {bytes} bytes"
        );
        Self {
            bytes,
            reserved: Line(AtomicU64::new(head)),
            published: Line(AtomicU64::new(head)),
            free: Line(AtomicU64::new(bytes - (head - tail))),
            tail: Line(AtomicU64::new(tail)),
            order: Queue::new(),
            waiters: Queue::new(),
            abandoned: AtomicU32::new(0),
        }
    }

    /// Bytes of the ring.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes that one permit can be for: with its pads a permit never asks for
    /// more than half of the ring.
    pub fn permit_bytes_max(&self) -> u64 {
        self.bytes / PERMIT_PART
    }

    /// Next position that will be given out.
    pub fn reserved(&self) -> u64 {
        self.reserved.0.load(Ordering::SeqCst)
    }

    /// Every record before this position is complete and durable.
    pub fn published(&self) -> u64 {
        self.published.0.load(Ordering::SeqCst)
    }

    /// Oldest position that is kept.
    pub fn tail(&self) -> u64 {
        self.tail.0.load(Ordering::SeqCst)
    }

    /// Takes the right to append `bytes` bytes of records, if there is space.
    pub fn try_reserve(&self, bytes: u64) -> Option<LogReservation<'_>> {
        assert!(
            bytes <= self.permit_bytes_max(),
            "a permit for {bytes} bytes is above the limit of {}",
            self.permit_bytes_max()
        );
        let need = 2 * bytes;
        let free = &self.free.0;
        let mut now = free.load(Ordering::SeqCst);
        while now >= need {
            match free.compare_exchange_weak(now, now - need, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    return Some(LogReservation {
                        ring: self,
                        left: bytes,
                        held: need,
                    });
                }
                Err(changed) => now = changed,
            }
        }
        None
    }

    /// Takes a permit up again that was put aside.
    #[inline]
    pub fn resume(&self, kept: ParkedPermit) -> LogReservation<'_> {
        LogReservation {
            ring: self,
            left: kept.left,
            held: kept.held,
        }
    }

    /// Sleeps until a permit for `bytes` bytes may be had, or `limit` has passed.
    /// Returns whether there seems to be space; another thread may still be faster.
    pub fn wait_for_space(&self, bytes: u64, limit: Option<Duration>) -> bool {
        let enough = || self.free.0.load(Ordering::SeqCst) >= 2 * bytes;
        if !enough() {
            self.waiters.sleep(limit, enough);
        }
        enough()
    }

    fn give_back(&self, bytes: u64) {
        self.free.0.fetch_add(bytes, Ordering::SeqCst);
        self.waiters.wake();
    }

    /// Claims the next `bytes` positions, by one atomic add. Never waits.
    pub fn allocate(&self, permit: &mut LogReservation<'_>, bytes: u64) -> Allocation {
        assert!(
            std::ptr::eq(permit.ring, self) && bytes <= permit.left,
            "{bytes} bytes are not covered by the permit"
        );
        permit.left -= bytes;
        let claim = self.claim(permit, bytes);
        let end_of_ring = claim.start - in_ring(self.bytes, claim.start) + self.bytes;
        if claim.end <= end_of_ring || mutants::is_on("ring-wrap") && claim.end <= end_of_ring + 64
        {
            return Allocation {
                padding: None,
                claim,
            };
        }
        mutants::between();
        Allocation {
            padding: Some((claim, end_of_ring)),
            claim: self.claim(permit, bytes),
        }
    }

    fn claim(&self, permit: &mut LogReservation<'_>, bytes: u64) -> LogRange {
        permit.held -= bytes;
        let start = self.reserved.0.fetch_add(bytes, Ordering::SeqCst);
        let end = start + bytes;
        debug_assert!(
            end - self.tail() <= self.bytes,
            "a claim up to {end} would overwrite what is kept from {} on",
            self.tail()
        );
        LogRange { start, end }
    }

    /// To be had before a claim is reserved and dropped only if the thread panics before it is published:
    /// a thread that waits for it then panics as well, instead of waiting for ever.
    #[inline]
    pub(crate) fn unpublished(&self) -> Unpublished<'_> {
        Unpublished(self)
    }

    /// Publishing a claim that is complete and durable begins: waits until every claim before this one is published.
    /// Gives the position that is to be published. Until [`Self::advance`] no other thread comes out of here, so what
    /// is done between the two never overlaps and is done in the order of claims.
    ///
    /// # Panics
    /// If the thread of an earlier one has panicked.
    #[inline]
    pub fn wait_turn(&self, claim: LogRange) -> u64 {
        let published = self.published.0.load(Ordering::SeqCst);
        if published != claim.start {
            if mutants::is_on("publish-over-gap") {
                return claim.end.max(published);
            }
            self.wait_longer(claim);
        }
        claim.end
    }

    #[cold]
    fn wait_longer(&self, claim: LogRange) {
        let mine = || self.published.0.load(Ordering::SeqCst) == claim.start;
        let abandoned = || self.abandoned.load(Ordering::SeqCst) != 0;
        for _ in 0..SPINS {
            if mine() {
                return;
            }
            spin();
        }
        for _ in 0..YIELDS {
            if mine() {
                return;
            }
            yield_now();
        }
        self.order.sleep(None, || mine() || abandoned());
        assert!(
            mine(),
            "a thread has panicked while it appended an earlier record"
        );
    }

    /// Publishes a claim up to `end`, which [`Self::wait_turn`] gave, and lets the next one go on.
    pub fn advance(&self, claim: LogRange, end: u64) {
        debug_assert!(
            self.published() == claim.start || mutants::is_on("publish-over-gap"),
            "not in order: an earlier claim is not published"
        );
        self.published.0.store(end, Ordering::Release);
        self.order.wake();
    }

    /// Gives the space before `tail` to new records. A position that is not above the
    /// present tail changes nothing. The caller has made `tail` durable before.
    pub fn release(&self, tail: u64) {
        assert!(
            tail <= self.published(),
            "tail {tail} is above published {}",
            self.published()
        );
        let old = self.tail.0.fetch_max(tail, Ordering::SeqCst);
        if tail > old {
            self.give_back(tail - old);
        }
    }
}
