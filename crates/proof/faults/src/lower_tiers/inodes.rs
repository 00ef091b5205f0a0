//! Blocks of inodes below NVM that are not what was written.

use std::collections::BTreeMap;

use shale_format::Ino;
use shale_format::inode::slot_of;
use shale_format::limits::{BLOCK_BYTES, INODES_PER_BLOCK};
use shale_volume::FoundInode;

use crate::lower_tiers::tiered_volume::{Live, NAMES, Tiered, down, program};
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{Sight, use_it};
use crate::volume::stage::{Checked, inos};
use shale_bench::Result;

/// A block of inodes below NVM: where it lies, and the paths of its inodes.
struct Demoted {
    first: u64,
    block: Live,
    paths: Vec<Vec<u8>>,
}

/// Moves all inodes down that may go, behind the leaves of their extents; gives the blocks.
fn sink(t: &mut Tiered) -> Result<Checked<Vec<Demoted>>> {
    let all = kept!(inos(&t.stage.view()?));
    let demoted = t.serve(|daemon, _, _| {
        down(daemon)?;
        let demoted = daemon.demote_extents().and_then(|_| daemon.demote_inodes());
        demoted.map_err(|e| format!("inodes do not move: {e}"))
    });
    kept!(demoted);
    t.keep()?;
    let view = t.stage.view()?;
    let mut blocks: BTreeMap<u64, Demoted> = BTreeMap::new();
    for (path, ino) in all {
        let found = view.find_inode(Ino(ino)).map_err(program)?;
        if let FoundInode::Below { addr, .. } = found {
            let fb = slot_of(Ino(ino)).0.0;
            let demoted = blocks.entry(fb).or_insert_with(|| Demoted {
                first: fb * INODES_PER_BLOCK,
                block: Live {
                    path: path.clone(),
                    addr,
                },
                paths: Vec::new(),
            });
            demoted.paths.push(path);
        }
    }
    match blocks.is_empty() {
        true => Ok(Err("no inode lies below NVM".to_owned())),
        false => Ok(Ok(blocks.into_values().collect())),
    }
}

/// Blocks of inodes rot: bits flipped, zeros, another's.
pub fn rot(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let mut t = kept!(Tiered::new(trial)?);
    let blocks = kept!(sink(&mut t)?);
    kept!(t.is_whole(&t.tree));
    let (mut failed, mut lost) = (0, 0);
    while trial.next_case() {
        t.restore()?;
        let one = &blocks[trial.chance.below(blocks.len() as u64) as usize];
        let other = &blocks[trial.chance.below(blocks.len() as u64) as usize];
        let of = |s: &Demoted| {
            let at = s.block.byte() as usize;
            t.contents[s.block.device()][at..at + BLOCK_BYTES].to_vec()
        };
        let mut bytes = of(one);
        match trial.cases % 3 {
            0 => bytes[trial.chance.below(4096) as usize] ^= 1 << trial.chance.below(8),
            1 => bytes.fill(0),
            _ => bytes = of(other),
        }
        if bytes == of(one) {
            continue;
        }
        t.devices[one.block.device()].spoil(one.block.byte(), &bytes);
        let found = spoiled(&t, one).and_then(|n| {
            failed += n;
            mended(&t, one)
        });
        let place = format!("inodes from {} on, {:?}", one.first, one.block.addr);
        lost += kept!(found.map_err(|wrong| format!("{place}: {wrong}")));
    }
    trial.seen = format!("{failed} paths EIO, {lost} gone after repair");
    Ok(Ok(()))
}

/// `fsck` names the inodes, all of them and no other are EIO, `status` names the block.
fn spoiled(t: &Tiered, one: &Demoted) -> Checked<usize> {
    let report = t.fsck()?;
    let numbers = format!("{} to {}", one.first, one.first + INODES_PER_BLOCK - 1);
    if report.complete || !report.findings.iter().any(|f| f.found.contains(&numbers)) {
        return Err(format!("fsck does not name {numbers}:\n{report}"));
    }
    t.serve(|daemon, shale, _| {
        let sight = Sight::of(shale, &t.tree);
        sight.within(&one.paths)?;
        if let Some(path) = one.paths.iter().find(|p| !sight.failed.contains(*p)) {
            let path = String::from_utf8_lossy(path);
            return Err(format!("/{path} is not EIO"));
        }
        let status = daemon.status_values().bad_blocks;
        let named = (NAMES[one.block.device()], one.block.addr.index());
        if status.len() != 1 || (status[0].tier.as_str(), status[0].block) != named {
            return Err(format!("status names {status:?}"));
        }
        // Nothing else suffers from it, whatever moves.
        down(daemon)?;
        use_it(shale, b"fault-new")?;
        Sight::of(shale, &t.tree).within(&one.paths)?;
        crate::volume::sight::unlink(shale, b"fault-new")?;
        Ok(sight.failed.len())
    })
}

/// Repair makes it whole, and loses nothing but inodes of that block. Gives the paths that are gone.
fn mended(t: &Tiered, one: &Demoted) -> Checked<usize> {
    let report = t.repair()?;
    if !report.clean() || !report.mended.iter().any(|m| m.lost) {
        return Err(format!("repair:\n{report}"));
    }
    let again = t.repair()?;
    if !again.mended.is_empty() {
        return Err(format!("a second repair finds more:\n{again}"));
    }
    let gone = t.serve(|_, shale, _| {
        Sight::mended(shale, &t.tree, &one.paths, true).within(&[])?;
        use_it(shale, b"fault-mended")?;
        Ok(Sight::mended(shale, &t.tree, &[], true).gone.len())
    })?;
    let report = t.fsck()?;
    match report.clean() {
        true => Ok(gone),
        false => Err(format!("fsck at the end:\n{report}")),
    }
}
