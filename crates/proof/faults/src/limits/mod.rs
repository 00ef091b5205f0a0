//! No space, no memory, no descriptors.

pub mod buffer_space;
pub mod no_space;
pub mod system_limits;
