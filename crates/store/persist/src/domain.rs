//! What it takes until bytes are durable.
//!
//! Two domains are NVM: a log lies in it, and a record is published only after the fence that follows
//! its stores. So everything that is published is hardened, and nobody waits. In the staged domain a log
//! lies in memory that a power cut loses, and is hardened as far as its bytes lie in the staging area of a
//! device: that is a watermark of its own, behind the published one.

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
    /// Shared memory whose logs are appended to the staging area of a device: what was staged survives
    /// a power cut.
    Staged,
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
            Self::Staged => "staged",
        }
    }

    /// Whether a record is hardened as soon as it is published: then nobody waits, ever.
    #[inline(always)]
    pub fn hardens_when_published(self) -> bool {
        match self {
            Self::Dax | Self::Emulated => true,
            Self::Staged => false,
        }
    }

    /// How far a log is hardened that is published up to `published`. `None`: publishing hardens nothing
    /// here, and who stages the log knows.
    #[inline(always)]
    pub fn hardened(self, published: Published) -> Option<Hardened> {
        self.hardens_when_published()
            .then(|| Hardened::with(published))
    }

    /// Whether the records of a call are hardened when it returns, by this policy: then fsync(2) has
    /// nothing to do. In the staged domain the call waits for it.
    #[inline(always)]
    pub fn hardens_at_return(self, policy: Durability) -> bool {
        match (self, policy) {
            (Self::Dax | Self::Emulated | Self::Staged, Durability::Strict) => true,
            (_, Durability::Buffered | Durability::Ordered) => false,
        }
    }

    /// What a power cut may take of a volume, in one sentence. `is_memory`: what emulates NVM is memory.
    pub fn lost_by_power_cut(self, is_memory: bool, policy: Durability) -> &'static str {
        match (self, policy) {
            (Self::Emulated, _) if is_memory => {
                "a power cut loses the volume: its NVM is emulated by memory"
            }
            (Self::Emulated, _) => {
                "a power cut loses the volume, or leaves it damaged: this is no NVM"
            }
            (_, Durability::Strict) => "a power cut loses nothing that a call has returned from",
            (Self::Dax, Durability::Buffered) => {
                "a power cut may lose the last half minute of what was not followed by fsync"
            }
            (_, Durability::Buffered) => {
                "a power cut may lose the last seconds of what was not followed by fsync"
            }
            (_, Durability::Ordered) => {
                "a power cut may lose the last second, also of what was followed by fsync: what stays are all calls up to some point"
            }
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
            let hardened = domain.hardened(published);
            assert_eq!(hardened.map(Hardened::pos), Some(published.pos()));
            assert!(domain.hardens_when_published());
        }
    }

    #[test]
    fn publishing_hardens_nothing_that_is_staged() {
        let published = Published::at(LogPos(640));
        assert_eq!(Domain::Staged.hardened(published), None);
        assert!(!Domain::Staged.hardens_when_published());
    }

    #[test]
    fn memory_is_not_dax() {
        let map = MapOptions::new().anonymous(4096).unwrap();
        assert_eq!(Domain::of(&map), Domain::Emulated);
    }

    #[test]
    fn only_strict_calls_leave_nothing_to_fsync() {
        for domain in [Domain::Dax, Domain::Emulated, Domain::Staged] {
            assert!(domain.hardens_at_return(Durability::Strict));
            assert!(!domain.hardens_at_return(Durability::Buffered));
            assert!(!domain.hardens_at_return(Durability::Ordered));
        }
    }

    #[test]
    fn what_a_power_cut_takes_is_said_as_it_is() {
        for (domain, policy, word) in [
            (Domain::Dax, Durability::Strict, "loses nothing"),
            (Domain::Staged, Durability::Strict, "loses nothing"),
            (
                Domain::Staged,
                Durability::Buffered,
                "not followed by fsync",
            ),
            (Domain::Staged, Durability::Ordered, "up to some point"),
            (Domain::Dax, Durability::Ordered, "up to some point"),
            (Domain::Emulated, Durability::Strict, "loses the volume"),
        ] {
            for is_memory in [false, true] {
                let text = domain.lost_by_power_cut(is_memory, policy);
                assert!(text.contains(word), "{domain:?} {policy:?}: {text}");
            }
        }
    }
}
