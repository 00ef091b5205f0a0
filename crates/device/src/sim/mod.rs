//! The recording device: what a workload did to NVM, and what a power cut could leave.
