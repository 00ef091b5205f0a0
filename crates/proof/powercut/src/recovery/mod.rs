//! An image is recovered, and everything that came out is looked at.

pub mod check;
pub mod databases;
pub mod mkfs;
pub mod rot;
