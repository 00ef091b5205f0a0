//! Writes what was decided, to blocks that nothing refers to.

use super::content::push;
use super::inode_table::direct;
use super::trees::{Pass, extents_of};
use super::{Note, Repair, no_space};
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::limits::INODES_PER_BLOCK;
use shale_format::superblock::RootBlock;
use shale_format::tree::TreeKind;
use shale_format::{BlockAddr, Ino, TierId, TxId};
use shale_pool::error::Result;
use shale_volume::Rebuild;

/// Runs of blocks: first and number, by tier the two below NVM.
type UsedRuns = (Vec<(u64, u64)>, [Vec<(u64, u64)>; 2]);

/// What is to be committed: root block, runs in use, log slots to be freed.
type Ready = (RootBlock, UsedRuns, Vec<u32>);

const S_IFREG: u32 = 0o100_000;

impl Repair {
    /// Writes trees and inodes; gives what is to be committed, and the notes.
    pub(super) fn write(&mut self, rebuild: &mut Rebuild) -> Result<(Ready, Vec<Note>)> {
        let txid = self.txid + 1;
        rebuild.set_txid(TxId(txid));
        self.copy_shared(rebuild)?;
        let all: Vec<u64> = self.inodes.keys().copied().collect();
        let mut below = [0; 3];
        self.root.leaves_below = [0; 2];
        self.root.extent_leaves_below = [0; 2];
        for &ino in &all {
            self.write_trees(rebuild, ino, &mut below)?;
        }
        if self.slots_changed || self.inodes.values().any(|k| k.changed) {
            self.write_inode_file(rebuild, txid, &mut below)?;
        } else {
            let file = self.root.inode_file;
            self.keep_trees(&file, &mut below);
        }
        self.note_unsure();
        let mut root = self.root;
        root.inodes = self.inodes.len() as u64;
        root.used_blocks = below;
        let ready = (
            root,
            (self.space.used_runs(), self.space.used_below()),
            std::mem::take(&mut self.bad_logs),
        );
        Ok((ready, std::mem::take(&mut self.notes)))
    }

    /// Writes the trees of an inode that change, and keeps what stays as it is. `below`: blocks
    /// in use per tier.
    fn write_trees(&mut self, rebuild: &Rebuild, ino: u64, below: &mut [u64; 3]) -> Result<()> {
        let Some(kept) = self.inodes.get_mut(&ino) else {
            return Ok(());
        };
        let (extents, entries) = (kept.extents.take(), kept.entries.take());
        let mut inode = kept.inode;
        for (addr, len) in self.read_xattrs(&inode, false).unwrap_or_default().runs {
            self.space.keep(addr, len);
        }
        if let Some(mut tiers) = extents {
            tiers[0].sort_by_key(|e| e.file_block);
            for (tier, all) in TierId::ALL.into_iter().zip(tiers) {
                let mut joined = Vec::with_capacity(all.len());
                all.into_iter().for_each(|e| push(&mut joined, e));
                self.keep_extents(ino, &joined, tier, below);
                let space = &mut self.space;
                let root = rebuild.extents(Ino(ino), &joined, &mut || space.take());
                inode.root[tier as usize] = root?;
            }
        } else if let Some(entries) = entries {
            let space = &mut self.space;
            inode.root[0] = rebuild.entries(Ino(ino), &entries, &mut || space.take())?;
        } else {
            self.keep_trees(&inode, below);
        }
        if let Some(kept) = self.inodes.get_mut(&ino) {
            kept.changed |= kept.inode.root != inode.root;
            kept.inode = inode;
        }
        Ok(())
    }

    fn keep_extents(&mut self, ino: u64, all: &[Extent], tier: TierId, below: &mut [u64; 3]) {
        for e in all {
            let addr = BlockAddr::from_raw(e.addr);
            self.space.keep(addr, e.len.into());
            below[tier as usize] += u64::from(e.len);
            if let Some(n) = (tier as usize).checked_sub(1) {
                let (first, end) = (addr.index(), addr.index() + u64::from(e.len));
                let lost = self.lost_zones[n].iter();
                let inside = lost.map(|z| end.min(z.end).saturating_sub(first.max(z.start)));
                match inside.sum() {
                    0_u64 => {}
                    blocks => *self.unsure.entry((ino, n)).or_default() += blocks,
                }
            }
        }
    }

