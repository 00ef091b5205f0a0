//! Memory errors: pages of NVM that cannot be read or written any more. Here the segment's file
//! is cut short while it is mapped, which the processor reports in the same way (SIGBUS).

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::ControlFlow;

use shale_format::FileBlock;
use shale_volume::View;

use crate::metadata::structures::parts;
use crate::trial::Trial;
use crate::trial::kept;
use crate::volume::sight::{NEW, Sight, use_it};
use crate::volume::stage::{Checked, Filled, Stage, attach_to, close_all, side, tree};
use shale_bench::BenchError;
use shale_bench::Result;
use shale_model::Snapshot;

const BLOCK: u64 = 4096;
/// Blocks that are lost at most, counted from those in use.
const LOST_MAX: u64 = 24;

/// Inodes of which something lies at or behind byte `cut`.
fn hit(view: &View, cut: u64) -> Checked<BTreeSet<u64>> {
    let mut inos = BTreeSet::new();
    for part in parts(view)? {
        if part.at + part.bytes > cut {
            inos.insert(part.ino);
        }
    }
    let mut failed = None;
    view.inodes(&mut |ino, inode| {
        let Ok(inode) = inode else {
            return ControlFlow::Continue(());
        };
        if !inode.is_dir() {
            let looked = view.extents(&inode, FileBlock(0), &mut |extent| {
                let end =
                    shale_format::BlockAddr::from_raw(extent.addr).index() + u64::from(extent.len);
                if end * BLOCK > cut {
                    inos.insert(ino.0);
                }
                ControlFlow::Continue(())
            });
            failed = failed.take().or(looked.err());
        }
        ControlFlow::Continue(())
    })
    .map_err(|e| e.to_string())?;
    match failed {
        None => Ok(inos),
        Some(e) => Err(e.to_string()),
    }
}

/// The blocks behind `cut` are lost while the volume is served; then they come back.
fn lose(stage: &Stage, filled: &Filled, cut: u64) -> Result<Checked<usize>> {
    stage.put(&filled.image)?;
    let hit = kept!(hit(&stage.view()?, cut));
    let reach: Vec<Vec<u8>> = hit.iter().flat_map(|&ino| filled.reach(ino)).collect();
    let resize = |bytes: u64| {
        let path = stage.segment(0);
        let file = File::options().write(true).open(&path);
        file.and_then(|file| file.set_len(bytes))
            .map_err(BenchError::file(path, "resize"))
    };
    let daemon = kept!(stage.start());
    let session = kept!(attach_to(&daemon));
    let mut shale = side(&session);
    resize(cut)?;
    let sight = Sight::of(&mut shale, &filled.tree);
    let used = match reach.contains(&Vec::new()) {
        true => Ok(()),
        false => use_it(&mut shale, b"fault-new"),
    };
    let digested = session.digest();
    let after = match reach.contains(&Vec::new()) {
        true => Ok(()),
        false => use_it(&mut shale, b"fault-after"),
    };
    close_all(&mut shale);
    drop(shale);
    // What cannot be digested because of the error is kept for the next start.
    let _ = session.detach();
    let _ = daemon.shutdown();
    drop((session, daemon));
    resize(filled.image.len() as u64)?;
    stage.store(cut, &filled.image[cut as usize..])?;
    kept!(sight.within(&reach));
    kept!(
        used.and(after)
            .map_err(|e| format!("elsewhere: {e}; digest: {digested:?}"))
    );
    Ok(again(stage, filled, reach.contains(&Vec::new())).map(|()| sight.failed.len()))
}

/// With the blocks back the next start has everything.
fn again(stage: &Stage, filled: &Filled, only_old: bool) -> Checked<()> {
    let daemon = stage.start()?;
    let session = attach_to(&daemon)?;
    let mut shale = side(&session);
    let sight = Sight::of(&mut shale, &filled.tree);
    let found: Snapshot = tree(&mut shale)?;
    drop(shale);
    session.detach().map_err(|e| format!("detach: {e}"))?;
    daemon.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    sight.within(&[]).map_err(|e| format!("afterwards: {e}"))?;
    let new = found.paths.iter().filter(|(path, _)| path.starts_with(NEW));
    let sizes: Vec<u64> = new.map(|(_, facts)| facts.stat.size).collect();
    if !only_old && sizes != [6_000, 6_000] {
        return Err(format!("what was written meanwhile is lost: {sizes:?}"));
    }
    let report = stage.fsck()?;
    match report.clean() {
        true => Ok(()),
        false => Err(format!("fsck:\n{report}")),
    }
}

/// Blocks at the end of the tier, where tree nodes lie, are lost.
pub fn blocks(trial: &mut Trial<'_>) -> Result<Checked<()>> {
    let stage = trial.stage()?;
    stage.put(&trial.filled.image)?;
    let end = trial.filled.image.len() as u64 / BLOCK;
    let mut failed = 0;
    while trial.next_case() {
        let lost = 1 + trial.chance.below(LOST_MAX);
        let done = lose(&stage, trial.filled, (end - lost) * BLOCK)?;
        failed += kept!(done.map_err(|wrong| format!("the last {lost} blocks: {wrong}")));
    }
    trial.seen = format!("{failed} paths EIO");
    Ok(Ok(()))
}
