//! Room: a full volume is found out at the call and never at digest.
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
//! matters only when room is short: then no grants are made, and a client that
//! hears [`Reply::NoSpace`] returns its idle ones and asks again.
//!
//! [`Reply::NoSpace`]: shale_proto::Reply::NoSpace

use parking_lot::Mutex;
use shale_format::limits::BLOCK_BYTES;
use shale_sys::mutants;
use shale_volume::{Space as Blocks, Volume};
use std::collections::HashMap;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Room is given in multiples of this many bytes, as records count it.
const UNIT: u64 = 64;
/// Room that every inode keeps for its entry among the orphans, so that its last name can
/// go on a full volume: an entry of 24 bytes in a tree whose leaves are at least a quarter
/// full, and that tree's inner nodes. A client sets it aside with the inode.
const ORPHAN_BYTES: u64 = 128;
/// From here on, in thousandths of all room, whoever is given more is slowed.
const PAUSE_FROM: u128 = 600;
/// With so many more the pause is twice as long.
const PAUSE_DOUBLE: u128 = 40;
/// Pause at [`PAUSE_FROM`] for [`PAUSE_UNIT_BYTES`] of room: some 100 overwrites.
const PAUSE_UNIT_NS: u128 = 20_000;
const PAUSE_UNIT_BYTES: u128 = 1 << 20;
/// Longest pause for one piece of room.
const PAUSE_MAX_NS: u64 = 5_000_000;
/// Credit under this number is for logs that recovery could not digest.
pub(crate) const LEFT_LOGS: u32 = 0;

/// Bytes kept back for what a digest needs for a moment.
fn fixed_reserve(blocks: &Blocks) -> u64 {
    blocks.reserved_fixed * BLOCK
}

/// What there is to give room from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply {
    pub(crate) blocks: Blocks,
    pub(crate) inodes: u64,
}

impl Supply {
    /// As of now.
    pub(crate) fn of(volume: &Volume) -> Supply {
        Supply {
            blocks: volume.space(),
            inodes: volume.inodes(),
        }
    }

    /// The same with what will be free as soon as no reader can hold it, `idle` blocks among it that no file needed.
    pub(crate) fn released(self, idle: u64) -> Supply {
        let blocks = Blocks {
            free: self.blocks.free + self.blocks.pending + idle,
            ..self.blocks
        };
        Supply { blocks, ..self }
    }

    /// Bytes kept back: the fixed reserve, and what every inode keeps for its entry among the orphans.
    pub(crate) fn kept(&self) -> u64 {
        fixed_reserve(&self.blocks) + self.inodes * ORPHAN_BYTES
    }

    /// Bytes that could be given out if none were.
    pub(crate) fn whole(&self) -> u64 {
        self.available(0)
    }

    /// Bytes that could be given out if `outstanding` are.
    fn available(&self, outstanding: u64) -> u64 {
        (self.blocks.free * BLOCK)
            .saturating_sub(self.kept())
            .saturating_sub(outstanding)
    }
}

/// Credit of all clients.
#[derive(Default)]
pub(crate) struct Credits {
    book: Mutex<HashMap<u32, u64>>,
}

impl Credits {
    /// Bytes outstanding in all.
    pub(crate) fn outstanding(&self) -> u64 {
        self.book.lock().values().sum()
    }

