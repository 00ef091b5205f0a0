//! Shale: the FUSE adapter
