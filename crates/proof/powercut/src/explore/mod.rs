//! Every state that a power cut in a workload could leave.

pub mod explorer;
