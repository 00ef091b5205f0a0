//! Whose blocks lie in a zone: the inodes that had blocks placed into it since it was erased.
//!
//! Noted when blocks are placed, before anything links them, in memory. What lies in zones since before
//! the start is found by one look through the inodes, when zones are first to be emptied. So a zone's set
//! holds every owner, and some that own nothing there any more. It is checked all the same: where the
//! owners do not have as many blocks in the zones as are live there, all inodes are scanned.
//!
//! Memory: a number for each file and zone that it has blocks in, [`NOTES_MAX`] at most. Beyond that a zone's
//! set is forgotten, and to empty that zone is to look through the inodes.

use super::Tiering;
use super::mover::{MoveRequest, unless_below};
use parking_lot::Mutex;
use shale_format::extent::{ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Extent, Result, Run, ZoneInfo, leaves_below};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Numbers that are kept, of all zones together: 17 bytes each at most, 34 MiB.
const NOTES_MAX: usize = 1 << 21;

/// The owners of one zone.
#[derive(Default)]
struct ZoneOwners {
    /// How often the zone was erased when they were noted.
    generation: u32,
    inos: BTreeSet<u64>,
    /// There were too many.
    forgotten: bool,
}

/// The owners of the zones of all tiers, by tier and first block.
struct Sets {
    zones: HashMap<(TierId, u64), ZoneOwners>,
    /// Numbers in all sets.
    notes: usize,
    most: usize,
    /// Tiers of which everything from before the start is known.
    known: [bool; TierId::ALL.len()],
}

/// Whose blocks lie in which zones.
pub(super) struct Owners(Mutex<Sets>);

impl Default for Owners {
    fn default() -> Self {
        Self::new(NOTES_MAX)
    }
}

