//! Extents of files: operations on extent trees.
