//! The verbs `shale backup` and `shale restore`: arguments, and what is said.

pub mod backup;
pub mod restore;
