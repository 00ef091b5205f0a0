//! Commit structure: carries a plan out in one transaction (DESIGN §6.4). Nothing is
//! decided here. A crash anywhere leaves the volume before the transaction or after it,
//! together with the log's digested position.

use super::DigestError;
use super::layout::{FilePlan, Link};
use super::plan::{EntryChange, InodePlan, Orphan, Plan};
use super::scan::LogSource;
use shale_format::acl::AclKind;
use shale_format::extent::{Extent, UNWRITTEN, root_kind};
use shale_format::inode::{Inode, flag};
use shale_format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use shale_format::xattr::Xattrs;
use shale_format::{BlockAddr, DirKey, FileBlock, Ino, LogPos, TierId, TxId};
use shale_sys::mutants;
use shale_volume::{Committed, Txn, Volume};
use std::ops::Range;

/// File block behind the last one that a file can have.
const BLOCK_END: u64 = FILE_BYTES_MAX / BLOCK_BYTES as u64;

/// Applies the plan and moves the log's digested position from `from` to `upto`.
/// `extents`: the new blocks of each inode of the plan. `growth`: blocks that the volume may
/// have more afterwards.
pub(crate) fn commit(
    volume: &Volume,
    log: &LogSource<'_>,
    plan: &Plan,
    extents: &[Vec<Extent>],
    (from, upto): (LogPos, LogPos),
    growth: Option<u64>,
) -> Result<Committed, DigestError> {
    if mutants::is_on("digested-early") {
        let mut early = volume.begin();
        let mut slot = early.log_slot(log.slot)?;
        slot.digested = upto.0;
        early.set_log_slot(log.slot, &slot)?;
        early.commit()?;
    }
    let inodes = plan.inodes.iter().filter_map(|p| p.inode.as_ref());
    let flags = inodes.fold(0, |flags, inode: &Inode| flags | inode.flags);
    volume.let_inodes_have_flags(flags & flag::CHANGEABLE)?;
    let has_acl = |x: &Xattrs| AclKind::BOTH.iter().any(|k| x.contains_key(k.name()));
    if plan
        .inodes
        .iter()
        .any(|p| p.xattrs.as_ref().is_some_and(has_acl))
    {
        volume.let_inodes_have_acls()?;
    }
    let mut txn = volume.begin();
    txn.limit_growth(growth);
    for (inode, extents) in plan.inodes.iter().zip(extents) {
        apply_inode(&mut txn, inode, extents)?;
    }
    apply_orphans(&mut txn, plan)?;
    let mut slot = txn.log_slot(log.slot)?;
    if slot.digested != from.0 && !mutants::is_on("digested-early") {
        return Err(DigestError::Position {
            slot: log.slot,
            expected: from,
            found: LogPos(slot.digested),
        });
    }
    if !mutants::is_on("digested-stored") {
        slot.digested = upto.0;
    }
    txn.set_log_slot(log.slot, &slot)?;
    Ok(txn.commit()?)
}

fn apply_inode(txn: &mut Txn<'_>, plan: &InodePlan, extents: &[Extent]) -> Result<(), DigestError> {
    let present = txn.inode(plan.ino)?;
    let found = present.as_ref().map(|i| TxId(i.txid));
    if found != plan.base {
        return Err(DigestError::Moved { ino: plan.ino });
    }
    let continued = match present {
        Some(base) if plan.wipe => {
            wipe(txn, plan, base)?;
            None
        }
        other => other,
    };
    let Some(planned) = &plan.inode else {
        return Ok(());
    };
    let mut inode = continued.unwrap_or_else(|| Inode {
        ino: planned.ino,
        ..Inode::free()
    });
    apply_file(txn, &mut inode, &plan.file, extents)?;
    apply_entries(txn, &mut inode, &plan.entries)?;
    if let Some(xattrs) = &plan.xattrs {
        txn.set_xattrs(&mut inode, xattrs)?;
    }
    if !plan.file.is_empty() {
        inode.heat = inode.heat.saturating_add(1);
    }
    txn.put_inode(&settled(inode, planned))?;
    Ok(())
}

/// What the plan says of the inode, with the blocks that the transaction gave it.
fn settled(inode: Inode, planned: &Inode) -> Inode {
    Inode {
        root: inode.root,
        blocks: inode.blocks,
        xattr_addr: inode.xattr_addr,
        xattr_bytes: inode.xattr_bytes,
        heat: inode.heat,
        ..*planned
    }
}

