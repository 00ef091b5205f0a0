//! Which workloads there are, and many of them in threads; failures are made small.

pub mod campaign;
pub mod minimise;
pub mod sequences;
pub mod whole;
