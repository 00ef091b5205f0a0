//! Shale: the shared side: digest, lease, recover, check.
#![forbid(unsafe_code)]

pub mod digest;
