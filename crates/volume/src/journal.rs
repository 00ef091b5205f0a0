//! The structure journal.
