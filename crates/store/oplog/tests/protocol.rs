//! The ring's protocol under a model checker: the very source of `src/ring.rs`, with
//! atomics, locks and waiting that explore interleavings.
//!
//! Checked in each schedule: live ranges never overlap; claims are announced in order;
//! a call returns only when everything before it is filled; nobody sleeps for ever
//! (the checker reports a deadlock); at the end the ring is empty and all of it free.
//! A failure prints the schedule; `shuttle::replay` runs it again.

#[allow(dead_code, reason = "the tests need only a part of the ring")]
#[path = "../src/ring.rs"]
mod ring;

/// What `src/sync.rs` is in the crate, for the model.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use shuttle::sync::{Condvar, Mutex};

    /// The model's processors keep every order.
    pub(crate) fn barrier() {}
    pub(crate) fn compiler_fence(_: Ordering) {}

    /// So few that the way into sleep is explored as well.
    pub(crate) const SPINS: u32 = 1;
    pub(crate) const YIELDS: u32 = 1;

    pub(crate) fn spin() {
        shuttle::hint::spin_loop();
    }

    pub(crate) fn yield_now() {
        shuttle::thread::yield_now();
    }
}

use ring::{LogRange, Ring};
use shuttle::sync::{Arc, Mutex, MutexGuard};
use shuttle::thread;

const RING_BYTES: u64 = 32;
/// Of each of the two kinds.
const SCHEDULES: usize = 6_000;

/// One byte of the ring: which position lives there, and whether its owner is done.
#[derive(Clone, Copy)]
struct Byte {
    pos: u64,
    filled: bool,
}

struct Model {
    ring: Ring,
    bytes: Mutex<Vec<Option<Byte>>>,
    announced: Mutex<u64>,
    /// Positions that pads filled.
    padded: Mutex<u64>,
    in_order: bool,
}

/// Also of a mutex whose holder has failed: the threads that are unwound after it must not
/// fail in turn, which would hide what it said.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Model {
    fn new(head: u64, in_order: bool) -> Self {
        Self {
            ring: Ring::new(RING_BYTES, head, head),
            bytes: Mutex::new(vec![None; RING_BYTES as usize]),
            announced: Mutex::new(head),
            padded: Mutex::new(0),
            in_order,
        }
    }

    fn own(&self, claim: LogRange) {
        let mut bytes = locked(&self.bytes);
        for pos in claim.start..claim.end {
            let byte = &mut bytes[(pos % RING_BYTES) as usize];
            assert!(byte.is_none(), "position {pos} overlaps a live one");
            *byte = Some(Byte { pos, filled: false });
        }
    }

    fn fill(&self, claim: LogRange) {
        for pos in claim.start..claim.end {
            let mut bytes = locked(&self.bytes);
            let byte = bytes[(pos % RING_BYTES) as usize].as_mut().unwrap();
            assert_eq!(byte.pos, pos, "live bytes were overwritten");
            byte.filled = true;
        }
    }

    fn publish(&self, claim: LogRange) {
        let end = match self.in_order {
            true => self.ring.wait_turn(claim),
            false => claim.end,
        };
        let before = std::mem::replace(&mut *locked(&self.announced), end);
        assert_eq!(before, claim.start, "not in order: announced");
        self.ring.advance(claim, end);
        for byte in locked(&self.bytes).iter().flatten() {
            assert!(
                byte.filled || byte.pos >= claim.end,
                "not in order: returned before position {} was filled",
                byte.pos
            );
        }
    }

    fn append(&self, bytes: u64) {
        let mut permit = loop {
            match self.ring.try_reserve(bytes) {
                Some(permit) => break permit,
                None => self.ring.wait_for_space(bytes, None),
            };
        };
        let allocation = self.ring.allocate(&mut permit, bytes);
        if let Some((waste, middle)) = allocation.padding {
            assert!(waste.start < middle && middle < waste.end && middle % RING_BYTES == 0);
            *locked(&self.padded) += waste.end - waste.start;
            self.own(waste);
            self.fill(waste);
            self.publish(waste);
        }
        let claim = allocation.claim;
        assert_eq!(claim.end - claim.start, bytes);
        assert!(
            claim.start / RING_BYTES == (claim.end - 1) / RING_BYTES,
            "a record straddles the ring's end"
        );
        self.own(claim);
        self.fill(claim);
        self.publish(claim);
    }

    /// Everything published is digested at once and its space given back.
    fn collect(&self) {
        let digested = self.ring.published();
        for byte in locked(&self.bytes).iter_mut() {
            if byte.is_some_and(|byte| byte.pos < digested) {
                *byte = None;
            }
        }
        self.ring.release(digested);
    }
}

/// Three threads append, collecting after each record; the ring is full most of the time.
fn run(head: u64, sizes: [&'static [u64]; 3], in_order: bool) {
    let model = Arc::new(Model::new(head, in_order));
    let total: u64 = sizes.iter().flat_map(|s| s.iter()).sum();
    let threads: Vec<_> = sizes
        .into_iter()
        .map(|sizes| {
            let model = model.clone();
            thread::spawn(move || {
                for &bytes in sizes {
                    model.append(bytes);
                    model.collect();
                }
            })
        })
        .collect();
    for t in threads {
        t.join().unwrap();
    }
    let end = head + total + *locked(&model.padded);
    assert_eq!(model.ring.reserved(), end);
    assert_eq!(model.ring.published(), end);
    assert_eq!(model.ring.tail(), end);
    let whole = model.ring.wait_for_space(RING_BYTES / 2, None);
    assert!(whole, "all of the ring is free again");
}

/// Starts near the ring's end, with sizes that meet it.
fn crossing() {
    run(27, [&[8, 3], &[5, 8], &[7, 4]], true);
}

#[test]
fn random_schedules() {
    shuttle::check_random(crossing, SCHEDULES);
}

#[test]
fn priority_schedules() {
    shuttle::check_pct(crossing, SCHEDULES, 3);
}

/// The check can find the bug that it is for. It shows in one of two ways.
#[test]
#[should_panic(expected = "not in order")]
fn publishing_without_waiting_is_found() {
    shuttle::check_random(|| run(27, [&[8, 3], &[5, 8], &[7, 4]], false), SCHEDULES);
}
