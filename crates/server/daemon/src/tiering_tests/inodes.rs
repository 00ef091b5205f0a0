//! Blocks of inodes that move below NVM, change, are cleaned, and come back.

use super::*;
use shale_format::inode::slot_of;

/// Where the block of an inode lies.
fn tier_of(volume: &Volume, ino: u64) -> Option<TierId> {
    let view = volume.view();
    let file = view.root().unwrap().inode_file;
    match view.map_block(&file, slot_of(Ino(ino)).0).unwrap() {
        Mapping::Data { addr, .. } => addr.tier(),
        _ => None,
    }
}

impl Stage {
    /// Makes files without content, all of them at once.
    pub(super) fn make_empty(&mut self, inos: std::ops::Range<u64>) {
        let volume = self.daemon.volume();
        let mut txn = volume.begin();
        let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
        for ino in inos.clone() {
            let (key, name) = name(volume, ino);
            let inode = Inode {
                ino,
                mode: 0o100_644,
                nlink: 1,
                ..Inode::free()
            };
            txn.put_inode(&inode).unwrap();
            txn.dir_insert(&mut root, key, Ino(ino), 8, &name).unwrap();
        }
        txn.put_inode(&root).unwrap();
        let done = txn.commit().unwrap();
        self.daemon.services().clients.publish(done.txid);
        self.content.extend(inos.map(|ino| (ino, Vec::new())));
        self.noted();
    }

    /// Gives a file without content an owner.
    pub(super) fn give(&mut self, ino: u64, uid: u8) {
        let mut txn = self.daemon.volume().begin();
        let mut inode = txn.inode(Ino(ino)).unwrap().unwrap();
        inode.uid = uid.into();
        txn.put_inode(&inode).unwrap();
        let done = txn.commit().unwrap();
        self.daemon.services().clients.publish(done.txid);
        self.content.insert(ino, vec![uid]);
        self.noted();
    }

    pub(super) fn demote(&self) -> u64 {
        self.daemon.demote_inodes().unwrap()
    }

    fn tier_of(&self, ino: u64) -> Option<TierId> {
        tier_of(self.daemon.volume(), ino)
    }
}

/// Inodes go down, change, go again; zones with them are cleaned; their files get data.
fn inodes_move(s: &mut Stage) {
    s.make_empty(16..80);
    assert_eq!(s.demote(), 4);
    assert_eq!(s.demote(), 0);
    assert_eq!(s.daemon.status_values().tiers[0].inode_bytes, 4 * 4096);
    assert_eq!(
        [16, 40, 79].map(|ino| s.tier_of(ino)),
        [Some(TierId::Ssd); 3]
    );
    s.give(20, 3);
    assert_eq!(s.tier_of(20), Some(TierId::Nvm));
    s.remove(33);
    for ino in 48..64 {
        s.remove(ino);
    }
    assert_eq!(s.tier_of(50), None);
    assert_eq!(s.demote(), 2, "both that changed go again");
    s.write(70, 0, 40, 70);
    assert_eq!(s.demote(), 0, "its file has data in NVM");
    s.daemon.migrate(None).unwrap();
    assert_eq!(s.demote(), 1);
    for round in 0..6 {
        s.write(17, 0, 60, 100 + round);
        s.daemon.migrate(None).unwrap();
        s.give(40, 5 + round);
        s.demote();
    }
    s.make_empty(80..90);
    s.demote();
    let erased = s.daemon.status_values().tiers[0].zones_erased;
    assert!(erased > 0, "no zone was erased");
    assert_eq!(contents(s.daemon.volume()).unwrap(), s.content);
}

