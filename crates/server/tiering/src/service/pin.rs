//! Pinned files: what they hold stays in their tier, or comes to it.
//!
//! That a file is pinned stands in its inode, so it outlives everything. New files of a pinned directory
//! inherit it. A pinned file is written to NVM like any other; pinned to a slower tier it moves
//! there when NVM has to free space, and no further. Only emptying a device moves it elsewhere.

use super::Tiering;
use crate::move_request::{BLOCK, MoveRequest, parts};
use serde::{Deserialize, Serialize};
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Inode, Result, VolumeError};
use std::ops::ControlFlow;

/// Blocks of one file that are looked at together.
const LOOK_EXTENTS: usize = 4096;

/// What pinning did, or would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinReport {
    /// Files and directories.
    pub inodes: u64,
    /// Bytes that are to come to the tier.
    pub elsewhere_bytes: u64,
    /// Bytes that the tier has space for.
    pub available_bytes: u64,
    /// Bytes that came to it.
    pub moved_bytes: u64,
}

impl Tiering {
    /// What pinning these inodes to a tier would move, and what there is space for.
    pub fn look_at_pins(&self, inos: &[u64], tier: Option<TierId>) -> Result<PinReport> {
        let mut report = PinReport {
            inodes: inos.len() as u64,
            ..PinReport::default()
        };
        let Some(tier) = tier else {
            return Ok(report);
        };
        if tier != TierId::Nvm && !self.volume.lower_tiers().contains(&tier) {
            let why = format!("the volume has no tier {tier:?}").to_lowercase();
            return Err(VolumeError::Lower(why));
        }
        for &ino in inos {
            let all = self.elsewhere(ino, tier, usize::MAX)?;
            report.elsewhere_bytes += all.iter().map(|w| w.blocks * BLOCK).sum::<u64>();
        }
        report.available_bytes = self.available_in(tier) * BLOCK;
        Ok(report)
    }

    /// Pins inodes to a tier, durably, and brings what they hold there; `None`: not any more.
    pub fn pin(&self, inos: &[u64], tier: Option<TierId>) -> Result<PinReport> {
        let guard = self.lock_mover();
        let mut report = self.look_at_pins(inos, tier)?;
        if report.elsewhere_bytes > report.available_bytes {
            let lack = report.elsewhere_bytes - report.available_bytes;
            let why = format!(
                "{} bytes are to come there, and there is space for {}: {lack} bytes are missing",
                report.elsewhere_bytes, report.available_bytes
            );
            return Err(VolumeError::Lower(why));
        }
        self.digester
            .between_chunks(|| self.note_pins(inos, tier))?;
        drop(guard);
        let Some(tier) = tier else {
            return Ok(report);
        };
        for &ino in inos {
            report.moved_bytes += self.bring(ino, tier)? * BLOCK;
        }
        Ok(report)
    }

    fn note_pins(&self, inos: &[u64], tier: Option<TierId>) -> Result<()> {
        let mut txn = self.volume.begin();
        for &ino in inos {
            let gone = VolumeError::BadIno(Ino(ino));
            let mut inode: Inode = txn.inode(Ino(ino))?.ok_or(gone)?;
            inode.set_pin(tier);
            txn.put_inode(&inode)?;
        }
        let done = txn.commit()?;
        self.clients.publish(done.txid);
        Ok(())
    }

    /// Brings what a file holds to a tier; who waits for space gets the lock in between. What is
    /// written meanwhile comes later. Gives the blocks.
    fn bring(&self, ino: u64, tier: TierId) -> Result<u64> {
        let all = self.elsewhere(ino, tier, usize::MAX)?;
        let all: u64 = all.iter().map(|w| w.blocks).sum();
        let mut sum = 0;
        while sum < all {
            let before = sum;
            for part in parts(self.elsewhere(ino, tier, LOOK_EXTENTS)?) {
                if self.stopped() {
                    return Ok(sum);
                }
                let _guard = self.lock_mover();
                sum += self.move_to(&part, tier)?;
            }
            if sum == before {
                break;
            }
        }
        Ok(sum)
    }

    /// What a file holds in other tiers than this one, `most` extents of it.
    fn elsewhere(&self, ino: u64, tier: TierId, most: usize) -> Result<Vec<MoveRequest>> {
        let _reader = self.grace.read();
        let view = self.volume.view();
        let mut wanted = Vec::new();
        let Some(inode) = view.inode(Ino(ino))?.filter(Inode::is_file) else {
            return Ok(wanted);
        };
        view.extents(&inode, FileBlock(0), &mut |e| {
            let from = BlockAddr::from_raw(e.addr);
            if from.tier() != Some(tier) {
                wanted.push(MoveRequest {
                    ino,
                    at: e.file_block,
                    from,
                    blocks: e.len.into(),
                    hot: false,
                    unwritten: e.is_unwritten(),
                    pin: Some(tier),
                    leaf: false,
                });
            }
            match wanted.len() < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(wanted)
    }
}