/// Frees what an inode has and its slot.
fn wipe(txn: &mut Txn<'_>, plan: &InodePlan, mut base: Inode) -> Result<(), DigestError> {
    apply_entries(txn, &mut base, &plan.wiped_entries)?;
    if !base.is_dir() {
        // The volume frees a whole tree at once where the range has no end.
        unmap(txn, &mut base, 0..u64::MAX)?;
    }
    if base.xattr_addr != 0 {
        txn.set_xattrs(&mut base, &Xattrs::new())?;
    }
    txn.put_inode(&base)?;
    txn.free_inode(plan.ino)?;
    Ok(())
}

fn apply_file(
    txn: &mut Txn<'_>,
    inode: &mut Inode,
    file: &FilePlan,
    extents: &[Extent],
) -> Result<(), DigestError> {
    if let Some(from) = file.cut {
        unmap(txn, inode, from..BLOCK_END)?;
    }
    for range in &file.unmap {
        unmap(txn, inode, range.clone())?;
    }
    let links = file.links.iter().flat_map(|l| extents_of(l, 0));
    let unwritten = if mutants::is_on("unwritten-flag") {
        0
    } else {
        UNWRITTEN
    };
    let zeroed = file.zeroed.iter().flat_map(|l| extents_of(l, unwritten));
    let mut all: Vec<Extent> = links.chain(zeroed).chain(extents.iter().copied()).collect();
    all.sort_by_key(|e| e.file_block);
    let tier_of = |e: &Extent| BlockAddr::from_raw(e.addr).tier().unwrap_or(TierId::Nvm);
    for some in all.chunk_by(|a, b| tier_of(a) == tier_of(b)) {
        let mine = tier_of(&some[0]);
        txn.extent_insert_all(inode, mine, some)?;
        for tier in TierId::ALL.into_iter().filter(|&tier| tier != mine) {
            for extent in some {
                if inode.root[tier as usize].kind != root_kind::EMPTY {
                    txn.extent_remove(inode, tier, extent.start()..extent.end())?;
                }
            }
        }
    }
    if let Some(shift) = file.shift {
        let (at, behind) = (shift.at, shift.at + shift.blocks);
        if shift.insert {
            txn.extent_shift(inode, FileBlock(at), shift.blocks as i64)?;
        } else {
            unmap(txn, inode, at..behind)?;
            txn.extent_shift(inode, FileBlock(behind), -(shift.blocks as i64))?;
        }
    }
    Ok(())
}

/// Blocks that follow one another, as extents.
fn extents_of(link: &Link, flags: u32) -> impl Iterator<Item = Extent> {
    let (link, most) = (*link, u64::from(u32::MAX));
    (0..link.blocks)
        .step_by(u32::MAX as usize)
        .map(move |n| Extent {
            file_block: link.at + n,
            addr: link.addr.plus(n).raw(),
            len: (link.blocks - n).min(most) as u32,
            flags,
        })
}

/// Unmaps blocks in every tier.
fn unmap(txn: &mut Txn<'_>, inode: &mut Inode, blocks: Range<u64>) -> Result<(), DigestError> {
    let range = FileBlock(blocks.start)..FileBlock(blocks.end);
    for tier in TierId::ALL {
        if inode.root[tier as usize].kind != root_kind::EMPTY && range.start < range.end {
            txn.extent_remove(inode, tier, range.clone())?;
        }
    }
    Ok(())
}

fn apply_entries(
    txn: &mut Txn<'_>,
    dir: &mut Inode,
    changes: &[(DirKey, EntryChange)],
) -> Result<(), DigestError> {
    for (key, change) in changes {
        match change {
            EntryChange::Remove(name) => {
                txn.dir_remove(dir, *key, name)?;
            }
            EntryChange::Insert(e) => txn.dir_insert(dir, *key, e.ino, e.kind, &e.name)?,
            EntryChange::Replace(e) => {
                txn.dir_replace(dir, *key, e.ino, e.kind)?;
            }
        }
    }
    Ok(())
}

/// Changes of the directory of orphans, whose keys are inode numbers.
fn apply_orphans(txn: &mut Txn<'_>, plan: &Plan) -> Result<(), DigestError> {
    let changes = plan.inodes.iter().filter_map(|p| Some((p.ino, p.orphan?)));
    let changes: Vec<(Ino, Orphan)> = changes.collect();
    if changes.is_empty() {
        return Ok(());
    }
    let Some(mut orphans) = txn.inode(Ino::ORPHANS)? else {
        return Err(DigestError::Moved { ino: Ino::ORPHANS });
    };
    for (ino, change) in changes {
        let key = DirKey(ino.0);
        match change {
            Orphan::Insert { kind } => txn.dir_insert(&mut orphans, key, ino, kind, b"")?,
            Orphan::Replace { kind } => {
                txn.dir_replace(&mut orphans, key, ino, kind)?;
            }
            Orphan::Remove => {
                txn.dir_remove(&mut orphans, key, b"")?;
            }
        }
    }
    txn.put_inode(&orphans)?;
    Ok(())
}
