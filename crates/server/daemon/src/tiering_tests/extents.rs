//! Leaves of files' extents that move below NVM, change, are cleaned, and come back.

use super::directories::{Rest, byte_of};
use super::*;
use crate::tiering::Of;
use shale_format::BlockAddr;
use shale_volume::leaves_below;
use std::ops::ControlFlow;

const FILES: std::ops::Range<u64> = 16..19;

impl Stage {
    /// Writes a file in every second block, `blocks` times.
    fn scatter(&mut self, ino: u64, blocks: u64, byte: u8) {
        let volume = self.daemon.volume().clone();
        let runs = volume.allocate(blocks, None).unwrap();
        let mut txn = volume.begin();
        let mut inode = Inode {
            ino,
            mode: 0o100_644,
            nlink: 1,
            size: blocks * 2 * BLOCK_BYTES as u64,
            ..Inode::free()
        };
        let all = runs.iter().flat_map(|r| (0..r.len).map(|n| r.addr.plus(n)));
        for (n, addr) in (0..).zip(all) {
            volume.write_at(addr, 0, &[byte; BLOCK_BYTES]).unwrap();
            let extent = Extent {
                file_block: n * 2,
                addr: addr.raw(),
                len: 1,
                flags: 0,
            };
            txn.extent_insert(&mut inode, TierId::Nvm, extent).unwrap();
        }
        txn.put_inode(&inode).unwrap();
        let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
        let (key, name) = name(&volume, ino);
        txn.dir_insert(&mut root, key, Ino(ino), 8, &name).unwrap();
        txn.put_inode(&root).unwrap();
        let done = txn.commit().unwrap();
        self.daemon.services().clients.publish(done.txid);
        self.content.insert(ino, [byte, 0].repeat(blocks as usize));
        self.noted();
    }

    /// Writes blocks of a file as a digest would under a lease on it.
    fn change(&mut self, ino: u64, at: u64, blocks: u64, byte: u8) {
        let shared = self.daemon.services().clone();
        let stays = shared.tiering.promote_inode(ino).unwrap();
        assert_eq!(self.below(ino), 0, "leaves are in NVM");
        self.write(ino, at, blocks, byte);
        drop(stays);
    }

    fn file(&self, ino: u64) -> Inode {
        let view = self.daemon.volume().view();
        view.inode(Ino(ino)).unwrap().unwrap()
    }

    /// Leaves of a file below NVM.
    fn below(&self, ino: u64) -> u64 {
        leaves_below(&self.file(ino))
    }

    /// All data goes down, and then the leaves of extents.
    fn demote_all(&self) -> u64 {
        self.daemon.migrate(None).unwrap();
        self.daemon.demote_extents().unwrap()
    }
}

/// Leaves of extents go down, change, go again, are cleaned with data, and are removed.
fn extents_move(s: &mut Stage) {
    for (ino, blocks) in FILES.zip([180, 20, 20]) {
        s.scatter(ino, blocks, ino as u8);
    }
    let moved = s.demote_all();
    assert_eq!(moved, 4, "two of the first file, one of each other");
    assert_eq!(s.daemon.status_values().tiers[0].extent_bytes, moved * 4096);
    assert_eq!(FILES.map(|ino| s.below(ino)).sum::<u64>(), 4);
    s.change(16, 3, 2, 100);
    assert_eq!((s.below(16), s.below(17)), (0, 1));
    assert_eq!(s.daemon.demote_extents().unwrap(), 0, "it has data in NVM");
    assert_eq!(s.demote_all(), 2);
    for round in 0..6 {
        s.write(30, 0, 60, 100 + round);
        s.daemon.migrate(None).unwrap();
        s.change(17, u64::from(round), 1, 110 + round);
        s.demote_all();
    }
    let erased = s.daemon.status_values().tiers[0].zones_erased;
    assert!(erased > 0, "no zone was erased");
    assert!(s.daemon.demote_inodes().unwrap() > 0);
    s.change(18, 1, 1, 120);
    let stays = s.daemon.services().clone();
    let stays = stays.tiering.promote_inode(16).unwrap();
    s.remove(16);
    drop(stays);
    assert_eq!(contents(s.daemon.volume()).unwrap(), s.content);
}

