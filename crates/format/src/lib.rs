//! Shale: every byte that outlives a process; no I/O, no unsafe
