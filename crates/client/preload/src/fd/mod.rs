//! Descriptors and what they are open on.

pub mod description;
pub mod own;
pub mod recent;
pub mod table;
