//! Extents of one file in one tier: changes.
//!
//! A root is empty, one extent (an unfragmented file costs no node, Strata §3.1),
//! or a tree; it becomes a tree with the second extent and stops being one with
//! the last but one. Extents that adjoin in file and tier are joined, so the
//! number of extents depends on what is mapped, not on how it came about.

use super::{CowTrees, SPARSE_BYTES};
use crate::error::{Result, VolumeError};
use crate::trees::extent::{
    Merge, bad_range, check_direct, clip, direct, direct_root, joined, run,
};
use crate::trees::node::is_legal;
use shale_format::extent::{Extent, ExtentRoot, root_kind};
use shale_format::inode::Inode;
use shale_format::{BlockAddr, Ino, TierId};
use shale_sys::mutants;
use std::ops::Range;

impl CowTrees {
    /// Extents of a root that touch `range`, whole.
    pub(crate) fn extents_in(
        &self,
        root: &ExtentRoot,
        owner: Ino,
        range: &Range<u64>,
    ) -> Result<Vec<Extent>> {
        let touches = |e: &Extent| e.file_block < range.end && e.end().0 > range.start;
        if root.kind == root_kind::DIRECT {
            let e = direct(root);
            check_direct(&e, owner)?;
            return Ok(Vec::from_iter(touches(&e).then_some(e)));
        }
        let mut found = Vec::new();
        let mut key = range.start;
        while key < range.end {
            let (items, keys) = self.leaf::<Extent>(root, owner, key)?;
            found.extend(items.iter().filter(|e| touches(e)));
            key = keys.end;
        }
        Ok(found)
    }

    /// File block behind `fb` at which the next extent may begin.
    pub(crate) fn extent_after(&self, root: &ExtentRoot, owner: Ino, fb: u64) -> Result<u64> {
        if root.kind == root_kind::DIRECT {
            let start = root.file_block;
            return Ok(if start > fb { start } else { u64::MAX });
        }
        let (items, keys) = self.leaf::<Extent>(root, owner, fb)?;
        let next = items.iter().find(|e| e.file_block > fb);
        Ok(next.map_or(keys.end, |e| e.file_block))
    }

    fn put_extent(&mut self, root: &mut ExtentRoot, owner: Ino, e: Extent) -> Result<()> {
        if root.kind == root_kind::DIRECT {
            let old = direct(root);
            if old.file_block == e.file_block {
                *root = direct_root(&e);
                return Ok(());
            }
            *root = ExtentRoot::EMPTY;
            self.insert(root, owner, old)?;
        } else if root.kind == root_kind::EMPTY {
            *root = direct_root(&e);
            return Ok(());
        }
        self.insert(root, owner, e)
    }

    fn delete_extent(&mut self, root: &mut ExtentRoot, owner: Ino, key: u64) -> Result<()> {
        if root.kind == root_kind::DIRECT {
            *root = ExtentRoot::EMPTY;
            return Ok(());
        }
        self.remove::<Extent>(root, owner, key)?;
        if root.kind == root_kind::TREE && root.level == 0 {
            let only = match self.leaf::<Extent>(root, owner, 0) {
                Ok((items, _)) if items.len() == 1 => items[0],
                // Where the last leaf lies below NVM and cannot be read, it stays one.
                Ok(_) | Err(VolumeError::BadBlock { .. } | VolumeError::Lower(_)) => return Ok(()),
                Err(e) => return Err(e),
            };
            self.clear::<Extent>(root, owner)?;
            *root = direct_root(&only);
        }
        Ok(())
    }