impl Owners {
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
            *owners = ZoneOwners {
                generation,
                ..ZoneOwners::default()
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
    fn of(&self, tier: TierId, zones: &[ZoneInfo]) -> Option<BTreeSet<u64>> {
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

    fn knows(&self, tier: TierId) -> bool {
        self.0.lock().known[tier as usize]
    }

    fn set_known(&self, tier: TierId) {
        self.0.lock().known[tier as usize] = true;
    }
}

/// A run of blocks that belongs to an inode.
pub(crate) struct Lies {
    /// Where it lies; of leaves each by itself, by its place among all of its tree's.
    pub(crate) extent: Extent,
    /// It is a leaf of a tree, and not data.
    pub(crate) leaf: bool,
}

/// The part of a run that lies in a zone.
fn part_in(zone: &ZoneInfo, inode: &Inode, lies: &Lies) -> Option<MoveRequest> {
    let e = &lies.extent;
    let addr = BlockAddr::from_raw(e.addr);
    let first = addr.index();
    let start = first.max(zone.place.first);
    let end = (first + u64::from(e.len)).min(zone.place.first + zone.place.blocks);
    (start < end).then(|| MoveRequest {
        ino: inode.ino,
        at: e.file_block + (start - first),
        from: addr.plus(start - first),
        blocks: end - start,
        hot: false,
        unwritten: e.is_unwritten(),
        pin: inode.pin(),
        leaf: lies.leaf,
    })
}

impl Tiering {
    /// Blocks of an inode are about to be placed here, below NVM.
    pub(super) fn note_owner(&self, run: Run, ino: u64) -> Result<()> {
        let view = self.volume.view();
        let end = run.addr.index() + run.len;
        let mut at = run.addr;
        while at.index() < end {
            let place = view.zone(at)?;
            let tier = at.tier().unwrap_or(TierId::Nvm);
            let generation = || view.generation(at);
            let owners = &self.owners;
            owners.note((tier, place.first), ino, generation)?;
            at = BlockAddr::new(tier, place.first + place.blocks);
        }
        Ok(())
    }

    /// Everything that lies in these zones of a tier.
    pub(super) fn in_zones(&self, tier: TierId, zones: &[ZoneInfo]) -> Result<Vec<MoveRequest>> {
        let mut wanted = self.all_in_zones(tier, zones)?;
        for w in &mut wanted {
            w.hot = self.recency.is_hot(w.ino, w.at);
        }
        Ok(wanted)
    }

    fn all_in_zones(&self, tier: TierId, zones: &[ZoneInfo]) -> Result<Vec<MoveRequest>> {
        if let Some(owners) = self.owners.of(tier, zones) {
            let wanted = self.of_owners(tier, zones, &owners)?;
            let found: u64 = wanted.iter().map(|w| w.blocks).sum();
            let now = self.volume.lower_zones(tier);
            let live = |z: &ZoneInfo| zones.iter().any(|v| v.place.first == z.place.first);
            let live: u64 = now.iter().filter(|z| live(z)).map(|z| z.live).sum();
            if found >= live {
                return Ok(wanted);
            }
            let lack = live - found;
            tracing::warn!(
                ?tier,
                lack,
                "owners of blocks are not known: all are looked through"
            );
            let missed = &self.counts.backref_misses;
            missed.fetch_add(1, Ordering::Relaxed);
        }
        self.look_for(tier, zones)
    }

    /// What these inodes have in these zones.
    fn of_owners(
        &self,
        tier: TierId,
        zones: &[ZoneInfo],
        owners: &BTreeSet<u64>,
    ) -> Result<Vec<MoveRequest>> {
        let mut wanted = Vec::new();
        for &ino in owners {
            let _reader = self.reclaimer.read();
            self.lies_of(Ino(ino), Some(tier), &mut |inode, lies| {
                wanted.extend(zones.iter().filter_map(|z| part_in(z, inode, lies)));
            })?;
        }
        Ok(wanted)
    }

    /// The same, of all inodes. Notes what lay in the tier before the start, if that is not known.
    fn look_for(&self, tier: TierId, zones: &[ZoneInfo]) -> Result<Vec<MoveRequest>> {
        let inode_scans = &self.counts.inode_scans;
        inode_scans.fetch_add(1, Ordering::Relaxed);
        let noting = !self.owners.knows(tier);
        let (mut wanted, mut noted) = (Vec::new(), Ok(()));
        self.each_lying(Some(tier), &mut |inode, lies| {
            wanted.extend(zones.iter().filter_map(|z| part_in(z, inode, lies)));
            if noting && noted.is_ok() {
                let e = &lies.extent;
                let (addr, len) = (BlockAddr::from_raw(e.addr), e.len.into());
                noted = self.note_owner(Run { addr, len }, inode.ino);
            }
        })?;
        noted?;
        self.owners.set_known(tier);
        Ok(wanted)
    }

    /// Calls `f` with all data of every file, and all leaves below NVM of files and directories, in one tier or in
    /// all. What cannot be read below NVM is passed over.
    pub(crate) fn each_lying(
        &self,
        tier: Option<TierId>,
        f: &mut dyn FnMut(&Inode, &Lies),
    ) -> Result<()> {
        let view = self.volume.view();
        let in_nvm = |addr: BlockAddr| addr.tier() == Some(TierId::Nvm);
        if tier != Some(TierId::Nvm) {
            let _reader = self.reclaimer.read();
            self.lies_of(Ino::NONE, tier, &mut |file, lies| {
                if !in_nvm(BlockAddr::from_raw(lies.extent.addr)) {
                    f(file, lies);
                }
            })?;
        }
        self.each_inode_block(&mut |fb, is_in_nvm| {
            // No file has data in NVM whose inode lies below.
            if tier == Some(TierId::Nvm) && !is_in_nvm {
                return Ok(());
            }
            let inodes = view.inodes_of(FileBlock(fb)).or_else(unless_below)?;
            let mut users = inodes.iter().filter(|i| Ino(i.ino).is_user());
            users.try_for_each(|inode| self.lies_in(inode, tier, f))
        })
    }

    /// The same of one inode; number 0: of the inode file. The caller is a reader.
    pub(super) fn lies_of(
        &self,
        ino: Ino,
        tier: Option<TierId>,
        f: &mut dyn FnMut(&Inode, &Lies),
    ) -> Result<()> {
        let inode = self.inode_or_file(ino)?;
        inode.map_or(Ok(()), |inode| self.lies_in(&inode, tier, f))
    }

    /// An inode, if it can be read where it lies below NVM; number 0: the inode file. The caller is a
    /// reader.
    pub(super) fn inode_or_file(&self, ino: Ino) -> Result<Option<Inode>> {
        let view = self.volume.view();
        match ino {
            Ino::NONE => view.root().map(|root| Some(root.inode_file)),
            ino => view.inode(ino).or_else(unless_below),
        }
    }

    /// The same of an inode that was read.
    fn lies_in(
        &self,
        inode: &Inode,
        tier: Option<TierId>,
        f: &mut dyn FnMut(&Inode, &Lies),
    ) -> Result<()> {
        self.leaves_in(inode, tier, f)?;
        let has = tier.is_none_or(|t| inode.root[t as usize].kind != root_kind::EMPTY);
        if !inode.has_content() || !has {
            return Ok(());
        }
        let mut of_tier = *inode;
        if tier == Some(TierId::Nvm) {
            // Nothing hides what is in the fastest tier: the others' trees need not be looked at.
            of_tier.root[1..].fill(ExtentRoot::EMPTY);
        }
        let view = self.volume.view();
        view.extents_there(&of_tier, FileBlock(0), &mut |extent| {
            let mine = tier.is_none_or(|t| BlockAddr::from_raw(extent.addr).tier() == Some(t));
            if mine {
                let leaf = false;
                f(inode, &Lies { extent, leaf });
            }
            ControlFlow::Continue(())
        })
    }

    /// The same of an inode's leaves below NVM.
    fn leaves_in(
        &self,
        inode: &Inode,
        tier: Option<TierId>,
        f: &mut dyn FnMut(&Inode, &Lies),
    ) -> Result<()> {
        if tier == Some(TierId::Nvm) || leaves_below(inode) == 0 {
            return Ok(());
        }
        for (n, addr) in (0..).zip(self.volume.view().leaves(inode)?) {
            let below = addr.tier() != Some(TierId::Nvm);
            if below && tier.is_none_or(|t| addr.tier() == Some(t)) {
                let extent = Extent {
                    file_block: n,
                    addr: addr.raw(),
                    len: 1,
                    flags: 0,
                };
                f(inode, &Lies { extent, leaf: true });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shale_format::TxId;
    use shale_volume::{Heat, ZonePlace};

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
            heat: Heat::Cold,
            txid: TxId(1),
            open: false,
            worn: false,
        }
    }

    fn noted(owners: &Owners, first: u64, ino: u64, generation: u32) {
        let zone = (TierId::Ssd, first);
        owners.note(zone, ino, || Ok(generation)).unwrap();
    }

    #[test]
    fn owners_are_those_since_the_zone_was_erased() {
        let owners = Owners::new(100);
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
        let owners = Owners::new(10);
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
