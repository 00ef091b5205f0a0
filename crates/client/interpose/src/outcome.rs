//! What this library says of a call: whether to look at it at all, and what it came to.

use crate::raw::NR_END;
use core::sync::atomic::{AtomicU8, AtomicU32};

/// What to do with a call, by number.
pub mod class {
    /// Not ours.
    pub const PASS: u8 = 0;
    /// Ours if the descriptor in rdi is in the table.
    pub const DESCRIPTOR: u8 = 1;
    /// Always looked at.
    pub const ALWAYS: u8 = 2;
    /// [`ALWAYS`] at some times, [`PASS`] at others: its sites look here each time.
    pub const AT_TIMES: u8 = 3;
}

/// Classes by number, for sites whose number is known only when they run.
pub static CLASS: [AtomicU8; NR_END] = [const { AtomicU8::new(class::PASS) }; NR_END];

/// Descriptors from this number on are left to the kernel.
pub const FD_END: usize = 1 << 16;

/// Descriptors that are looked at: 0: the kernel's, not looked at where the call is of [`class::DESCRIPTOR`]; what else a word says is of the crate that
/// serves.
pub static TABLE: [AtomicU32; FD_END] = [const { AtomicU32::new(0) }; FD_END];

/// The result that means: not ours, go on as if nothing had been here.
pub const PASS: i64 = i64::MIN;

/// The result of a call that made this child: it goes on with 0, and with its stack pointer at
/// [`crate::thread::Thread::child_stack`].
pub const ONTO_STACK: i64 = PASS + 1;

/// What a call comes to, inside this library only, in which it panicked and nothing more is served.
pub const PANICKED: i64 = PASS + 2;