    /// See [`crate::Txn::extent_insert`].
    pub(crate) fn extent_insert(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        e: Extent,
    ) -> Result<()> {
        self.check_new(tier, &e)?;
        let range = e.file_block..e.end().0;
        let owner = Ino(inode.ino);
        let mut root = inode.root[tier as usize];
        let near = range.start.saturating_sub(1)..range.end.saturating_add(1);
        let around = self.extents_in(&root, owner, &near)?;
        self.exchange_blocks(inode, &around, &e)?;

        // What becomes of everything around: parts left and right of the new extent
        // stay, or are joined with it.
        let mut whole = e;
        let (mut before, mut after) = (None, None);
        for old in &around {
            if let Some(left) = clip(old, &(0..range.start)) {
                match joined(&left, &whole) {
                    Some(both) => whole = both,
                    None => before = Some(left),
                }
            }
            if let Some(right) = clip(old, &(range.end..u64::MAX)) {
                match joined(&whole, &right) {
                    Some(both) => whole = both,
                    None => after = Some(right),
                }
            }
        }
        let puts = [before, Some(whole), after];
        let stays = |key: u64| puts.iter().flatten().any(|p| p.file_block == key);
        for old in around.iter().filter(|old| !stays(old.file_block)) {
            self.delete_extent(&mut root, owner, old.file_block)?;
        }
        for put in puts.into_iter().flatten() {
            if !around.contains(&put) {
                self.put_extent(&mut root, owner, put)?;
            }
        }
        inode.root[tier as usize] = root;
        Ok(())
    }

    /// Whether an extent may be put into a file.
    fn check_new(&mut self, tier: TierId, e: &Extent) -> Result<()> {
        let range = e.file_block..e.file_block.saturating_add(e.len.into());
        if !is_legal(e) {
            return Err(bad_range(&range, "not a legal extent"));
        }
        self.check(run(e))?;
        if BlockAddr::from_raw(e.addr).tier() != Some(tier) {
            return Err(bad_range(&range, "its blocks are in another tier"));
        }
        Ok(())
    }

    /// See [`crate::Txn::extent_insert_all`].
    pub(crate) fn extent_insert_all(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        mut all: &[Extent],
    ) -> Result<()> {
        while let Some(&first) = all.first() {
            let mut done = self.insert_into_leaf(inode, tier, all)?;
            if done == 0 {
                self.extent_insert(inode, tier, first)?;
                done = 1;
            }
            all = &all[done..];
        }
        Ok(())
    }

    /// Puts the first extents of `all` into the leaf where the first one belongs, as far as they lie inside of
    /// it, touch nothing beside it, and need no other node. Gives how many; what [`Self::extent_insert`] has to
    /// do is left to it.
    fn insert_into_leaf(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        all: &[Extent],
    ) -> Result<usize> {
        let owner = Ino(inode.ino);
        let mut root = inode.root[tier as usize];
        if root.kind != root_kind::TREE || all.len() < 2 {
            return Ok(0);
        }
        let done =
            self.change_leaf(&mut root, owner, all[0].file_block, |draft, items, keys| {
                let mut merge = Merge::new(items);
                let inside = |e: &Extent| {
                    (keys.start == 0 || e.file_block > keys.start)
                        && (keys.end == u64::MAX || e.end().0 < keys.end)
                };
                let mut done = 0;
                for e in all.iter().take_while(|e| inside(e)) {
                    draft.check_new(tier, e)?;
                    if !merge.has_space() {
                        break;
                    }
                    merge.add(e);
                    done += 1;
                }
                let merged = merge.finish();
                // Few are left where much was joined: then nodes go, or the tree.
                let bytes = merged.len() * Extent::BYTES;
                if merged.len() < 2 || (merged.len() < items.len() && bytes < SPARSE_BYTES) {
                    return Ok(0);
                }
                let mut from = 0;
                for e in &all[..done] {
                    from += items[from..].partition_point(|old| old.end().0 <= e.file_block);
                    let behind = items[from..].partition_point(|old| old.file_block < e.end().0);
                    draft.exchange_blocks(inode, &items[from..from + behind], e)?;
                }
                *items = merged;
                Ok(done)
            })?;
        inode.root[tier as usize] = root;
        Ok(done)
    }