/// A device with leaves on it is emptied and taken out, and at last all of them come up.
#[cfg(not(feature = "mutants"))]
fn extents_leave_devices(s: &mut Stage) {
    for (ino, blocks) in FILES.zip([180, 20, 20]) {
        s.scatter(ino, blocks, ino as u8);
    }
    assert_eq!(s.demote_all(), 4);
    let volume = devices_go(s);
    assert_eq!(FILES.map(|ino| s.below(ino)).sum::<u64>(), 0);
    assert_eq!(contents(&volume).unwrap(), s.content);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_extents_move_loses_nothing() {
    loses_nothing(extents_move);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_extents_leave_devices_loses_nothing() {
    loses_nothing(extents_leave_devices);
}

#[cfg(feature = "mutants")]
#[test]
fn mistakes_in_moving_extents_are_found() {
    are_found(&["directories-flush", "extents-feature"], extents_move);
}

#[test]
fn extents_that_may_change_are_in_nvm_and_stay_there() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    let shared = s.daemon.services().clone();
    let stays = shared.tiering.promote_inode(16).unwrap();
    assert_eq!((s.below(16), s.below(17)), (0, 1));
    assert_eq!(s.daemon.demote_extents().unwrap(), 0);
    drop(stays);
    assert_eq!(s.daemon.demote_extents().unwrap(), 2);
    drop(shared.tiering.promote_inode(16).unwrap());
    let some = shared
        .tiering
        .demote_leaves(Of::Files, u64::MAX, true)
        .unwrap();
    assert_eq!(some, 0, "what came back stays for a while");
}

#[test]
fn what_is_pinned_or_an_orphan_keeps_its_leaves_and_inodes_go_after_them() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    for ino in FILES {
        s.scatter(ino, 20, ino as u8);
    }
    s.daemon.migrate(None).unwrap();
    let mut txn = s.daemon.volume().begin();
    let mut pinned = txn.inode(Ino(16)).unwrap().unwrap();
    pinned.set_pin(Some(TierId::Nvm));
    txn.put_inode(&pinned).unwrap();
    let mut orphan = txn.inode(Ino(17)).unwrap().unwrap();
    orphan.flags |= shale_format::inode::flag::ORPHAN;
    txn.put_inode(&orphan).unwrap();
    let done = txn.commit().unwrap();
    s.daemon.services().clients.publish(done.txid);
    assert_eq!(s.daemon.demote_extents().unwrap(), 1);
    assert_eq!(FILES.map(|ino| s.below(ino)).collect::<Vec<_>>(), [0, 0, 1]);
    s.scatter(40, 20, 40);
    s.daemon.migrate(None).unwrap();
    let demote = || s.daemon.demote_inodes().unwrap();
    assert_eq!(demote(), 0, "its leaf goes first");
    assert_eq!(s.daemon.demote_extents().unwrap(), 1);
    assert_eq!(demote(), 1);
}

/// Three files whose leaves lie below.
fn demoted(dir: &Path) -> Stage {
    let mut s = stage(dir);
    for (ino, blocks) in FILES.zip([180, 20, 20]) {
        s.scatter(ino, blocks, ino as u8);
    }
    assert_eq!(s.demote_all(), 4);
    s
}

#[test]
fn leaves_of_extents_are_distinguished_from_data_where_zones_are_emptied() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    let shared = s.daemon.services().clone();
    for _ in 0..2 {
        let (mut leaves, mut data) = (0, 0);
        for zone in s.daemon.volume().lower_zones(TierId::Ssd) {
            let found = shared.tiering.in_zones(TierId::Ssd, &[zone]).unwrap();
            let all: u64 = found.iter().map(|w| w.blocks).sum();
            assert_eq!(all, zone.live, "{zone:?}");
            let of = |leaf| found.iter().filter(move |w| w.leaf == leaf);
            leaves += of(true).map(|w| w.blocks).sum::<u64>();
            data += of(false).map(|w| w.blocks).sum::<u64>();
        }
        assert_eq!((leaves, data), (4, 220));
        let counts = shared.tiering.counts();
        assert_eq!((counts.inode_scans, counts.backref_misses), (1, 0));
    }
    let held = shared.tiering.holdings().unwrap();
    let bytes: u64 = held.iter().map(|h| h.bytes).sum();
    assert_eq!(bytes, 224 * 4096, "{held:?}");
}

/// What cleaning a zone changes comes back to NVM, and no more in one batch than there is space for.
#[test]
fn cleaning_brings_back_what_it_changes_in_bounds() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    let files = 16..76;
    for ino in files.clone() {
        s.scatter(ino, 3, ino as u8);
    }
    assert_eq!(s.demote_all(), 60);
    let shared = s.daemon.services().clone();
    let zones = s.daemon.volume().lower_zones(TierId::Ssd);
    let mut wanted = Vec::new();
    for zone in zones.iter().filter(|z| z.live > 0) {
        wanted.extend(shared.tiering.in_zones(TierId::Ssd, &[*zone]).unwrap());
    }
    wanted.retain(|w| !w.leaf);
    assert_eq!(wanted.iter().map(|w| w.blocks).sum::<u64>(), 180);
    let guard = shared.tiering.lock_mover();
    let batches = shared.tiering.counts().batches;
    let moved = shared.tiering.move_to(&wanted, TierId::Hdd).unwrap();
    drop(guard);
    assert_eq!(moved, 180);
    // Each leaf counts for two, of 64.
    let batches = shared.tiering.counts().batches - batches;
    assert!((2..12).contains(&batches), "{batches} batches");
    assert_eq!(files.map(|ino| s.below(ino)).sum::<u64>(), 0);
    assert_eq!(contents(s.daemon.volume()).unwrap(), s.content);
}

