//! What is read often below NVM comes back to it (DESIGN §11, Strata §3.3).
//!
//! Clients note the pieces that they read on their control page; here they are taken from there
//! ([`LOOK_EVERY`]). A piece that is read again after a pause counts more than one that goes on
//! being read: who reads a large file once, however slowly, leaves it where it is.
//!
//! Of the inode file blocks are counted instead of pieces, and only those below NVM are counted.
//!
//! Regions are promoted as long as NVM is below the mark at which moving down ends. Beyond it something is demoted for what
//! is promoted, so a region is promoted only if it comes back at least twice in the time for which the coldest one in NVM has
//! not been used: had it been in NVM all the time it would still be there. Both are counted in uses of
//! pieces ([`Recency`](crate::recency::Recency)). So what is read evenly stays where it is.
//!
//! [`LOOK_EVERY`]: super::background::LOOK_EVERY

use super::Tiering;
use crate::host::ReadingClient;
use crate::move_request::{BATCH_BLOCKS, MoveRequest};
use crate::recency::PIECE_BLOCKS;
use crate::service::DOWN_PERCENT;
use shale_format::{Ino, TierId};
use shale_proto::shared_pages::client_page::Read;
use shale_sys::mutants;
use shale_volume::Result;
use std::collections::HashMap;

/// Times that a piece comes back while the coldest in NVM is not used, at least, to take its place.
const TIMES: u64 = 2;

impl Tiering {
    /// Takes from all clients what they say that they have read.
    pub(super) fn take_reports(&self) {
        let now = self.recency.uses();
        self.promotions.lock().begin(now);
        for client in self.clients.all() {
            self.take_report(&*client);
        }
    }

    /// Takes from a client what it says that it has read. Of files that its user may not read it is not believed: it would
    /// keep or bring them into NVM, or crowd others out, who are not asked. Who lies about what it may read has moved what
    /// reading would move.
    pub fn take_report(&self, client: &dyn ReadingClient) {
        if !self.is_tiered() {
            return;
        }
        self.counts.direct(client.take_direct());
        let mut reads = client.take_reads();
        let mut believed = HashMap::new();
        reads.retain(|read| {
            let ino = Ino(read.ino);
            let asked = || ino == Ino::NONE || ino.is_user() && self.may_have_read(client, ino);
            *believed.entry(read.ino).or_insert_with(asked)
        });
        let mut promotions = self.promotions.lock();
        for Read { ino, piece, below } in reads {
            self.recency.touch_pieces(ino, piece..=piece);
            if below {
                let now = self.recency.uses();
                promotions.note((ino, piece), now);
            }
        }
    }

    /// Whether a client can have read an inode, as far as its mode and the leases say: a descriptor that was opened before a
    /// `chmod` is no matter, since nothing but a hint is lost.
    fn may_have_read(&self, client: &dyn ReadingClient, ino: Ino) -> bool {
        if client.is_trusted() || mutants::is_on("reads-unchecked") {
            return true;
        }
        let _reader = self.grace.read();
        let view = self.volume.view();
        let found = view.inode(ino);
        found.is_ok_and(|inode| inode.is_some_and(|i| client.may_read(&view, &i)))
    }

    /// Moves what is read often up, as far as NVM has space, or holds what is used less.
    pub(super) fn promote(&self) -> Result<()> {
        let waits = |tiering: &Self| tiering.promotions.lock().any_ready();
        if !waits(self) || !self.may_move() {
            return Ok(());
        }
        let low = self.migrate_percent().saturating_sub(DOWN_PERCENT);
        let (used, low) = self.used_and_mark(low);
        let crowded = used + PIECE_BLOCKS > low;
        if crowded {
            let age = self.coldest_age()?;
            self.promotions.lock().keep_hotter(age / TIMES);
            if waits(self) && self.available_in_nvm() < PIECE_BLOCKS {
                // Once for each look: data that is all hot does not ping-pong any faster.
                self.move_down(BATCH_BLOCKS, false)?;
                self.keep_to_limit();
            }
        }
        let mut left = if crowded { u64::MAX } else { low - used };
        while self.may_move() {
            let space = self.available_in_nvm().min(BATCH_BLOCKS).min(left);
            let wanted = self.next_to_promote(space)?;
            if wanted.is_empty() {
                break;
            }
            let guard = self.lock_mover_for(false);
            let moved = self.move_up(&wanted)?;
            drop(guard);
            if moved == 0 {
                break;
            }
            left = left.saturating_sub(moved);
            self.keep_to_limit();
        }
        Ok(())
    }

    /// Whole regions that are promoted next, up to `space` blocks.
    fn next_to_promote(&self, space: u64) -> Result<Vec<MoveRequest>> {
        let (mut wanted, mut sum) = (Vec::new(), 0);
        let below: fn(TierId) -> bool = |tier| tier != TierId::Nvm;
        loop {
            let next = self.promotions.lock().next();
            let Some(next) = next else {
                return Ok(wanted);
            };
            let before = wanted.len();
            let blocks = self.data_of(next.key, (below, true), &mut wanted)?;
            if sum + blocks > space {
                wanted.truncate(before);
                self.promotions.lock().put_back(next);
                return Ok(wanted);
            }
            sum += blocks;
        }
    }
}
