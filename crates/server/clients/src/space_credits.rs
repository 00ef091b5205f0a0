//! Space credits: a full volume is found out at the call and never at digest.
//!
//! A client's records each carry the net growth of the volume that they may cause.
//! The client asks for *credit* before and spends it as it appends; digest takes what
//! the digested records carried out of the client's credit. Hence at any time
//!
//! > available = free − fixed reserve − orphan reserve − Σ credit
//!
//! and every record that was acknowledged can be digested (DESIGN §16 has the argument).
//! The fixed reserve is for copy-on-write: blocks that a digest needs for a moment.
//!
//! Blocks *granted* for stealing have left the allocator, so they are not in `free`; the
//! steal record that names one carries its growth like any write and spends credit
//! for it. While a grant is idle its blocks count twice. That errs on the safe side, and
//! matters only when space is short: then no grants are made, and a client that
//! hears [`Reply::NoSpace`] returns its idle ones and asks again.
//!
//! [`Reply::NoSpace`]: shale_proto::Reply::NoSpace

use crate::clients::LEFT_LOGS;
use parking_lot::Mutex;
use shale_format::limits::BLOCK_BYTES;
use shale_sys::mutants;
use shale_volume::{Space as Blocks, Volume};
use std::collections::HashMap;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Credits are given in multiples of this many bytes, as records count it.
const UNIT: u64 = 64;
/// Space that every inode keeps for its entry among the orphans, so that its last name can
/// go on a full volume: an entry of 24 bytes in a tree whose leaves are at least a quarter
/// full, and that tree's inner nodes. A client sets it aside with the inode.
const ORPHAN_BYTES: u64 = 128;
/// From here on, in thousandths of all space, a client that is given more is slowed.
const PAUSE_FROM: u128 = 600;
/// With so many more the pause is twice as long.
const PAUSE_DOUBLE: u128 = 40;
/// Pause at [`PAUSE_FROM`] for [`PAUSE_UNIT_BYTES`] of space: some 100 overwrites.
const PAUSE_UNIT_NS: u128 = 20_000;
const PAUSE_UNIT_BYTES: u128 = 1 << 20;
/// Longest pause for one credit.
const PAUSE_MAX_NS: u64 = 5_000_000;
/// Most blocks that are lent for pages of mappings, and the part of what the fixed reserve can lack for a while.
const LENT_BLOCKS_MAX: u64 = 64;
const LENT_PART: u64 = 4;
/// Credit under this number is for what digests have placed below the memory tier since the last checkpoint.
const CHECKPOINT: u32 = u32::MAX;

/// Bytes kept back for what a digest needs for a moment.
fn fixed_reserve(blocks: &Blocks) -> u64 {
    blocks.reserved_fixed * BLOCK
}

/// Free space of the volume, from which credits are given.
#[derive(Clone, Copy, Debug)]
pub struct FreeSpace {
    /// Blocks of NVM.
    pub blocks: Blocks,
    /// Inodes in use.
    pub inodes: u64,
}

impl FreeSpace {
    /// As of now.
    pub fn of(volume: &Volume) -> FreeSpace {
        FreeSpace {
            blocks: volume.space(),
            inodes: volume.inodes(),
        }
    }

    /// What could be given out by a caller that waits until all that is free is released: `deferred` blocks wait for a grace period.
    pub fn once_released(volume: &Volume, deferred: u64) -> FreeSpace {
        let now = Self::of(volume);
        let blocks = Blocks {
            free: now.blocks.free + now.blocks.pending + deferred,
            ..now.blocks
        };
        FreeSpace { blocks, ..now }
    }

    /// Bytes kept back: the fixed reserve, and what every inode keeps for its entry among the orphans.
    pub fn kept_back(&self) -> u64 {
        fixed_reserve(&self.blocks) + self.inodes * ORPHAN_BYTES
    }

    /// Bytes of the fixed reserve that may be lent: little, since names have to go on a full volume, and return from lower tiers by the same part.
    fn lendable(&self) -> u64 {
        (self.blocks.spare() / LENT_PART).min(LENT_BLOCKS_MAX) * BLOCK
    }

    /// Bytes that could be given out if none were.
    pub fn whole(&self) -> u64 {
        self.available(0)
    }

    /// Bytes that could be given out if `outstanding` are.
    fn available(&self, outstanding: u64) -> u64 {
        (self.blocks.free * BLOCK)
            .saturating_sub(self.kept_back())
            .saturating_sub(outstanding)
    }
}

/// Credit of all clients.
#[derive(Default)]
pub struct SpaceCredits {
    ledger: Mutex<HashMap<u32, u64>>,
}

