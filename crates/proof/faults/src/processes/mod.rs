//! Processes that are killed, stopped, or short of something, and calls that go on meanwhile.

pub mod child;
pub mod clients;
pub mod freezes;
pub mod killed;
pub mod open_calls;
