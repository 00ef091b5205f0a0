//! What helps when something was lost or went wrong: volumes found on devices, their volume files written again, failure reports.

pub mod import;
pub mod report;
pub mod scan;
