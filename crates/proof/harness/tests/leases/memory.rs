//! Memory that processes share, as the processor keeps it: each thread's stores wait in a
//! buffer of its own, in order, until the processor writes them out; loads find the
//! thread's own stores first. Locked instructions and system calls empty the buffer of their
//! thread, a barrier on all processors those of all. The checker alone would have every
//! store seen at once, and then no read section would need a barrier.

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::ThreadId;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

/// Page and offset of a word.
type Place = (u32, usize);

#[derive(Default)]
struct State {
    words: HashMap<Place, u64>,
    buffers: HashMap<ThreadId, VecDeque<(Place, u64)>>,
    pages: u32,
    slots: HashMap<ThreadId, usize>,
}

thread_local! {
    // One execution at a time on each thread of the system, all its threads on that one.
    static STATE: RefCell<State> = RefCell::default();
    static MUTANT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Forgets everything: a new execution begins.
pub(crate) fn reset() {
    STATE.with(|s| *s.borrow_mut() = State::default());
}

/// Switches a mutant on, for the executions of this thread.
pub(crate) fn switch_on(mutant: &'static str) {
    MUTANT.set(Some(mutant));
}

/// Whether it is on.
pub(crate) fn is_on(mutant: &str) -> bool {
    MUTANT.get() == Some(mutant)
}

fn me() -> ThreadId {
    shuttle::thread::current().id()
}

/// The calling thread uses this reader slot from now on.
pub(crate) fn use_reader_slot(number: usize) {
    STATE.with(|s| s.borrow_mut().slots.insert(me(), number));
}

/// The calling thread's reader slot.
pub(crate) fn reader_slot() -> usize {
    STATE.with(|s| s.borrow().slots[&me()])
}

/// Another thread may run here.
pub(crate) fn step() {
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

impl State {
    fn write_out(&mut self, thread: ThreadId, most: usize) {
        let Some(buffer) = self.buffers.get_mut(&thread) else {
            return;
        };
        let some = most.min(buffer.len());
        for (place, value) in buffer.drain(..some) {
            self.words.insert(place, value);
        }
    }
}

/// Writes out what the calling thread has stored: a locked instruction, a system call.
pub(crate) fn fence() {
    STATE.with(|s| s.borrow_mut().write_out(me(), usize::MAX));
}

/// Writes out what any thread has stored: `membarrier`.
pub(crate) fn barrier() {
    step();
    STATE.with(|s| {
        let mut state = s.borrow_mut();
        let threads: Vec<ThreadId> = state.buffers.keys().copied().collect();
        for thread in threads {
            state.write_out(thread, usize::MAX);
        }
    });
}

/// The processor may write something out now.
fn perhaps_write_out() {
    let some = thread_rng().gen_range(0..3);
    STATE.with(|s| s.borrow_mut().write_out(me(), some));
}

/// A page of words.
#[derive(Clone, Debug)]
pub(crate) struct Words(u32);

impl Words {
    /// A page of zeros.
    pub(crate) fn new() -> Self {
        STATE.with(|s| {
            let mut state = s.borrow_mut();
            state.pages += 1;
            Self(state.pages)
        })
    }

    pub(crate) fn load_u64(&self, at: usize) -> u64 {
        step();
        perhaps_write_out();
        self.now(at)
    }

    fn now(&self, at: usize) -> u64 {
        let place = (self.0, at);
        STATE.with(|s| {
            let state = s.borrow();
            let own = state.buffers.get(&me());
            let own = own.and_then(|b| b.iter().rev().find(|(p, _)| *p == place));
            own.map_or_else(|| state.words.get(&place).copied().unwrap_or(0), |o| o.1)
        })
    }

    pub(crate) fn load_u32(&self, at: usize) -> u32 {
        self.load_u64(at) as u32
    }

    pub(crate) fn store_u64(&self, at: usize, value: u64) {
        step();
        perhaps_write_out();
        let place = (self.0, at);
        STATE.with(|s| {
            let mut state = s.borrow_mut();
            let buffer = state.buffers.entry(me()).or_default();
            buffer.push_back((place, value));
        });
    }

    pub(crate) fn store_u32(&self, at: usize, value: u32) {
        self.store_u64(at, u64::from(value));
    }

    /// A locked instruction.
    pub(crate) fn fetch_add_u32(&self, at: usize, by: u32) {
        step();
        fence();
        let sum = (self.now(at) as u32).wrapping_add(by);
        STATE.with(|s| s.borrow_mut().words.insert((self.0, at), u64::from(sum)));
    }
}
