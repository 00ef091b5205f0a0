//! Shale: workloads, models, measurements
