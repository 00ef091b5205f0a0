//! Freeing inodes that lost their last name while somebody used them.
//!
//! At a start that no mount survives into, nobody uses them any more. A crash in
//! between leaves the rest for the next start. Those that an undigested log names stay:
//! its records would find them gone.

use crate::error::Result;
use shale_format::inode::Inode;
use shale_format::xattr::Xattrs;
use shale_format::{DirKey, FileBlock, Ino, TierId};
use shale_volume::{Dirent, Txn, Volume, VolumeError};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Inodes freed in one transaction.
const BATCH: usize = 64;
/// Extents unmapped in one transaction of a file too fragmented for a single one.
const STEP_EXTENTS: usize = 256;

/// Frees all orphans but those in `named`. Gives their number. Nobody else may be using
/// the volume: the blocks are released at once.
pub(crate) fn free_all(volume: &Volume, named: &HashSet<Ino>) -> Result<u64> {
    let mut freed = 0;
    let mut from = DirKey(0);
    loop {
        volume.release_up_to(volume.txid());
        let batch = next(volume, from, named)?;
        let Some(last) = batch.last() else {
            return Ok(freed);
        };
        from = DirKey(last.key.0 + 1);
        match free(volume, &batch) {
            Err(VolumeError::JournalFull { .. } | VolumeError::NoSpace { .. }) => {
                for one in &batch {
                    free_large(volume, one)?;
                    volume.release_up_to(volume.txid());
                }
            }
            other => other?,
        }
        freed += batch.len() as u64;
    }
}

fn next(volume: &Volume, from: DirKey, named: &HashSet<Ino>) -> Result<Vec<Dirent>> {
    let view = volume.view();
    let mut batch = Vec::new();
    // Without it a file that is removed while it is open could not be digested.
    let orphans = view.inode(Ino::ORPHANS)?.ok_or(VolumeError::Damaged {
        what: "directory of orphans, inode",
        at: Ino::ORPHANS.0,
        expected: 1,
        found: 0,
    })?;
    view.entries(&orphans, from, &mut |entry| {
        if named.contains(&entry.ino) {
            return ControlFlow::Continue(());
        }
        batch.push(entry);
        match batch.len() {
            BATCH => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })?;
    Ok(batch)
}

fn free(volume: &Volume, batch: &[Dirent]) -> std::result::Result<(), VolumeError> {
    let mut txn = volume.begin();
    let mut orphans = orphans(&txn)?;
    for entry in batch {
        txn.dir_remove(&mut orphans, entry.key, &entry.name)?;
        if let Some(mut inode) = txn.inode(entry.ino)? {
            unmap(&mut txn, &mut inode, 0)?;
            if inode.xattr_addr != 0 {
                txn.set_xattrs(&mut inode, &Xattrs::default())?;
            }
            txn.free_inode(entry.ino)?;
        }
    }
    txn.put_inode(&orphans)?;
    txn.commit()?;
    Ok(())
}

/// Frees one inode in several transactions: its blocks from the end, then the inode.
fn free_large(volume: &Volume, entry: &Dirent) -> std::result::Result<(), VolumeError> {
    let Some(inode) = volume.view().inode(entry.ino)? else {
        return free(volume, std::slice::from_ref(entry));
    };
    let mut starts = Vec::new();
    volume.view().extents(&inode, FileBlock(0), &mut |extent| {
        starts.push(extent.file_block);
        ControlFlow::Continue(())
    })?;
    for some in starts.chunks(STEP_EXTENTS).skip(1).rev() {
        let mut txn = volume.begin();
        if let Some(mut inode) = txn.inode(entry.ino)? {
            unmap(&mut txn, &mut inode, some[0])?;
            txn.put_inode(&inode)?;
        }
        txn.commit()?;
        volume.release_up_to(volume.txid());
    }
    free(volume, std::slice::from_ref(entry))
}

fn unmap(txn: &mut Txn<'_>, inode: &mut Inode, from: u64) -> std::result::Result<(), VolumeError> {
    if inode.is_dir() {
        // It is empty: only an empty directory loses its name.
        return Ok(());
    }
    for tier in TierId::ALL {
        txn.extent_remove(inode, tier, FileBlock(from)..FileBlock(u64::MAX))?;
    }
    Ok(())
}

fn orphans(txn: &Txn<'_>) -> std::result::Result<Inode, VolumeError> {
    txn.inode(Ino::ORPHANS)?
        .ok_or(VolumeError::BadIno(Ino::ORPHANS))
}
