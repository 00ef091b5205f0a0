//! The verbs.

pub mod coherence;
pub mod crash;
pub mod cut_device;
pub mod digest;
pub mod faults;
pub mod flash;
pub mod hostile;
pub mod model;
pub mod mutants;
mod parts;
mod staged;
pub mod tiers;
