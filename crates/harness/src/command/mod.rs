//! The verbs.

pub mod crash;
pub mod model;
