//! Readers in other threads while transactions commit.

use super::*;
use shale_format::TierId;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file whose size says how many blocks are mapped, all from one generation.
#[test]
fn readers_see_whole_inodes_and_trees_of_one_moment() {
    let volume = new_volume(64 * MIB);
    let done = AtomicBool::new(false);
    let reader = || {
        let view = volume.view();
        let mut seen = 0;
        while !done.load(Ordering::Relaxed) {
            let root = view.root().unwrap();
            assert!(root.txid >= seen, "time does not go back");
            seen = root.txid;
            for ino in 20..40 {
                let Some(inode) = view.inode(Ino(ino)).unwrap() else {
                    continue;
                };
                let mut blocks = 0;
                view.extents(&inode, FileBlock(0), &mut |e| {
                    blocks += u64::from(e.len);
                    ControlFlow::Continue(())
                })
                .unwrap();
                assert_eq!(blocks, inode.blocks);
                assert_eq!(inode.size, blocks * 4096);
            }
        }
    };
    std::thread::scope(|s| {
        s.spawn(reader);
        s.spawn(reader);
        let mut r = Seeded(8);
        for round in 0..300 {
            let mut txn = volume.begin();
            for ino in 20..40 {
                let mut inode = txn.inode(Ino(ino)).unwrap().unwrap_or(file(ino));
                if r.below(12) == 0 && inode.txid > 0 {
                    let all = FileBlock(0)..FileBlock(u64::MAX);
                    txn.extent_remove(&mut inode, TierId::Nvm, all).unwrap();
                    txn.free_inode(Ino(ino)).unwrap();
                    continue;
                }
                for _ in 0..4 {
                    let run = volume.allocate(1, None).unwrap()[0];
                    txn.extent_insert(&mut inode, TierId::Nvm, extent(r.below(500), run))
                        .unwrap();
                }
                inode.size = inode.blocks * 4096;
                txn.put_inode(&inode).unwrap();
            }
            txn.commit().unwrap();
            // Nothing is released: these readers do not pass epochs.
            if volume.space().free < 2000 {
                println!("stopped after {round} rounds");
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let space = volume.space();
    assert_eq!(volume.release_up_to(volume.txid()), space.pending);
    check(&volume.view());
}