fn leaf(s: &Stage, n: usize) -> BlockAddr {
    s.leaves(16)[n]
}

#[test]
fn a_damaged_leaf_of_extents_is_reported_and_the_rest_goes_on() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    let bad = leaf(&s, 0);
    s.memory[0].spoil(byte_of(&s, bad) + 2000, &[0x55; 8]);
    let shared = s.daemon.services().clone();
    let view = s.daemon.volume().view();
    assert!(view.map_block(&s.file(16), FileBlock(0)).is_err());
    assert!(view.map_block(&s.file(16), FileBlock(358)).is_ok());
    assert!(shared.tiering.promote_inode(16).is_err());
    assert!(shared.tiering.promote_inode(17).is_ok());
    let named = s.daemon.status_values().bad_blocks;
    assert_eq!((named.len(), named[0].block), (1, bad.index()), "{named:?}");
    let scrubbed = s.daemon.scrub(&mut |_| ControlFlow::Continue(()));
    let about = |d: &crate::scrub::Damage| d.object.contains("file 16");
    let found = scrubbed.damage.iter().any(about);
    assert!(scrubbed.complete && found, "{scrubbed:?}");
    // Others are cleaned and listed all the same.
    let mut wanted = Vec::new();
    for zone in s.daemon.volume().lower_zones(TierId::Ssd) {
        wanted.extend(shared.tiering.in_zones(TierId::Ssd, &[zone]).unwrap());
    }
    assert!(shared.tiering.holdings().is_ok());
    let guard = shared.tiering.lock_mover();
    assert!(shared.tiering.move_to(&wanted, TierId::Hdd).unwrap() > 40);
    drop(guard);
    assert_eq!(leaf(&s, 0), bad);
}

#[test]
fn of_a_damaged_leaf_of_extents_repair_keeps_the_others() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    s.memory[0].spoil(byte_of(&s, leaf(&s, 0)) + 2000, &[0x55; 8]);
    let rest = Rest::of(&s, |_| ());
    let report = rest.checked(0..2);
    let found =
        |f: &shale_check::Finding| f.what.contains("extents") && f.object.contains("file 16");
    assert!(report.findings.iter().any(found), "{report}");
    let missing = rest.checked(1..2);
    let named = missing.findings.iter().any(|f| f.found.contains("missing"));
    assert!(named, "{missing}");
    let why = rest.refused(1..2);
    assert!(why.contains("missing"), "{why}");
    let (report, found) = rest.mended();
    assert!(report.mended.iter().any(|m| m.lost), "{report}");
    assert_eq!(
        (&found[&17], &found[&18]),
        (&s.content[&17], &s.content[&18])
    );
    let has = |all: &[u8]| all.iter().filter(|&&b| b == 16).count();
    let (had, has) = (has(&s.content[&16]), has(&found[&16]));
    assert!(has < had && has > 5, "{has} of {had}");
}

/// A leaf has a checksum of its own, too, so none is lost with that in NVM; nor with the root block.
#[test]
fn lost_checksums_of_leaves_and_a_lost_root_block_lose_no_extents() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    let place = s.daemon.volume().lower_device_infos(TierId::Ssd)[0].place;
    let at = (leaf(&s, 0).index() - place.first) as usize;
    let sum = place.tables().sums_block as usize * BLOCK_BYTES + at * 4;
    let journal = s.daemon.volume().superblock().journal_block as usize * BLOCK_BYTES;
    let root = shale_format::superblock::ROOT_BLOCK as usize * BLOCK_BYTES;
    for (from, bytes) in [(sum, 4), (root, BLOCK_BYTES)] {
        let rest = Rest::of(&s, |nvm| {
            // A later batch lies there: the last one is not put in its place once more.
            nvm[journal..][..64].fill(0);
            nvm[from..][..bytes].fill(0x55);
        });
        let (report, found) = rest.mended();
        assert!(report.mended.iter().all(|m| !m.lost), "{report}");
        assert_eq!(found, s.content, "{report}");
    }
}
