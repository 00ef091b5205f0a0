//! Media of NVM that are missing or another's, older or newer images, pages that cannot be read.

pub mod golden;
pub mod memory_errors;
pub mod segments;
