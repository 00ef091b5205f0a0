//! What makes this a library that a program is started with: its constructor and the symbols that it exports. Rewritten
//! instructions and signals: `interpose`.

#[cfg(not(test))]
pub mod exports;
mod own_calls;
#[cfg(not(test))]
pub(crate) mod start;
