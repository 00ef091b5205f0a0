//! Shale: media and time, knowing nothing of file systems
