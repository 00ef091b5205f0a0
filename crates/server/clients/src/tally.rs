//! Bytes that one client has caused to be written.

use serde::Serialize;
use std::ops::AddAssign;

/// Bytes that one client has caused to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Records in its log.
    pub log_bytes: u64,
    /// Full blocks that it put into the volume itself; known once they are digested.
    pub stolen_bytes: u64,
    /// Blocks that digests wrote, and bytes that they stored into blocks that stayed.
    pub copied_bytes: u64,
    /// To NVM: the three above, and what migration moved up; of records in memory those that were copied to NVM.
    pub nvm_bytes: u64,
    /// To flash, by migration and cleaning.
    pub ssd_bytes: u64,
    /// To disks, likewise.
    pub hdd_bytes: u64,
}

/// Counters behind [`Written`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes of log that are digested.
    pub logged: u64,
    /// Bytes of log that lay in memory and were never copied to NVM.
    pub in_memory: u64,
    /// Bytes of blocks that clients wrote in place.
    pub stolen: u64,
    /// Bytes that digests wrote to blocks in NVM.
    pub copied: u64,
    /// Bytes that were moved to each tier.
    pub moved: [u64; 3],
}

impl AddAssign for Tally {
    fn add_assign(&mut self, o: Self) {
        self.logged += o.logged;
        self.in_memory += o.in_memory;
        self.stolen += o.stolen;
        self.copied += o.copied;
        for (sum, n) in self.moved.iter_mut().zip(o.moved) {
            *sum += n;
        }
    }
}

impl Tally {
    /// `backlog`: bytes of log that are not digested yet.
    pub fn written(&self, backlog: u64) -> Written {
        let log_bytes = self.logged + backlog;
        let [up, ssd_bytes, hdd_bytes] = self.moved;
        Written {
            log_bytes,
            stolen_bytes: self.stolen,
            copied_bytes: self.copied,
            nvm_bytes: log_bytes.saturating_sub(self.in_memory) + self.stolen + self.copied + up,
            ssd_bytes,
            hdd_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_written_to_nvm_is_one_sum() {
        let mut tally = Tally {
            logged: 100,
            in_memory: 28,
            stolen: 4096,
            copied: 8192,
            moved: [1, 2, 3],
        };
        let written = tally.written(28);
        assert_eq!(written.log_bytes, 128);
        assert_eq!(written.nvm_bytes, 100 + 4096 + 8192 + 1);
        assert_eq!((written.ssd_bytes, written.hdd_bytes), (2, 3));
        tally += tally;
        assert_eq!(tally.written(0).hdd_bytes, 6);
    }
}
