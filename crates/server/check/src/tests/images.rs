//! Damaged images in use: opened, walked, written to, checked and repaired. Whatever is
//! wrong, there is an error and no panic, and it ends soon.

use super::sample::*;
use crate::{CheckOptions, repair};
use shale_format::inode::Inode;
use shale_format::limits::BLOCK_BYTES;
use shale_format::xattr::Xattrs;
use shale_format::{DirKey, FileBlock, Ino, TierId};
use shale_volume::{Extent, Mapping, Result, View, Volume};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nothing that is done with an image of 32 MiB takes longer.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Extents and entries of one inode that are looked at.
const LOOKS_MAX: usize = 20_000;

/// Reads everything that can be reached.
fn walk(view: &View) {
    let mut inodes = Vec::new();
    // Each error is as good as what it is about.
    let _ = view.inodes(&mut |_, inode| {
        inodes.extend(inode.ok());
        ControlFlow::Continue(())
    });
    for inode in inodes {
        let mut looks = 0;
        let mut more = || {
            looks += 1;
            match looks < LOOKS_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let _ = view.nodes(&inode, &mut |_, _| more());
        let _ = view.xattrs(&inode);
        let _ = view.xattr_runs(&inode);
        if inode.is_dir() {
            let _ = view.entries(&inode, DirKey(0), &mut |_| more());
            let _ = view.lookup(&inode, b"direct");
            let _ = view.collisions(&inode, view.key_group(b"x"));
        } else {
            let _ = view.extents(&inode, FileBlock(0), &mut |_| more());
            for fb in [0, 1, 7, 250, u64::MAX - 1] {
                let mut block = [0; BLOCK_BYTES];
                if let Ok(Mapping::Data { addr, .. }) = view.map_block(&inode, FileBlock(fb)) {
                    let _ = view.read_blocks(addr, &mut block);
                }
            }
        }
    }
}

/// One change of an inode that was read from a damaged image.
fn change(volume: &Volume, ino: u64, r: &mut Seeded) -> Result<()> {
    let mut txn = volume.begin();
    let Some(mut inode) = txn.inode(Ino(ino))? else {
        return Ok(());
    };
    let (from, to) = (r.below(500), r.below(900));
    match r.below(6) {
        0 => txn.extent_remove(&mut inode, TierId::Nvm, FileBlock(from)..FileBlock(to))?,
        1 => txn.extent_remove(&mut inode, TierId::Nvm, FileBlock(0)..FileBlock(u64::MAX))?,
        2 => {
            let run = volume.allocate(1 + r.below(4), None)?[0];
            let extent = Extent {
                file_block: from,
                addr: run.addr.raw(),
                len: run.len as u32,
                flags: 0,
            };
            txn.extent_insert(&mut inode, TierId::Nvm, extent)?;
        }
        3 => txn.extent_shift(&mut inode, FileBlock(from), to as i64)?,
        4 => txn.set_xattrs(
            &mut inode,
            &Xattrs::from([(b"user.x".to_vec(), vec![1; 9000])]),
        )?,
        _ if inode.is_dir() => {
            let name = format!("new {}", r.next());
            let key = volume.view().key_group(name.as_bytes());
            txn.dir_insert(&mut inode, key, Ino(999), 8, name.as_bytes())?;
        }
        _ => inode.nlink = inode.nlink.wrapping_add(1),
    }
    txn.put_inode(&inode)?;
    txn.commit()?;
    volume.release_up_to(volume.txid());
    Ok(())
}

fn write(s: &Sample, r: &mut Seeded) {
    let Ok(volume) = Volume::open(Arc::clone(&s.map)) else {
        return;
    };
    let inos = [
        1, DIR, DEEP, BIG, FRAGMENTED, DIRECT, SPARSE, LINK, ATTRIBUTED, SEVERAL,
    ];
    for _ in 0..12 {
        let ino = inos[r.below(inos.len() as u64) as usize];
        // It may well be that it cannot be changed.
        let _ = change(&volume, ino, r);
    }
    walk(&volume.view());
    let fresh = volume.grant_inodes(Ino::ROOT);
    let mut txn = volume.begin();
    for ino in fresh {
        let inode = Inode {
            ino: ino.0,
            mode: 0o100_600,
            nlink: 1,
            ..Inode::free()
        };
        let _ = txn.put_inode(&inode);
    }
    let _ = txn.commit();
}

fn seeds(range: std::ops::Range<u64>) {
    for seed in range {
        let s = Sample::new();
        let blocks = s.structure();
        let mut r = Seeded(seed.wrapping_mul(7919));
        for _ in 0..1 + r.below(5) {
            super::random::some_damage(&s, &mut r, &blocks);
        }
        let begun = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| {
            if let Ok((view, _)) = View::open(Arc::clone(&s.map)) {
                walk(&view);
            }
            write(&s, &mut r);
            s.check();
            let options = CheckOptions::default();
            let repaired = repair(&s.map, &s.logs, &options, &mut |_| ());
            if let Ok(report) = repaired {
                assert!(report.clean(), "{report}");
            }
            write(&s, &mut r);
        }));
        assert!(done.is_ok(), "seed {seed}");
        assert!(
            begun.elapsed() < TIME_MAX,
            "seed {seed}: {:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn damaged_images_in_use() {
    seeds(0..16);
}

#[test]
#[ignore = "as long as is asked: SHALE_FUZZ=1000..9000 cargo test -p shale-check damaged_images -- --ignored"]
fn damaged_images_in_use_at_length() {
    let range = std::env::var("SHALE_FUZZ").unwrap_or_else(|_| "1000..2000".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    seeds(from.parse().unwrap()..to.parse().unwrap());
}
