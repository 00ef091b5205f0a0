//! One change of the volume, whole or not at all: the transaction and its journal.

pub(crate) mod journal;
pub(crate) mod txn;
