//! What helps when something was lost: volumes found on devices, their volume files written again.

pub mod import;
pub mod scan;
