//! Descriptors and what they are open on.

pub mod description;
pub mod inherited;
pub mod mapped;
pub mod own;
pub mod placeholder;
pub mod recent;
pub mod table;
