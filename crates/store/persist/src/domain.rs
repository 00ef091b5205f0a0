//! What it takes until bytes are durable.
//!
//! Both domains are NVM: a log lies in it, and a record is published only after the fence that follows
//! its stores. So everything that is published is hardened, and nobody waits.

use crate::position::{Hardened, Published};
use shale_format::Durability;
use shale_nvm::Map;

/// What makes the stores of a mapping durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// NVM that is mapped directly (DAX): what was flushed and fenced survives a power cut.
    Dax,
    /// NVM that is emulated by tmpfs or a page cache: as [`Self::Dax`], but only every process is
    /// survived, not a power cut.
    Emulated,
}

impl Domain {
    /// The domain of what is stored to `map`.
    pub fn of(map: &Map) -> Self {
        match map.is_dax() {
            true => Self::Dax,
            false => Self::Emulated,
        }
    }

    /// The word for it in `status` and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dax => "dax",
            Self::Emulated => "emulated",
        }
    }

    /// How far a log is hardened that is published up to `published`.
    #[inline(always)]
    pub fn hardened(self, published: Published) -> Hardened {
        match self {
            Self::Dax | Self::Emulated => Hardened::with(published),
        }
    }

    /// Whether the records of a call are hardened when it returns, by this policy: then fsync(2) has
    /// nothing to do.
    #[inline(always)]
    pub fn hardens_at_return(self, policy: Durability) -> bool {
        match (self, policy) {
            (Self::Dax | Self::Emulated, Durability::Strict) => true,
            (Self::Dax | Self::Emulated, Durability::Buffered) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::LogPos;
    use shale_nvm::MapOptions;

    #[test]
    fn what_is_published_in_nvm_is_hardened() {
        let published = Published::at(LogPos(640));
        for domain in [Domain::Dax, Domain::Emulated] {
            assert_eq!(domain.hardened(published).pos(), published.pos());
        }
    }

    #[test]
    fn memory_is_not_dax() {
        let map = MapOptions::new().anonymous(4096).unwrap();
        assert_eq!(Domain::of(&map), Domain::Emulated);
    }

    #[test]
    fn only_strict_calls_leave_nothing_to_fsync() {
        assert!(Domain::Dax.hardens_at_return(Durability::Strict));
        assert!(!Domain::Dax.hardens_at_return(Durability::Buffered));
    }
}
