//! The volume that a fault happens to: filled by a workload, damaged, served, checked, looked at.

pub mod load;
pub mod sight;
pub mod stage;