    /// Blocks of zones whose entries are lost.
    fn note_unsure(&mut self) {
        for ((ino, n), blocks) in std::mem::take(&mut self.unsure) {
            let what = format!(
                "{blocks} blocks on {} lie in zones whose entries are lost: EIO, unless these were \
                 never erased",
                ["ssd", "hdd"][n]
            );
            self.note_inode(ino, what, true);
        }
    }

    /// Keeps nodes and data of an inode as they are.
    fn keep_trees(&mut self, inode: &Inode, below: &mut [u64; 3]) {
        for (tier, root) in TierId::ALL.into_iter().zip(&inode.root) {
            let mut all = Vec::new();
            let kind = match inode.is_dir() {
                true => TreeKind::Entries,
                false => TreeKind::Extents,
            };
            match root.kind {
                root_kind::DIRECT if !inode.is_dir() => all.push(direct(root)),
                root_kind::TREE => {
                    let mut leaf = |block: &_, header: &_, _: &_| {
                        if kind == TreeKind::Extents {
                            all.extend(extents_of(block, header));
                        }
                    };
                    let owner = Ino(inode.ino);
                    let walked = self.walk(root, owner, kind, Pass::Again, &mut leaf);
                    for &addr in &walked.nodes {
                        self.space.keep(addr, 1);
                    }
                    for addr in walked.below() {
                        let tier = addr.tier().unwrap_or(TierId::Nvm) as usize;
                        below[tier] += 1;
                        let counts = match kind {
                            TreeKind::Entries => &mut self.root.leaves_below,
                            TreeKind::Extents => &mut self.root.extent_leaves_below,
                        };
                        counts[tier - 1] += 1;
                    }
                }
                _ => {}
            }
            self.keep_extents(inode.ino, &all, tier, below);
        }
    }

    /// Writes the blocks of the inode file that change, and the tree that leads to them.
    fn write_inode_file(
        &mut self,
        rebuild: &Rebuild,
        txid: u64,
        below: &mut [u64; 3],
    ) -> Result<()> {
        let changed = self.inodes.values().filter(|k| k.changed);
        let changed: Vec<u64> = changed.map(|k| k.inode.ino / INODES_PER_BLOCK).collect();
        for fb in changed {
            self.slots.insert(fb, 0);
        }
        let blocks: Vec<(u64, u64)> = self.slots.iter().map(|(&fb, &at)| (fb, at)).collect();
        for (fb, _) in blocks.into_iter().filter(|&(_, at)| at == 0) {
            let numbers = fb * INODES_PER_BLOCK..(fb + 1) * INODES_PER_BLOCK;
            let mut here = Vec::new();
            for (_, kept) in self.inodes.range_mut(numbers) {
                if kept.changed {
                    kept.inode.txid = txid;
                }
                here.push(kept.inode);
            }
            if here.is_empty() {
                self.slots.remove(&fb);
                continue;
            }
            let to = self.space.take().ok_or_else(no_space)?;
            rebuild.inode_block(to, &here)?;
            self.slots.insert(fb, to.index());
        }
        let mut tiers: [Vec<Extent>; 3] = Default::default();
        for (&fb, &at) in &self.slots {
            let addr = BlockAddr::from_raw(at);
            let one = Extent {
                file_block: fb,
                addr: addr.raw(),
                len: 1,
                flags: 0,
            };
            let tier = addr.tier().unwrap_or(TierId::Nvm) as usize;
            push(&mut tiers[tier], one);
            below[tier] += u64::from(tier > 0);
            self.space.keep(addr, 1);
        }
        let mut roots = [ExtentRoot::EMPTY; 3];
        for (root, all) in roots.iter_mut().zip(&tiers) {
            let space = &mut self.space;
            *root = rebuild.extents(Ino::NONE, all, &mut || space.take())?;
        }
        let file = &mut self.root.inode_file;
        if !file.is_file() {
            *file = Inode::free();
            file.mode = S_IFREG | 0o600;
            file.nlink = 1;
        }
        file.ino = 0;
        file.txid = txid;
        file.root = roots;
        file.blocks = self.slots.len() as u64;
        let ends = tiers.iter().filter_map(|all| all.last());
        file.size = ends.map(|e| e.end().byte()).max().unwrap_or(0);
        Ok(())
    }
}
