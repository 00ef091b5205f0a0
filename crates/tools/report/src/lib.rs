//! Shale: a failure report without users' data.
//!
//! | Module | What it holds |
//! | --- | --- |
//! | [`redact`] | what may hold names of users' files or programs is left out of texts and JSON |
//! | [`machine`](mod@machine) | the kernel and the machine |
//! | [`archive`] | the report as a file |
#![forbid(unsafe_code)]

pub mod archive;
pub mod machine;
pub mod redact;

pub use archive::Archive;
pub use machine::machine;
pub use redact::{LEFT_OUT, Redactor};