impl SpaceCredits {
    /// Bytes outstanding in all.
    pub fn outstanding(&self) -> u64 {
        self.ledger.lock().values().sum()
    }

    /// How long a client that was given `bytes` now has to pause, in nanoseconds, while logs wait that give space back when
    /// they are digested; 0: not. As LibFS does where a log fills: from 60% in use on, and for twice as
    /// long with each 4% more, so that a writer converges to the speed of digest before it is stopped.
    pub fn pause_ns(&self, free: &FreeSpace, bytes: u64) -> u64 {
        let (whole, outstanding) = (free.whole().max(1), self.outstanding());
        let used = u128::from(outstanding) * 1000 / u128::from(whole);
        match used.min(1000).checked_sub(PAUSE_FROM) {
            None | Some(0) => 0,
            Some(more) => {
                let (steps, rest) = (more / PAUSE_DOUBLE, more % PAUSE_DOUBLE);
                let unit =
                    (PAUSE_UNIT_NS << steps) + (PAUSE_UNIT_NS << steps) * rest / PAUSE_DOUBLE;
                let ns = unit * u128::from(bytes) / PAUSE_UNIT_BYTES;
                ns.min(PAUSE_MAX_NS.into()) as u64
            }
        }
    }

    /// Credit of one client.
    pub fn of(&self, client: u32) -> u64 {
        self.ledger.lock().get(&client).copied().unwrap_or(0)
    }

    /// Bytes that could be given out now.
    pub fn available(&self, free: &FreeSpace) -> u64 {
        free.available(self.outstanding())
    }

    /// Takes blocks out of the supply with `f`, which gets the bytes that could be given
    /// out: nobody is given space meanwhile.
    pub fn with_available<T>(
        &self,
        free: impl FnOnce() -> FreeSpace,
        f: impl FnOnce(u64) -> T,
    ) -> T {
        let ledger = self.ledger.lock();
        f(free().available(ledger.values().sum()))
    }

    /// Gives between `least` and `wanted` bytes if they are there. A client alone with
    /// plenty gets all it wants; near the end pieces get smaller, so that one client's
    /// idle credit is not what another lacks. Whole units only: what a client could not
    /// count would be lost to all.
    ///
    /// `supply` is asked for under the lock: it must not be older than the last
    /// [`Self::release_credit`].
    pub fn give(
        &self,
        client: u32,
        wanted: u64,
        least: u64,
        free: impl FnOnce() -> FreeSpace,
    ) -> Option<u64> {
        assert_ne!(
            client, LEFT_LOGS,
            "credit of logs that are left is no client's"
        );
        let mut ledger = self.ledger.lock();
        let available = free().available(ledger.values().sum());
        if available < least {
            return None;
        }
        let bytes = (wanted.min(available / 4) / UNIT * UNIT).max(least);
        assert!(bytes <= available, "{bytes} bytes of {available} are given");
        if !mutants::is_on("credit-forgotten") {
            *ledger.entry(client).or_default() += bytes;
        }
        Some(bytes)
    }

    /// Gives `bytes` bytes, also out of the fixed reserve as far as that can lack them: for what cannot be refused any more. What is lent is there
    /// again when the record is digested, but for the block that the page has moved to from a lower tier, until something is demoted.
    pub fn lend(&self, client: u32, bytes: u64, free: impl FnOnce() -> FreeSpace) -> Option<u64> {
        let mut ledger = self.ledger.lock();
        let free = free();
        let whole = (free.blocks.free * BLOCK + free.lendable()).saturating_sub(free.kept_back());
        let available = whole.saturating_sub(ledger.values().sum());
        (available >= bytes).then(|| {
            *ledger.entry(client).or_default() += bytes;
            bytes
        })
    }

    /// Sets aside what the records of a log need that recovery could not digest.
    pub fn hold_for_logs(&self, bytes: u64) {
        *self.ledger.lock().entry(LEFT_LOGS).or_default() += bytes;
    }

    /// Sets aside what a digest has placed below: after a power cut a restore puts it into the memory tier, where it must find space.
    pub fn hold_for_checkpoint(&self, bytes: u64) {
        if bytes > 0 && !mutants::is_on("checkpoint-space") {
            *self.ledger.lock().entry(CHECKPOINT).or_default() += bytes;
        }
    }

    /// What is set aside until the next checkpoint.
    pub fn held_for_checkpoint(&self) -> u64 {
        self.of(CHECKPOINT)
    }

    /// A checkpoint has so much of it.
    pub fn checkpointed(&self, bytes: u64) {
        self.release_credit(CHECKPOINT, bytes);
    }

    /// Takes back credit: unused, or of records that are digested now.
    pub fn release_credit(&self, client: u32, bytes: u64) {
        let mut ledger = self.ledger.lock();
        if let Some(credit) = ledger.get_mut(&client) {
            *credit = credit.saturating_sub(bytes);
        }
    }

