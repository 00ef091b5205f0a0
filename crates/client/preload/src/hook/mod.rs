//! How calls of the program come here: rewritten instructions, exported symbols, signals.

#[cfg(not(test))]
pub mod exports;
pub mod inside;
pub mod outcome;
pub mod raw;
pub mod rewrite;
pub mod signals;
pub mod stack;
#[cfg(not(test))]
pub(crate) mod start;
pub mod trampolines;
