//! Emptying devices that are to be removed, and zones that are worn out; moving up.

use super::Tiering;
use crate::move_request::{BATCH_BLOCKS, BLOCK, MoveRequest, Target, no_space, parts};
use shale_format::TierId;
use shale_volume::{Result, Run, VolumeError, ZoneInfo};
use std::time::Duration;

/// About so many blocks are looked for at once.
const LOOK_BLOCKS: u64 = BATCH_BLOCKS * 16;
/// Wait before a device that could not be emptied is tried again.
const STUCK_WAIT: Duration = Duration::from_secs(5);
/// The same for a device with zones that are worn out: what cannot be read may stay so for ever.
const WORN_WAIT: Duration = Duration::from_secs(60);
/// Part of the space in NVM that is left to others when blocks come up.
const LEFT_PART: u64 = 16;

impl Tiering {
    /// Why a device cannot be emptied, if it cannot.
    pub fn stuck(&self, uuid: &[u8; 16]) -> Option<String> {
        self.stuck.why(uuid)
    }

    /// It is tried again at once.
    pub fn unstick(&self, uuid: &[u8; 16]) {
        self.stuck.forget(uuid);
    }

    /// Bytes of NVM that could be given out now.
    pub(crate) fn available_now(&self) -> u64 {
        self.space.available_once_released()
    }

    /// Blocks of NVM that may be taken from below: not so many that they would soon go back.
    pub(super) fn available_in_nvm(&self) -> u64 {
        let (used, mark) = self.used_and_mark(self.migrate_percent());
        let available = self.available_now() / BLOCK;
        (available - available / LEFT_PART).min(mark.saturating_sub(used))
    }

    /// Blocks that the volume has space for outside of one device.
    pub fn available_elsewhere(&self, tier: TierId, device: usize) -> u64 {
        let below = [TierId::Ssd, TierId::Hdd].map(|t| {
            let without = (t == tier).then_some(device);
            self.volume.lower_possible(t, without)
        });
        below.iter().sum::<u64>() + self.available_in_nvm()
    }

    /// Moves on what a device holds that is being emptied, or what its zones that are worn out hold. Gives the
    /// blocks moved; 0: there is nothing to do, or nothing can be done now.
    pub fn empty_devices(&self) -> u64 {
        for tier in [TierId::Ssd, TierId::Hdd] {
            let devices = self.volume.lower_device_infos(tier);
            for (n, info) in devices.iter().enumerate() {
                let uuid = info.place.uuid;
                let (left, wait, place) = match info.is_emptying() {
                    true => (info.live, STUCK_WAIT, "on it"),
                    false => (info.live_worn, WORN_WAIT, "in worn out zones of it"),
                };
                if left == 0 || !self.stuck.may_try(&uuid, wait) {
                    continue;
                }
                let zones = self.zones_to_empty(tier, n, info.is_emptying());
                match self.empty_some(tier, &zones) {
                    Ok(0) => {}
                    Ok(blocks) => {
                        self.stuck.forget(&uuid);
                        return blocks;
                    }
                    Err(e) => {
                        let lack = left * BLOCK;
                        let why = match e {
                            VolumeError::NoSpace { .. } => format!(
                                "no space for {lack} bytes that are left {place}: add a device or \
                                 remove files"
                            ),
                            other => other.to_string(),
                        };
                        self.stuck.note(uuid, why);
                    }
                }
            }
        }
        0
    }

    /// Moves what zones hold: within their tier, else down, else up.
    fn empty_some(&self, tier: TierId, zones: &[ZoneInfo]) -> Result<u64> {
        let live: u64 = zones.iter().map(|z| z.live).sum();
        if live == 0 {
            return Ok(0);
        }
        let wanted = self.in_zones(tier, zones)?;
        if wanted.is_empty() {
            // What is marked live belongs to no file: fsck knows more.
            return Err(VolumeError::Lower(
                "blocks are in use that belong to no file: fsck".to_owned(),
            ));
        }
        let unreadable = self.counts().unreadable_blocks;
        let mut moved = 0;
        // A client that waits for space in NVM gets the lock in between.
        for part in parts(wanted) {
            if !self.may_move() {
                self.wake();
                return Ok(moved);
            }
            let guard = self.lock_mover_for(false);
            moved += self.move_anywhere(tier, &part)?;
            drop(guard);
            self.keep_to_limit();
        }
        if moved == 0 && self.counts().unreadable_blocks > unreadable {
            let why = "what is left on it cannot be read (status and scrub name it): restore or remove \
                       those files";
            return Err(VolumeError::Lower(why.to_owned()));
        }
        match moved {
            0 => Err(no_space(live)),
            moved => Ok(moved),
        }
    }

    /// Moves blocks within their tier, else down, else up. The caller holds the migration lock.
    fn move_anywhere(&self, tier: TierId, wanted: &[MoveRequest]) -> Result<u64> {
        let tiers = self.volume.lower_tiers();
        let same = tiers.iter().filter(|&&t| t == tier);
        let slower = tiers.iter().filter(|&&t| t > tier);
        let faster = tiers.iter().filter(|&&t| t < tier);
        for &to in same.chain(slower).chain(faster) {
            let moved = self.move_to(wanted, to)?;
            if moved > 0 {
                return Ok(moved);
            }
        }
        self.move_up(wanted)
    }

    /// Zones of a device in which something is live, `all` or those that are worn out; not too many at once.
    fn zones_to_empty(&self, tier: TierId, device: usize, all: bool) -> Vec<ZoneInfo> {
        let mut sum = 0;
        let mut zones = self.volume.lower_zones(tier);
        zones.retain(|z| z.place.device == device && z.live > 0 && (all || z.worn));
        let enough = |z: &ZoneInfo| {
            let more = sum < LOOK_BLOCKS;
            sum += z.live;
            more
        };
        zones.into_iter().take_while(enough).collect()
    }

    /// Blocks that the volume has space for in one tier.
    pub(super) fn available_in(&self, tier: TierId) -> u64 {
        match tier {
            TierId::Nvm => self.available_in_nvm(),
            tier => self.volume.lower_possible(tier, None),
        }
    }

    /// Moves blocks from below to NVM, as many as there is space for. Gives the blocks moved. The
    /// caller holds the migration lock.
    pub(super) fn move_up(&self, wanted: &[MoveRequest]) -> Result<u64> {
        let (tier, last) = (TierId::Nvm, false);
        self.move_blocks(wanted, Target { tier, last })
    }

    /// Blocks of NVM for what comes up from below; nobody is given the space meanwhile.
    pub(super) fn allocate_above(&self, blocks: u64) -> Result<Vec<Run>> {
        let mut taken = Ok(Vec::new());
        self.space.with_available(&mut |available| {
            let space = (available - available / LEFT_PART) / BLOCK;
            taken = match blocks <= space {
                true => self.volume.allocate(blocks, None),
                false => Err(VolumeError::NoSpace {
                    wanted: blocks,
                    free: space,
                }),
            };
        });
        taken
    }
}
