//! The two watermarks of a log, as types: neither can be taken for the other, or for any position.

use shale_format::LogPos;

/// Every record before this position is complete, and every reader of the log sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published(LogPos);

impl Published {
    /// The watermark at `pos`. For the writer of the log, and for the daemon, which checks what a
    /// client says.
    #[inline(always)]
    pub fn at(pos: LogPos) -> Self {
        Self(pos)
    }

    /// Where it is.
    #[inline(always)]
    pub fn pos(self) -> LogPos {
        self.0
    }
}

/// Every record before this position survives a power cut. Only a [`Domain`](crate::Domain) says so, or who has copied the records
/// into NVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hardened(LogPos);

impl Hardened {
    /// All that is published.
    #[inline(always)]
    pub(crate) fn with(published: Published) -> Self {
        Self(published.0)
    }

    /// All records before `pos` were copied into NVM, or are in the volume.
    #[inline(always)]
    pub fn copied(pos: LogPos) -> Self {
        Self(pos)
    }

    /// Where it is.
    #[inline(always)]
    pub fn pos(self) -> LogPos {
        self.0
    }
}