    /// How long whoever was given `bytes` now has to pause, in nanoseconds, while logs wait that give room back when
    /// they are digested; 0: not. As LibFS does where a log fills: from 60% in use on, and for twice as
    /// long with each 4% more, so that a writer settles at the speed of digest before it is stopped.
    pub(crate) fn pause_ns(&self, supply: &Supply, bytes: u64) -> u64 {
        let (whole, outstanding) = (supply.whole().max(1), self.outstanding());
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
    pub(crate) fn of(&self, client: u32) -> u64 {
        self.book.lock().get(&client).copied().unwrap_or(0)
    }

    /// Bytes that could be given out now.
    pub(crate) fn available(&self, supply: &Supply) -> u64 {
        supply.available(self.outstanding())
    }

    /// Takes blocks out of the supply with `f`, which is told the bytes that could be given
    /// out: nobody is given room meanwhile.
    pub(crate) fn with_available<T>(
        &self,
        supply: impl FnOnce() -> Supply,
        f: impl FnOnce(u64) -> T,
    ) -> T {
        let book = self.book.lock();
        f(supply().available(book.values().sum()))
    }

    /// Gives between `least` and `wanted` bytes if they are there. A client alone with
    /// plenty gets all it wants; near the end pieces get smaller, so that one client's
    /// idle credit is not what another lacks. Whole units only: what a client could not
    /// count would be lost to all.
    ///
    /// `supply` is asked for under the lock: it must not be older than the last
    /// [`Self::settle`].
    pub(crate) fn give(
        &self,
        client: u32,
        wanted: u64,
        least: u64,
        supply: impl FnOnce() -> Supply,
    ) -> Option<u64> {
        let mut book = self.book.lock();
        let available = supply().available(book.values().sum());
        if available < least {
            return None;
        }
        let bytes = (wanted.min(available / 4) / UNIT * UNIT).max(least);
        if !mutants::is_on("room-forgotten") {
            *book.entry(client).or_default() += bytes;
        }
        Some(bytes)
    }

    /// Sets aside what the records of a log need that recovery could not digest.
    pub(crate) fn hold(&self, bytes: u64) {
        *self.book.lock().entry(LEFT_LOGS).or_default() += bytes;
    }

    /// Takes back credit: unused, or of records that are digested now.
    pub(crate) fn settle(&self, client: u32, bytes: u64) {
        let mut book = self.book.lock();
        if let Some(credit) = book.get_mut(&client) {
            *credit = credit.saturating_sub(bytes);
        }
    }

    /// Takes back everything of a client whose log is digested to its end.
    pub(crate) fn close(&self, client: u32) {
        self.book.lock().remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supply(free: u64) -> Supply {
        let blocks = Blocks {
            total: 10_000,
            free,
            reserved_fixed: 256,
            ..Blocks::default()
        };
        Supply { blocks, inodes: 0 }
    }

    #[test]
    fn credit_never_exceeds_what_is_there() {
        let credits = Credits::default();
        let room = credits.available(&supply(1256));
        assert_eq!(room, 1000 * BLOCK);
        assert_eq!(
            credits.give(1, 1 << 40, 1, || supply(1256)),
            Some(250 * BLOCK)
        );
        assert_eq!(
            credits.give(2, 100, 700 * BLOCK, || supply(1256)),
            Some(700 * BLOCK)
        );
        assert_eq!(credits.give(3, 1 << 40, 51 * BLOCK, || supply(1256)), None);
        assert_eq!(credits.available(&supply(1256)), 50 * BLOCK);
        credits.settle(2, 100 * BLOCK);
        credits.settle(2, u64::MAX);
        assert_eq!((credits.of(2), credits.outstanding()), (0, 250 * BLOCK));
        credits.close(1);
        assert_eq!(credits.outstanding(), 0);
        credits.hold(5 * BLOCK);
        assert_eq!(credits.available(&supply(1256)), 995 * BLOCK);
    }

    #[test]
    fn who_is_given_the_last_of_the_room_pauses() {
        let credits = Credits::default();
        let at = |percent: u64| {
            credits.close(1);
            let bytes = 1000 * BLOCK * percent / 100;
            credits.give(1, 0, bytes, || supply(1256)).unwrap();
            credits.pause_ns(&supply(1256), 1 << 20)
        };
        assert_eq!((at(0), at(60)), (0, 0));
        assert!((61..=100).all(|p| at(p - 1) < at(p) || at(p) == PAUSE_MAX_NS));
        assert!((20_000..40_000).contains(&at(63)));
        assert_eq!(at(100), PAUSE_MAX_NS);
        assert_eq!(credits.pause_ns(&supply(0), u64::MAX), PAUSE_MAX_NS);
    }

    #[test]
    fn room_is_given_in_whole_units() {
        let credits = Credits::default();
        let mut odd = supply(257);
        odd.inodes = 1;
        assert_eq!(credits.available(&odd), BLOCK - ORPHAN_BYTES);
        for _ in 0..10 {
            credits.give(1, 1 << 40, 64, || odd);
            assert!(credits.of(1).is_multiple_of(UNIT));
        }
    }

    #[test]
    fn the_fixed_reserve_and_that_of_orphans_are_never_given_out() {
        let credits = Credits::default();
        assert_eq!(credits.give(1, 1, 1, || supply(256)), None);
        assert_eq!(credits.give(1, 0, 0, || supply(256)), Some(0));
        let inodes = Supply {
            inodes: 32 * 44,
            ..supply(300)
        };
        assert_eq!(credits.give(1, 1, 1, || inodes), None);
    }
}
