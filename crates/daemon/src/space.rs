//! Room: a full volume is found out at the call and never at digest.
//!
//! A client's records each carry the net growth of the volume that they may cause.
//! The client asks for *credit* before and spends it as it appends; digest takes what
//! the digested records carried out of the client's credit. Hence at any time
//!
//! > available = free − fixed reserve − Σ credit
//!
//! and every record that was acknowledged can be digested. The fixed reserve is for
//! copy-on-write: blocks that a digest needs for a moment.
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
use shale_volume::Space as Blocks;
use std::collections::HashMap;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes kept back for transient copies: 256 blocks or 1/64 of the tier, whichever is more.
pub(crate) fn fixed_reserve(blocks: &Blocks) -> u64 {
    (blocks.total / 64).max(256).max(blocks.reserved_fixed) * BLOCK
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

    /// Credit of one client.
    pub(crate) fn of(&self, client: u32) -> u64 {
        self.book.lock().get(&client).copied().unwrap_or(0)
    }

    /// Bytes that could be given out now.
    pub(crate) fn available(&self, blocks: &Blocks) -> u64 {
        available(blocks, self.outstanding())
    }

    /// Gives between `least` and `wanted` bytes if they are there. A client alone with
    /// plenty gets all it wants; near the end pieces get smaller, so that one client's
    /// idle credit is not what another lacks.
    ///
    /// `blocks` is asked for under the lock: it must not be older than the last
    /// [`Self::settle`].
    pub(crate) fn give(
        &self,
        client: u32,
        wanted: u64,
        least: u64,
        blocks: impl FnOnce() -> Blocks,
    ) -> Option<u64> {
        let mut book = self.book.lock();
        let available = available(&blocks(), book.values().sum());
        if available < least {
            return None;
        }
        let bytes = wanted.min(available / 4).max(least);
        *book.entry(client).or_default() += bytes;
        Some(bytes)
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

fn available(blocks: &Blocks, outstanding: u64) -> u64 {
    (blocks.free * BLOCK)
        .saturating_sub(fixed_reserve(blocks))
        .saturating_sub(outstanding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(free: u64) -> Blocks {
        Blocks {
            total: 10_000,
            free,
            ..Blocks::default()
        }
    }

    #[test]
    fn credit_never_exceeds_what_is_there() {
        let credits = Credits::default();
        let room = credits.available(&blocks(1256));
        assert_eq!(room, 1000 * BLOCK);
        assert_eq!(
            credits.give(1, 1 << 40, 1, || blocks(1256)),
            Some(250 * BLOCK)
        );
        assert_eq!(
            credits.give(2, 100, 700 * BLOCK, || blocks(1256)),
            Some(700 * BLOCK)
        );
        assert_eq!(credits.give(3, 1 << 40, 51 * BLOCK, || blocks(1256)), None);
        assert_eq!(credits.available(&blocks(1256)), 50 * BLOCK);
        credits.settle(2, 100 * BLOCK);
        credits.settle(2, u64::MAX);
        assert_eq!((credits.of(2), credits.outstanding()), (0, 250 * BLOCK));
        credits.close(1);
        assert_eq!(credits.outstanding(), 0);
    }

    #[test]
    fn the_fixed_reserve_is_never_given_out() {
        let credits = Credits::default();
        assert_eq!(credits.give(1, 1, 1, || blocks(256)), None);
        assert_eq!(credits.give(1, 0, 0, || blocks(256)), Some(0));
        let large = Blocks {
            total: 1 << 20,
            free: 1 << 20,
            ..Blocks::default()
        };
        assert_eq!(fixed_reserve(&large), (1 << 14) * BLOCK);
    }
}