    /// Frees the blocks that `e` replaces and marks its own used, except where both
    /// are the same blocks. Counts them in the inode.
    fn exchange_blocks(&mut self, inode: &mut Inode, around: &[Extent], e: &Extent) -> Result<()> {
        let range = e.file_block..e.end().0;
        let mut fresh_from = range.start;
        let mut fresh = Vec::new();
        for old in around.iter().filter_map(|old| clip(old, &range)) {
            inode.blocks = inode.blocks.saturating_sub(old.len.into());
            if old.addr == e.addr_of(old.start()).raw() {
                fresh.push(fresh_from..old.file_block);
                fresh_from = old.end().0;
            } else if !mutants::is_on("old-blocks") {
                self.free(run(&old))?;
            }
        }
        fresh.push(fresh_from..range.end);
        for part in fresh.iter().filter_map(|part| clip(e, part)) {
            self.mark(run(&part))?;
        }
        inode.blocks += u64::from(e.len);
        Ok(())
    }

    /// See [`crate::Txn::extent_remove`].
    pub(crate) fn extent_remove(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        range: Range<u64>,
    ) -> Result<()> {
        let owner = Ino(inode.ino);
        let mut root = inode.root[tier as usize];
        if range.is_empty() || root.kind == root_kind::EMPTY {
            return Ok(());
        }
        let gone = self.extents_in(&root, owner, &range)?;
        for part in gone.iter().filter_map(|e| clip(e, &range)) {
            self.free(run(&part))?;
            inode.blocks = inode.blocks.saturating_sub(part.len.into());
        }
        // Whole files are removed all the time, and at once it is much cheaper.
        if range.start == 0 && range.end == u64::MAX {
            if root.kind == root_kind::TREE {
                self.clear::<Extent>(&mut root, owner)?;
            }
            root = ExtentRoot::EMPTY;
        }
        for e in &gone {
            if root.kind == root_kind::EMPTY {
                break;
            }
            let left = clip(e, &(0..range.start));
            match left {
                Some(left) => self.put_extent(&mut root, owner, left)?,
                None => self.delete_extent(&mut root, owner, e.file_block)?,
            }
            if let Some(right) = clip(e, &(range.end..u64::MAX)) {
                self.put_extent(&mut root, owner, right)?;
            }
        }
        inode.root[tier as usize] = root;
        Ok(())
    }

    /// See [`crate::Txn::extent_shift`].
    pub(crate) fn extent_shift(
        &mut self,
        inode: &mut Inode,
        tier: TierId,
        from: u64,
        delta: i64,
    ) -> Result<()> {
        let owner = Ino(inode.ino);
        let mut root = inode.root[tier as usize];
        if root.kind == root_kind::EMPTY || delta == 0 {
            return Ok(());
        }
        let overflow = || bad_range(&(from..u64::MAX), "moved out of the file");
        let to = from.checked_add_signed(delta).ok_or_else(overflow)?;
        let all = self.extents_in(&root, owner, &(0..u64::MAX))?;
        let mut moved: Vec<Extent> = Vec::with_capacity(all.len() + 1);
        let stay = all.iter().filter_map(|e| clip(e, &(0..from)));
        let go = all.iter().filter_map(|e| clip(e, &(from..u64::MAX)));
        for e in stay {
            if e.end().0 > to {
                return Err(bad_range(&(to..from), "mapped, and something moves there"));
            }
            moved.push(e);
        }
        for mut e in go {
            e.file_block = e
                .file_block
                .checked_add_signed(delta)
                .ok_or_else(overflow)?;
            e.file_block
                .checked_add(e.len.into())
                .ok_or_else(overflow)?;
            match moved.last_mut() {
                Some(last) => match joined(last, &e) {
                    Some(both) => *last = both,
                    None => moved.push(e),
                },
                None => moved.push(e),
            }
        }
        if root.kind == root_kind::TREE {
            self.clear::<Extent>(&mut root, owner)?;
        }
        root = ExtentRoot::EMPTY;
        for e in moved {
            self.put_extent(&mut root, owner, e)?;
        }
        inode.root[tier as usize] = root;
        Ok(())
    }
}
