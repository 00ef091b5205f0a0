//! Shale: where the processes of a mount log to, and how much.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`bounded_file`] | the log of a mount, which takes a bounded part of `/run` |
//! | [`level`] | how much is logged |
//! | [`destination`] | the log file, the terminal, or the journal of systemd |
//!
//! One line is one event that somebody may want to read: a mount, an unmount, a recovery with what it had to do, a daemon that was started again
//! and why, a device that fails, a tier that is full, a client that was cut off. What each client or request does is logged at `debug`.
#![forbid(unsafe_code)]

pub mod bounded_file;
pub mod destination;
pub mod level;

pub use bounded_file::LogFile;
pub use destination::start;
pub use level::Level;
