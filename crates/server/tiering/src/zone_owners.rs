//! Whose blocks lie in a zone: the inodes that had blocks placed into it since it was erased.
//!
//! Noted when blocks are placed, before anything links them, in memory. What lies in zones since before
//! the start is found by one look through the inodes, when zones are first to be emptied. So a zone's set
//! holds every owner, and some that own nothing there any more. It is checked all the same: where the
//! owners do not have as many blocks in the zones as are live there, all inodes are scanned.
//!
//! Memory: a number for each file and zone that it has blocks in, [`NOTES_MAX`] at most. Beyond that a zone's
//! set is forgotten, and to empty that zone is to look through the inodes.

use parking_lot::Mutex;
use shale_format::TierId;
use shale_volume::{Result, ZoneInfo};
use std::collections::{BTreeSet, HashMap};

/// Numbers that are kept, of all zones together: 17 bytes each at most, 34 MiB.
const NOTES_MAX: usize = 1 << 21;

/// The owners of one zone.
#[derive(Default)]
struct InodesOfZone {
    /// How often the zone was erased when they were noted.
    generation: u32,
    inos: BTreeSet<u64>,
    /// There were too many.
    forgotten: bool,
}

/// The owners of the zones of all tiers, by tier and first block.
struct Sets {
    zones: HashMap<(TierId, u64), InodesOfZone>,
    /// Numbers in all sets.
    notes: usize,
    most: usize,
    /// Tiers of which everything from before the start is known.
    known: [bool; TierId::ALL.len()],
}

/// Whose blocks lie in which zones.
pub(super) struct ZoneOwners(Mutex<Sets>);

impl Default for ZoneOwners {
    fn default() -> Self {
        Self::new(NOTES_MAX)
    }
}

impl ZoneOwners {
    fn new(most: usize) -> Self {
        Self(Mutex::new(Sets {
            zones: HashMap::new(),
            notes: 0,
            most,
            known: [false; TierId::ALL.len()],
        }))
    }

    /// Blocks of an inode are in a zone, or are about to be. `generation` tells the zone's.
    pub(super) fn note(
        &self,
        zone: (TierId, u64),
        ino: u64,
        generation: impl FnOnce() -> Result<u32>,
    ) -> Result<()> {
        let sets = &mut *self.0.lock();
        // Under the lock, so that none is older than the one noted before.
        let generation = generation()?;
        let owners = sets.zones.entry(zone).or_default();
        if owners.generation != generation {
            sets.notes -= owners.inos.len();
            *owners = InodesOfZone {
                generation,
                ..InodesOfZone::default()
            };
        }
        if !owners.forgotten && owners.inos.insert(ino) {
            sets.notes += 1;
        }
        if sets.notes > sets.most {
            sets.notes -= owners.inos.len();
            owners.inos = BTreeSet::new();
            owners.forgotten = true;
        }
        Ok(())
    }

    /// Everything in these zones of a tier is owned by one of these; `None`: that is not known.
    pub(super) fn of(&self, tier: TierId, zones: &[ZoneInfo]) -> Option<BTreeSet<u64>> {
        let sets = self.0.lock();
        if !sets.known[tier as usize] {
            return None;
        }
        let mut all = BTreeSet::new();
        for zone in zones {
            if let Some(owners) = sets.zones.get(&(tier, zone.place.first)) {
                if owners.forgotten {
                    return None;
                }
                all.extend(&owners.inos);
            }
        }
        Some(all)
    }

    /// Whether all of a tier is known.
    pub(super) fn knows(&self, tier: TierId) -> bool {
        self.0.lock().known[tier as usize]
    }

    /// All of a tier is known from now on.
    pub(super) fn set_known(&self, tier: TierId) {
        self.0.lock().known[tier as usize] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TxId;
    use shale_volume::{WriteStream, ZonePlace};

    fn zone(first: u64) -> ZoneInfo {
        let place = ZonePlace {
            zone: first / 64,
            device: 0,
            first,
            blocks: 64,
        };
        ZoneInfo {
            place,
            written: 64,
            live: 1,
            stream: WriteStream::Cold,
            txid: TxId(1),
            open: false,
            worn: false,
        }
    }

    fn noted(owners: &ZoneOwners, first: u64, ino: u64, generation: u32) {
        let zone = (TierId::Ssd, first);
        owners.note(zone, ino, || Ok(generation)).unwrap();
    }

    #[test]
    fn owners_are_those_since_the_zone_was_erased() {
        let owners = ZoneOwners::new(100);
        noted(&owners, 0, 20, 1);
        noted(&owners, 0, 21, 1);
        noted(&owners, 64, 22, 5);
        assert_eq!(owners.of(TierId::Ssd, &[zone(0)]), None, "not looked yet");
        owners.set_known(TierId::Ssd);
        let of = |zones: &[ZoneInfo]| owners.of(TierId::Ssd, zones).unwrap();
        assert_eq!(of(&[zone(0), zone(64)]), BTreeSet::from([20, 21, 22]));
        assert_eq!(of(&[zone(128)]), BTreeSet::new());
        noted(&owners, 0, 30, 2);
        assert_eq!(of(&[zone(0)]), BTreeSet::from([30]));
        assert_eq!(owners.of(TierId::Hdd, &[zone(0)]), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let owners = ZoneOwners::new(10);
        owners.set_known(TierId::Ssd);
        for ino in 0..8 {
            noted(&owners, 0, ino, 1);
        }
        for ino in 0..40 {
            noted(&owners, 64, ino, 1);
        }
        assert_eq!(owners.of(TierId::Ssd, &[zone(64)]), None, "too many");
        assert!(owners.of(TierId::Ssd, &[zone(0)]).is_some());
        assert_eq!(owners.0.lock().notes, 8);
        noted(&owners, 64, 1, 2);
        let found = owners.of(TierId::Ssd, &[zone(64)]);
        assert_eq!(found, Some(BTreeSet::from([1])), "erased since");
    }
}