/// A device with inodes on it is emptied and taken out, and at last all of them come up.
#[cfg(not(feature = "mutants"))]
fn inodes_leave_devices(s: &mut Stage) {
    s.make_empty(16..60);
    assert_eq!(s.demote(), 3);
    s.write(60, 0, 30, 60);
    s.daemon.migrate(None).unwrap();
    s.give(20, 9);
    s.demote();
    let volume = devices_go(s);
    assert_eq!(s.tier_of(16), Some(TierId::Nvm));
    assert!(!volume.has_inodes_below());
    s.give(30, 4);
    assert_eq!(contents(&volume).unwrap(), s.content);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_inodes_move_loses_nothing() {
    loses_nothing(inodes_move);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_inodes_leave_devices_loses_nothing() {
    loses_nothing(inodes_leave_devices);
}

#[test]
fn zones_with_inodes_are_emptied_with_one_look() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    s.make_empty(16..80);
    assert_eq!(s.demote(), 4);
    let shared = s.daemon.services().clone();
    let zones = s.daemon.volume().lower_zones(TierId::Ssd);
    let zone = zones.iter().find(|z| z.live == 4).unwrap();
    for looks in [1, 1] {
        let found = shared.tiering.in_zones(TierId::Ssd, &[*zone]).unwrap();
        let of_inodes: u64 = found.iter().filter(|w| w.ino == 0).map(|w| w.blocks).sum();
        assert_eq!(of_inodes, 4, "{found:?}");
        let counts = shared.tiering.counts();
        assert_eq!((counts.inode_scans, counts.backref_misses), (looks, 0));
    }
}

#[test]
fn an_inode_that_may_change_is_in_nvm_and_stays_there() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    s.make_empty(16..48);
    assert_eq!(s.demote(), 2);
    let shared = s.daemon.services().clone();
    let stays = shared.tiering.promote_inode(20).unwrap();
    assert_eq!(s.tier_of(20), Some(TierId::Nvm));
    assert_eq!(s.tier_of(40), Some(TierId::Ssd));
    assert_eq!(s.demote(), 0);
    drop(stays);
    s.give(21, 1);
    assert_eq!(s.demote(), 1);
    assert_eq!(s.tier_of(20), Some(TierId::Ssd));
}

#[test]
fn a_damaged_block_below_is_an_error_for_its_inodes_only() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    s.make_empty(16..48);
    assert_eq!(s.demote(), 2);
    let volume = s.daemon.volume().clone();
    let view = volume.view();
    let file = view.root().unwrap().inode_file;
    let Mapping::Data { addr, .. } = view.map_block(&file, FileBlock(1)).unwrap() else {
        panic!("not mapped");
    };
    let first = volume.lower_device_infos(TierId::Ssd)[0].place.first;
    let byte = LABEL_AREA_BYTES + (addr.index() - first) * BLOCK_BYTES as u64;
    s.memory[0].spoil(byte, &[0x55; BLOCK_BYTES]);
    assert!(view.inode(Ino(20)).is_err());
    assert_eq!(view.inode(Ino(40)).unwrap().unwrap().ino, 40);
    assert!(s.daemon.services().tiering.promote_inode(20).is_err());
    let named = s.daemon.status_values().bad_blocks;
    assert_eq!(named.len(), 1, "{named:?}");
    // Others are cleaned and listed all the same.
    s.write(50, 0, 30, 50);
    s.daemon.migrate(None).unwrap();
    for zone in volume.lower_zones(TierId::Ssd) {
        s.daemon
            .services()
            .tiering
            .in_zones(TierId::Ssd, &[zone])
            .unwrap();
    }
    assert!(s.daemon.services().tiering.holdings().is_ok());
    let scrubbed = s.daemon.scrub(&mut |_| std::ops::ControlFlow::Continue(()));
    assert!(scrubbed.complete && scrubbed.errors > 0, "{scrubbed:?}");
    let map = Arc::clone(view.map());
    let check = |below| {
        let options = CheckOptions {
            below,
            ..CheckOptions::default()
        };
        check(map.clone(), &[], &options, &mut |_| {})
    };
    let memory = |n: usize| -> Arc<dyn TierDevice> { s.memory[n].clone() };
    let report = check(Below::open(vec![(entry(0).uuid, memory(0))]));
    let about = |text: &str| report.findings.iter().any(|f| f.found.contains(text));
    assert!(about("16 to 31") && !about("32 to 47"), "{report}");
    assert!(!report.complete);
    let missing = check(Below::default());
    assert!(
        missing.findings.iter().any(|f| f.found.contains("missing")),
        "{missing}"
    );
}

#[cfg(feature = "mutants")]
#[test]
fn mistakes_in_moving_inodes_are_found() {
    are_found(
        &["inodes-flush", "inodes-feature", "lower-bitmap"],
        inodes_move,
    );
}
