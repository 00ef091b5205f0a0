//! Space that clients reserve for records still to come, and what `statfs` tells of it.

use crate::tiering::{SPACE_WAIT, Tiering};
use shale_clients::client::Client;
use shale_clients::clients::Clients;
use shale_clients::space_credits::{FreeSpace, SpaceCredits};
use shale_coherence::digest_queue::Queue;
use shale_coherence::reclaimer::Reclaimer;
use shale_format::limits::BLOCK_BYTES;
use shale_proto::Reply;
use shale_proto::message::Space;
use shale_sys::Clock;
use shale_volume::{Volume, VolumeError};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of space counted for each inode that could still be made.
const INODE_GROWTH_BYTES: u64 = 1024;

/// Gives clients space, and has some made where there is none.
pub(crate) struct SpaceReservations {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) credits: Arc<SpaceCredits>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) tiering: Arc<Tiering>,
}

impl SpaceReservations {
    /// Space for records that are still to come: from what is there, or after everything
    /// that waits was digested and what that freed can be given out.
    pub(crate) fn reserve(&self, client: &Client, wanted: u64, least: u64) -> Reply {
        let give = || {
            self.credits
                .give(client.id, wanted, least, || FreeSpace::of(&self.volume))
                .map(|bytes| Reply::Credit { bytes })
        };
        if let Some(space) = give() {
            self.digest_ahead();
            if let Reply::Credit { bytes } = space
                && client.backlog() > 0
            {
                let pause_ns = self.credits.pause_ns(&FreeSpace::of(&self.volume), bytes);
                client.hold_back(self.clock.monotonic_ns(), pause_ns);
            }
            return space;
        }
        let none = VolumeError::NoSpace {
            wanted: least,
            free: 0,
        };
        let take = || {
            self.tiering
                .take_after_reclaim(least, give)
                .ok_or(none.clone())
        };
        self.tiering
            .once_others_went(SPACE_WAIT, take)
            .unwrap_or(Reply::NoSpace)
    }

    /// Space for a page of a mapping, which cannot be refused any more: the last that there is.
    pub(crate) fn lend(&self, client: &Client, bytes: u64) -> Reply {
        let lend = || {
            let free = || FreeSpace::of(&self.volume);
            let bytes = self.credits.lend(client.id, bytes, free)?;
            Some(Reply::Credit { bytes })
        };
        let lent = lend().or_else(|| self.tiering.take_after_reclaim(bytes, lend));
        lent.unwrap_or(Reply::NoSpace)
    }

    /// Begins to digest when a good part of the space is given out: a client that asks when it is gone would have to
    /// wait. As early as for a log that fills.
    fn digest_ahead(&self) {
        let available = self.credits.available(&FreeSpace::of(&self.volume));
        if available / 2 < self.credits.outstanding() {
            for client in self.clients.snapshot() {
                if client.backlog() > 0 && client.served() {
                    self.queue.push(&client);
                }
            }
        }
    }

    /// Space as `statfs` tells it: free is what could be reserved, by a client that
    /// waits until what was freed is released too.
    pub(crate) fn statfs(&self) -> Space {
        let supply = { &self.reclaimer }
            .with_deferred(|deferred| FreeSpace::once_released(&self.volume, deferred));
        let blocks = &supply.blocks;
        let available = self.credits.available(&supply);
        let tiers = self.volume.lower_tiers();
        let below = tiers.into_iter().filter_map(|t| self.volume.lower_space(t));
        let (all, empty) = below.fold((0, 0), |(all, empty), s| {
            let usable = s.total.saturating_sub(s.reserved);
            (all + usable, empty + usable.saturating_sub(s.live))
        });
        Space {
            total: blocks.total.saturating_sub(blocks.reserved_fixed) + all,
            free: available / BLOCK + empty,
            spare_bytes: available % BLOCK,
            inodes_used: supply.inodes,
            inodes_free: available / INODE_GROWTH_BYTES,
        }
    }
}
