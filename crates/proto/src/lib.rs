//! Shale: what client and daemon say to each other
