//! Pairs
