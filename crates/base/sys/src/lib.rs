//! Shale: what the operating system and the processor give.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`biased_rwlock`] | a lock that is left without waiting for what was stored before |
//! | [`clock`] | time as a value handed in, and the calibrated time stamp counter |
//! | [`heap`] | how much freed memory a process keeps |
//! | [`reserve_allocator`] | an allocator that keeps some memory for when there is no more |
//! | [`protect`] | the processor's protection keys |
//! | [`threads`] | which threads of the process still live, and what its children begin with |
//! | [`stop_flag`] | how a thread that does something now and then ends |
//! | [`kernel_text`] | files of `/proc`, read by few calls |
//! | [`private`] | files that nobody but their owner may open |
//! | [`file_users`] | who else has a file open |
//! | [`user_directory`] | where a user keeps what lasts as long as its session |
//! | [`printable`] | text from outside, as a terminal may have it |
//! | [`size`] | sizes as people write and read them |
//! | [`random`] | numbers that are the same in every run |
//! | [`mutants`], [`failpoints`] | deliberate mistakes, and points to kill a process at, in test builds only |

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("Shale runs on x86-64 Linux");

pub mod biased_rwlock;
pub mod clock;
pub mod failpoints;
pub mod file_users;
pub mod heap;
pub mod kernel_text;
mod lone;
pub mod mutants;
mod peer_credentials;
pub mod printable;
pub mod private;
pub mod protect;
pub mod random;
pub mod reserve_allocator;
pub mod size;
pub mod stop_flag;
pub mod threads;
pub mod user_directory;

pub use clock::{Clock, ManualClock, SystemClock};
pub use peer_credentials::peer_groups;
pub use private::PrivateError;
pub use protect::{LibraryKey, ProtectionKey};
pub use reserve_allocator::Memory;
pub use stop_flag::StopFlag;
