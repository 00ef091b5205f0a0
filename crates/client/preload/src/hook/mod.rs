//! How calls of the program come here: rewritten instructions, exported symbols, signals.

pub(crate) mod cancellation;
#[cfg(not(test))]
pub mod exports;
pub mod inside;
pub mod outcome;
pub mod raw;
pub mod rewrite;
pub mod signals;
pub(crate) mod site;
pub mod stack;
#[cfg(not(test))]
pub(crate) mod start;
pub mod trampolines;
