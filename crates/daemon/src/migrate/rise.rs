//! What is read often below NVM comes back to it (DESIGN §11, Strata §3.3).
//!
//! Clients note the pieces that they read on their control page; here they are taken from there
//! ([`LOOK_EVERY`]). A piece that is read again after a pause counts more than one that goes on
//! being read: who reads a large file once, however slowly, leaves it where it is.
//!
//! Pieces rise as long as NVM is below the mark at which data moves down. Beyond it the coldest
//! makes room first, so what rises and what is written share NVM by when they were used last.
//!
//! [`LOOK_EVERY`]: super::LOOK_EVERY

use super::mover::{BATCH_BLOCKS, Wanted};
use super::policy::PIECE_BLOCKS;
use crate::client::Client;
use crate::shared::Shared;
use shale_format::{Ino, TierId};
use shale_proto::control::client_page::Read;
use shale_volume::Result;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Looks in which a piece was read and had not been in the look before count this much, others 1.
const VISIT: u32 = 4;
/// A piece with this much rises.
const ENOUGH: u32 = 3 * VISIT;
/// After this many looks (about 13 s) everything counts half.
const HALVED_AFTER: u64 = 64;
/// Pieces that are remembered.
const PIECES_MAX: usize = 1 << 16;
/// Pieces that wait for room; those that came first are forgotten.
const READY_MAX: usize = 1 << 12;

/// How often a piece was read below NVM.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    count: u32,
    last_look: u64,
}

/// Pieces below NVM that are read.
#[derive(Default)]
pub(super) struct Rising {
    look: u64,
    pieces: HashMap<(u64, u64), Reads>,
    /// Those that were read often enough, in that order.
    ready: VecDeque<(u64, u64)>,
    /// The same.
    waiting: HashSet<(u64, u64)>,
}

impl Rising {
    /// A look has begun.
    fn begin(&mut self) {
        self.look += 1;
        if self.look.is_multiple_of(HALVED_AFTER) {
            self.pieces.retain(|_, reads| {
                reads.count /= 2;
                reads.count > 0
            });
        }
    }

    /// A piece was read since the look before.
    fn note(&mut self, key: (u64, u64)) {
        if self.pieces.len() >= PIECES_MAX && !self.pieces.contains_key(&key) {
            return;
        }
        let look = self.look;
        let reads = self.pieces.entry(key).or_default();
        if reads.last_look == look {
            return;
        }
        let goes_on = reads.last_look + 1 == look && reads.count > 0;
        reads.count += if goes_on { 1 } else { VISIT };
        reads.last_look = look;
        if reads.count >= ENOUGH {
            self.pieces.remove(&key);
            if self.waiting.insert(key) {
                self.ready.push_back(key);
            }
            if self.ready.len() > READY_MAX {
                self.next();
            }
        }
    }

    fn next(&mut self) -> Option<(u64, u64)> {
        let next = self.ready.pop_front()?;
        self.waiting.remove(&next);
        Some(next)
    }

    /// It does not fit yet.
    fn put_back(&mut self, key: (u64, u64)) {
        if self.waiting.insert(key) {
            self.ready.push_front(key);
        }
    }
}

impl Shared {
    /// Takes from all clients what they say that they have read.
    pub(super) fn take_reports(&self) {
        self.migration.rising.lock().begin();
        for client in self.clients() {
            self.take_report(&client);
        }
    }

    /// Takes from a client what it says that it has read. It only has to be harmless: who lies has
    /// data moved in vain.
    pub(crate) fn take_report(&self, client: &Client) {
        if !self.is_tiered() {
            return;
        }
        let mut rising = self.migration.rising.lock();
        for Read { ino, piece, below } in client.client_page.take_reads() {
            if !Ino(ino).is_user() {
                continue;
            }
            self.migration.recency.touch_pieces(ino, piece..=piece);
            if below {
                rising.note((ino, piece));
            }
        }
    }

    /// Moves what is read often up, as far as NVM has room.
    pub(super) fn rise(self: &Arc<Self>) -> Result<()> {
        let waits = !self.migration.rising.lock().ready.is_empty();
        if waits && self.may_move() && self.room_above() < PIECE_BLOCKS {
            // Once for each look: data that is all hot does not go to and fro any faster.
            let moved = self.move_down(BATCH_BLOCKS)?;
            self.keep_to_limit(moved);
        }
        while self.may_move() {
            let wanted = self.next_to_rise(self.room_above().min(BATCH_BLOCKS))?;
            if wanted.is_empty() {
                break;
            }
            let turn = self.migration.turn();
            let moved = self.move_up(&wanted)?;
            drop(turn);
            if moved == 0 {
                break;
            }
            self.keep_to_limit(moved);
        }
        Ok(())
    }

    /// Whole pieces that rise next, up to `room` blocks.
    fn next_to_rise(&self, room: u64) -> Result<Vec<Wanted>> {
        let (mut wanted, mut sum) = (Vec::new(), 0);
        let below: fn(TierId) -> bool = |tier| tier != TierId::Nvm;
        loop {
            let next = self.migration.rising.lock().next();
            let Some(key) = next else {
                return Ok(wanted);
            };
            let before = wanted.len();
            let blocks = self.data_of(key, (below, true), &mut wanted)?;
            if sum + blocks > room {
                wanted.truncate(before);
                self.migration.rising.lock().put_back(key);
                return Ok(wanted);
            }
            sum += blocks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(looks: impl IntoIterator<Item = u64>) -> bool {
        let mut rising = Rising::default();
        for look in looks {
            while rising.look < look {
                rising.begin();
            }
            rising.note((7, 3));
        }
        rising.ready.contains(&(7, 3))
    }

    #[test]
    fn who_comes_back_rises_and_who_reads_once_does_not() {
        assert!(after([1, 10, 20]));
        assert!(after([1, 2, 3, 10, 11, 12, 20]));
        assert!(!after([1, 10]));
        assert!(!after([1, 2, 3, 4, 5]));
        assert!(!after([1, 1, 1]));
        assert!(!after([1, 100, 200, 300, 400]), "too long ago");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut rising = Rising::default();
        rising.begin();
        for n in 0..2 * PIECES_MAX as u64 {
            rising.note((n, 0));
        }
        assert_eq!(rising.pieces.len(), PIECES_MAX);
        for look in 0..6 * READY_MAX as u64 {
            rising.begin();
            for n in 0..4 {
                // Each comes to a third visit after two pauses, and some come again.
                rising.note((look / 6 * 4 + n, 0));
            }
            rising.begin();
        }
        assert!(rising.ready.len() <= READY_MAX);
        assert_eq!(rising.ready.len(), rising.waiting.len());
        assert!(rising.ready.len() > READY_MAX / 2, "{}", rising.ready.len());
    }
}
