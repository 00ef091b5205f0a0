//! Shale: one process's update log
