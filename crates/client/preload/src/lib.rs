//! The library that `shale run` puts into a program: calls on files of a Shale mount are
//! served in the program's own process (DESIGN §4).
//!
//! **The kernel stays in charge of names and descriptors; the library serves data**, unless names are asked for, too
//! ([`names`]). A file is opened by the kernel, on the mount. If it is a regular file there, its
//! descriptor is entered in a table, and from then on reading, writing, seeking,
//! syncing and the like make no system call. Whatever is not served here reaches the
//! kernel with a real descriptor and is served by the mount, coherently.
//!
//! Settings, by the environment:
//!
//! * `SHALE_REPORT=FILE`: at exit, add a line of JSON to the file ([`shale_fd::report`]).
//! * `SHALE_LOG_BYTES=N`: bytes of the update log of each process (`64M`), within the limits of the volume;
//!   default: what its volume file says (`client_log_bytes`, else `log_bytes`).
//! * `SHALE_WARM_US=N`: microseconds that a file's calls take on the mount before the file is served here, default
//!   5000 ([`pays`]).
//! * `SHALE_WARM_CALLS=N`: instead of that, calls that a process leaves to the kernel before it becomes a
//!   client of the volume and serves every file; 0: none.
//! * `SHALE_NAMES=N`: calls about paths of a mount after which names are served in the process, too ([`names`]); not set: never.
//! * `SHALE_BYPASS=PROGRAM:…`: programs in which nothing is served ([`shale_interpose::bypass`]).
//! * `SHALE_RUN_DIR=DIR`: one more directory with the states of mounts.
//!
//! A call that is served is no cancellation point, and is not interrupted by signals. The first calls on a
//! file, which are made for the program ([`short`]), are none, either.

pub mod calls;
pub mod client;
pub mod failure;
pub mod hook;
pub mod link;
pub mod names;
pub mod pays;
pub mod serve;
pub mod short;

/// Memory of this library.
#[global_allocator]
static MEMORY: shale_sys::Memory = shale_sys::Memory::new();
