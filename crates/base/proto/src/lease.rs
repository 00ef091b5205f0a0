//! Leases: modes and the table of conflicts (Strata §3.4, DESIGN §9).

use serde::{Deserialize, Serialize};

/// Files that the daemon remembers of a client that yields: those it asked for a lease on last. The client must
/// remember at least as many, since it is taken for a FUSE client where it uses others there.
pub const ASKED_FILES: usize = 512;

/// What a lease allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseMode {
    /// Reading; several clients at once.
    Shared,
    /// Writing; one client.
    Exclusive,
}

impl LeaseMode {
    /// Whether two clients may hold these at the same time.
    pub fn compatible(self, other: LeaseMode) -> bool {
        self == LeaseMode::Shared && other == LeaseMode::Shared
    }
    /// Whether holding `self` suffices where `wanted` is needed.
    pub fn covers(self, wanted: LeaseMode) -> bool {
        self >= wanted
    }
}

#[cfg(test)]
mod tests {
    use super::LeaseMode::*;

    #[test]
    fn conflicts() {
        assert!(Shared.compatible(Shared));
        assert!(!Shared.compatible(Exclusive) && !Exclusive.compatible(Exclusive));
        assert!(Exclusive.covers(Shared) && !Shared.covers(Exclusive));
    }
}
