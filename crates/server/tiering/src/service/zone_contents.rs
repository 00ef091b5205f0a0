//! What lies in zones and tiers: data of files and leaves of trees, found by owner or by a scan of all inodes.

use super::Tiering;
use crate::move_request::{MoveRequest, unless_below};
use shale_format::extent::{ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::{BlockAddr, FileBlock, Ino, TierId};
use shale_volume::{Extent, Result, Run, ZoneInfo, leaves_below};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

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
    pub fn in_zones(&self, tier: TierId, zones: &[ZoneInfo]) -> Result<Vec<MoveRequest>> {
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
            let _reader = self.grace.read();
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
            let _reader = self.grace.read();
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
