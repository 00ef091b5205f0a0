//! Shale: the digested state of a volume
