//! Interposition: how the calls of an unmodified program reach the library that serves them, and how their results get back (DESIGN §4).
//!
//! Knows nothing of files. The crate that serves calls says which ones it wants to see ([`outcome::CLASS`], [`outcome::TABLE`]) and
//! with what they are served ([`trampolines::serve_with`]); `preload` does both in its constructor.
//!
//! | Module | What it does |
//! | --- | --- |
//! | [`rewrite`], [`site`] | system calls in the code of libc become jumps to stubs |
//! | [`trampolines`] | from a stub or an exported symbol into the library and back |
//! | [`outcome`] | which calls are looked at, and what the library says of a call |
//! | [`inside`], [`stack`], [`protect`] | a thread inside the library: on a stack and with memory that the program does not reach |
//! | [`thread`](mod@thread) | each thread's block; a fork waits until nobody is inside |
//! | [`probe`] | whether memory that the program passes is there |
//! | [`signals`], [`cancellation`] | signals and cancellations wait while their thread is inside |
//! | [`environment`], [`bypass`] | programs that a program starts get the library, too; those that are named are not served |
//! | [`executable`] | whether other code of the process makes system calls of its own |
//! | [`raw`], [`clock`] | system calls without libc; time |

pub mod bypass;
pub mod cancellation;
pub mod clock;
pub mod environment;
pub mod executable;
pub mod inside;
pub mod outcome;
pub mod probe;
pub mod protect;
pub mod raw;
pub mod rewrite;
pub mod signals;
pub mod site;
pub mod stack;
pub mod thread;
pub mod trampolines;
