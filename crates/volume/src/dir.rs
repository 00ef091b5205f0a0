//! Directories: operations on entry trees.