    /// Takes back everything of a client whose log is digested to its end.
    pub fn close(&self, client: u32) {
        assert_ne!(client, LEFT_LOGS, "logs that are left keep their credit");
        self.ledger.lock().remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(free: u64) -> FreeSpace {
        let blocks = Blocks {
            total: 10_000,
            free,
            reserved_fixed: 256,
            ..Blocks::default()
        };
        FreeSpace { blocks, inodes: 0 }
    }

    #[test]
    fn credit_never_exceeds_what_is_there() {
        let credits = SpaceCredits::default();
        let space = credits.available(&free(1256));
        assert_eq!(space, 1000 * BLOCK);
        assert_eq!(
            credits.give(1, 1 << 40, 1, || free(1256)),
            Some(250 * BLOCK)
        );
        assert_eq!(
            credits.give(2, 100, 700 * BLOCK, || free(1256)),
            Some(700 * BLOCK)
        );
        assert_eq!(credits.give(3, 1 << 40, 51 * BLOCK, || free(1256)), None);
        assert_eq!(credits.available(&free(1256)), 50 * BLOCK);
        credits.release_credit(2, 100 * BLOCK);
        credits.release_credit(2, u64::MAX);
        assert_eq!((credits.of(2), credits.outstanding()), (0, 250 * BLOCK));
        credits.close(1);
        assert_eq!(credits.outstanding(), 0);
        credits.hold_for_logs(5 * BLOCK);
        assert_eq!(credits.available(&free(1256)), 995 * BLOCK);
    }

    #[test]
    fn who_gets_the_last_credit_pauses() {
        let credits = SpaceCredits::default();
        let at = |percent: u64| {
            credits.close(1);
            let bytes = 1000 * BLOCK * percent / 100;
            credits.give(1, 0, bytes, || free(1256)).unwrap();
            credits.pause_ns(&free(1256), 1 << 20)
        };
        assert_eq!((at(0), at(60)), (0, 0));
        assert!((61..=100).all(|p| at(p - 1) < at(p) || at(p) == PAUSE_MAX_NS));
        assert!((20_000..40_000).contains(&at(63)));
        assert_eq!(at(100), PAUSE_MAX_NS);
        assert_eq!(credits.pause_ns(&free(0), u64::MAX), PAUSE_MAX_NS);
    }

    #[test]
    fn credit_is_given_in_whole_units() {
        let credits = SpaceCredits::default();
        let mut odd = free(257);
        odd.inodes = 1;
        assert_eq!(credits.available(&odd), BLOCK - ORPHAN_BYTES);
        for _ in 0..10 {
            credits.give(1, 1 << 40, 64, || odd);
            assert!(credits.of(1).is_multiple_of(UNIT));
        }
    }

    #[test]
    fn pages_of_mappings_get_the_last_space_and_little_of_it() {
        let credits = SpaceCredits::default();
        let spare = free(256).blocks.spare();
        let lendable = free(256).lendable() / BLOCK;
        assert!(lendable > 0 && lendable <= LENT_BLOCKS_MAX && lendable * LENT_PART <= spare);
        // What anybody could have goes first, then what is lent; credit of others is nobody else's.
        credits.give(2, 0, 3 * BLOCK, || free(266)).unwrap();
        assert_eq!(credits.lend(1, 7 * BLOCK, || free(266)), Some(7 * BLOCK));
        assert_eq!(credits.give(2, 1, 1, || free(266)), None);
        let lent = lendable * BLOCK;
        assert_eq!(credits.lend(1, lent + 64, || free(266)), None);
        assert_eq!(credits.lend(1, lent, || free(266)), Some(lent));
        assert_eq!(credits.lend(1, 64, || free(266)), None);
        credits.release_credit(1, lent);
        assert_eq!(credits.lend(1, 64, || free(266)), Some(64));
        // The page has moved up and fills a block.
        credits.close(1);
        credits.close(2);
        assert_eq!(credits.lend(1, lent, || free(255)), None);
        assert_eq!(
            credits.lend(1, lent - BLOCK, || free(255)),
            Some(lent - BLOCK)
        );
    }

    #[test]
    fn the_fixed_reserve_and_that_of_orphans_are_never_given_out() {
        let credits = SpaceCredits::default();
        assert_eq!(credits.give(1, 1, 1, || free(256)), None);
        assert_eq!(credits.give(1, 0, 0, || free(256)), Some(0));
        let inodes = FreeSpace {
            inodes: 32 * 44,
            ..free(300)
        };
        assert_eq!(credits.give(1, 1, 1, || inodes), None);
    }
}
