//! Shale: POSIX semantics in the caller's process
