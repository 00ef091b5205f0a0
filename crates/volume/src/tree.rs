//! Copy-on-write B+-trees.
