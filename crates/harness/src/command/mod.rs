//! The verbs.

pub mod crash;
pub mod model;
pub mod mutants;
