//! Leaves of directories that move below NVM, change, are cleaned, and come back.

use super::*;
use crate::tiering::Of;
use shale_check::repair;
use shale_format::DirKey;
use shale_volume::Txn;
use std::ops::ControlFlow;

/// The file that all names are of.
const FILE: u64 = 16;
const DIRS: std::ops::Range<u64> = 32..36;

fn name_in(dir: u64, n: u64) -> Vec<u8> {
    format!("{dir} {n:>0180}").into_bytes()
}

/// The names of a directory in a row; of a file none.
pub(super) fn names_of(view: &View, dir: &Inode) -> Result<Vec<u8>, String> {
    let mut names = Vec::new();
    if !dir.is_dir() {
        return Ok(names);
    }
    let read = view.entries(dir, DirKey(0), &mut |e| {
        names.extend_from_slice(&e.name);
        ControlFlow::Continue(())
    });
    read.map_err(|e| format!("directory {}: {e}", dir.ino))?;
    Ok(names)
}

impl Stage {
    /// Makes a file and empty directories.
    pub(super) fn make_dirs(&mut self) {
        let volume = self.daemon.volume().clone();
        let mut txn = volume.begin();
        let mut root = txn.inode(Ino::ROOT).unwrap().unwrap();
        for ino in std::iter::once(FILE).chain(DIRS) {
            let (key, name) = name(&volume, ino);
            let is_dir = ino != FILE;
            let inode = Inode {
                ino,
                mode: if is_dir { 0o040_755 } else { 0o100_644 },
                nlink: 1 + u32::from(is_dir),
                parent: u64::from(is_dir),
                ..Inode::free()
            };
            txn.put_inode(&inode).unwrap();
            let kind = if is_dir { 4 } else { 8 };
            txn.dir_insert(&mut root, key, Ino(ino), kind, &name)
                .unwrap();
            root.nlink += u32::from(is_dir);
            self.content.insert(ino, Vec::new());
        }
        txn.put_inode(&root).unwrap();
        self.done(txn);
    }

    fn done(&mut self, txn: Txn<'_>) {
        let done = txn.commit().unwrap();
        self.daemon.services().clients.publish(done.txid);
        self.noted();
    }

    /// Makes names in a directory or removes them, as a digest would under a lease on it.
    pub(super) fn names(&mut self, dir: u64, numbers: impl Iterator<Item = u64>, there: bool) {
        let volume = self.daemon.volume().clone();
        let shared = self.daemon.services().clone();
        let stays = shared.tiering.promote_inode(dir).unwrap();
        let view = volume.view();
        let mut txn = volume.begin();
        let mut inode = txn.inode(Ino(dir)).unwrap().unwrap();
        assert_eq!(inode.root[0].len, 0, "leaves are in NVM");
        let mut file = txn.inode(Ino(FILE)).unwrap().unwrap();
        for n in numbers {
            let name = name_in(dir, n);
            let key = view.key_group(&name);
            if there {
                txn.dir_insert(&mut inode, key, Ino(FILE), 8, &name)
                    .unwrap();
                file.nlink += 1;
            } else {
                txn.dir_remove(&mut inode, key, &name).unwrap();
                file.nlink -= 1;
            }
        }
        txn.put_inode(&inode).unwrap();
        txn.put_inode(&file).unwrap();
        let done = txn.commit().unwrap();
        shared.clients.publish(done.txid);
        let now = contents(&volume).unwrap()[&dir].clone();
        self.content.insert(dir, now);
        self.noted();
        drop(stays);
    }

    fn demote_dirs(&self) -> u64 {
        self.daemon.demote_directories().unwrap()
    }

    pub(super) fn leaves(&self, dir: u64) -> Vec<shale_format::BlockAddr> {
        let view = self.daemon.volume().view();
        view.leaves(&view.inode(Ino(dir)).unwrap().unwrap())
            .unwrap()
    }

    fn is_below(&self, dir: u64) -> bool {
        let mut leaves = self.leaves(dir).into_iter();
        leaves.all(|a| a.tier() != Some(TierId::Nvm))
    }
}

/// Directories go down, change, go again, are cleaned with data, and are removed.
fn directories_move(s: &mut Stage) {
    s.make_dirs();
    for dir in DIRS {
        s.names(dir, 0..60, true);
    }
    let moved = s.demote_dirs();
    assert!(moved >= 12, "{moved}");
    assert_eq!(
        s.daemon.status_values().tiers[0].directory_bytes,
        moved * 4096
    );
    assert!(DIRS.into_iter().all(|dir| s.is_below(dir)));
    s.names(32, 60..63, true);
    assert!(!s.is_below(32) && s.is_below(33));
    s.names(33, (0..60).step_by(2), false);
    assert!(s.demote_dirs() > 0);
    for round in 0..6 {
        s.write(17, 0, 60, 100 + round);
        s.daemon.migrate(None).unwrap();
        s.names(34, [100 + u64::from(round)].into_iter(), true);
        s.demote_dirs();
    }
    let erased = s.daemon.status_values().tiers[0].zones_erased;
    assert!(erased > 0, "no zone was erased");
    s.names(35, 0..60, false);
    assert_eq!(contents(s.daemon.volume()).unwrap(), s.content);
}

/// A device with leaves on it is emptied and taken out, and at last all of them come up.
#[cfg(not(feature = "mutants"))]
fn directories_leave_devices(s: &mut Stage) {
    s.make_dirs();
    for dir in DIRS {
        s.names(dir, 0..40, true);
    }
    assert!(s.demote_dirs() > 0);
    s.write(60, 0, 30, 60);
    s.daemon.migrate(None).unwrap();
    let volume = devices_go(s);
    assert!(!DIRS.into_iter().any(|dir| s.is_below(dir)));
    assert_eq!(contents(&volume).unwrap(), s.content);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_directories_move_loses_nothing() {
    loses_nothing(directories_move);
}

#[cfg(not(feature = "mutants"))]
#[test]
fn a_power_cut_while_directories_leave_devices_loses_nothing() {
    loses_nothing(directories_leave_devices);
}

#[test]
fn a_directory_that_may_change_is_in_nvm_and_stays_there() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    s.make_dirs();
    s.names(32, 0..40, true);
    s.names(33, 0..40, true);
    assert!(s.demote_dirs() > 0);
    let shared = s.daemon.services().clone();
    let stays = shared.tiering.promote_inode(32).unwrap();
    assert!(!s.is_below(32) && s.is_below(33));
    assert_eq!(s.demote_dirs(), 0);
    drop(stays);
    assert!(s.demote_dirs() > 0 && s.is_below(32));
}

#[test]
fn zones_with_leaves_are_emptied_with_one_look() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    s.make_dirs();
    s.names(32, 0..40, true);
    let moved = s.demote_dirs();
    let shared = s.daemon.services().clone();
    let zones = s.daemon.volume().lower_zones(TierId::Ssd);
    let zone = zones.iter().find(|z| z.live == moved).unwrap();
    for _ in 0..2 {
        let found = shared.tiering.in_zones(TierId::Ssd, &[*zone]).unwrap();
        let leaves: u64 = found.iter().filter(|w| w.leaf).map(|w| w.blocks).sum();
        assert_eq!(leaves, moved, "{found:?}");
        let counts = shared.tiering.counts();
        assert_eq!((counts.inode_scans, counts.backref_misses), (1, 0));
    }
}

/// Where a leaf lies on flash.
pub(super) fn byte_of(s: &Stage, addr: shale_format::BlockAddr) -> u64 {
    let first = s.daemon.volume().lower_device_infos(TierId::Ssd)[0]
        .place
        .first;
    LABEL_AREA_BYTES + (addr.index() - first) * BLOCK_BYTES as u64
}

/// What a volume holds, at rest.
pub(super) struct Rest {
    map: Arc<Map>,
    devices: [Arc<MemoryBlocks>; 2],
}

impl Rest {
    pub(super) fn of(s: &Stage, spoil: impl FnOnce(&mut [u8])) -> Rest {
        let mut nvm = vec![0; NVM_BYTES as usize];
        s.daemon.volume().view().map().load(0, &mut nvm);
        spoil(&mut nvm);
        let map = Arc::new(Map::anonymous(nvm.len()).unwrap());
        map.store(0, &nvm);
        Rest {
            map,
            devices: [s.memory[0].clone(), s.memory[1].clone()],
        }
    }

    /// With these devices.
    fn options(&self, n: std::ops::Range<usize>) -> CheckOptions {
        let device = |n: usize| -> Arc<dyn TierDevice> { self.devices[n].clone() };
        CheckOptions {
            below: Below::open(n.map(|n| (entry(n).uuid, device(n))).collect()),
            ..CheckOptions::default()
        }
    }

    pub(super) fn checked(&self, n: std::ops::Range<usize>) -> shale_check::Report {
        check(self.map.clone(), &[], &self.options(n), &mut |_| {})
    }

    /// Why it is not repaired with these devices.
    pub(super) fn refused(&self, n: std::ops::Range<usize>) -> String {
        let refused = repair(&self.map, &[], &self.options(n), &mut |_| {});
        refused.unwrap_err().to_string()
    }

    /// Repairs it: it is whole then, and a second repair finds nothing. Gives the report, and what
    /// is there.
    pub(super) fn mended(&self) -> (shale_check::RepairReport, Content) {
        let repaired = || repair(&self.map, &[], &self.options(0..2), &mut |_| {}).unwrap();
        let report = repaired();
        assert!(report.clean() && !report.mended.is_empty(), "{report}");
        let again = repaired();
        assert!(again.mended.is_empty(), "{again}");
        let lower = LowerDevices {
            ssd: vec![self.devices[0].clone()],
            hdd: vec![self.devices[1].clone()],
        };
        let volume = Volume::open_with(self.map.clone(), &lower).unwrap();
        (report, contents(&volume).unwrap())
    }
}

/// Two directories whose leaves lie below.
fn demoted(dir: &Path) -> Stage {
    let mut s = stage(dir);
    s.make_dirs();
    s.names(32, 0..60, true);
    s.names(33, 0..60, true);
    assert!(s.demote_dirs() > 0);
    s
}

#[test]
fn a_damaged_leaf_below_is_reported() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    let leaf = s.leaves(32)[1];
    s.memory[0].spoil(byte_of(&s, leaf) + 2000, &[0x55; 8]);
    let shared = s.daemon.services().clone();
    assert!(shared.tiering.promote_inode(32).is_err());
    assert!(shared.tiering.promote_inode(33).is_ok());
    let named = s.daemon.status_values().bad_blocks;
    assert_eq!(
        (named.len(), named[0].block),
        (1, leaf.index()),
        "{named:?}"
    );
    let scrubbed = s.daemon.scrub(&mut |_| ControlFlow::Continue(()));
    let about = |d: &crate::scrub::Damage| d.object.contains("file 32");
    let found = scrubbed.damage.iter().any(about);
    assert!(scrubbed.complete && found, "{scrubbed:?}");
    // Others are cleaned and listed all the same.
    for zone in s.daemon.volume().lower_zones(TierId::Ssd) {
        shared.tiering.in_zones(TierId::Ssd, &[zone]).unwrap();
    }
    assert!(shared.tiering.holdings().is_ok());
}

#[test]
fn of_a_damaged_leaf_below_repair_keeps_the_others() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    s.memory[0].spoil(byte_of(&s, s.leaves(32)[1]) + 2000, &[0x55; 8]);
    let rest = Rest::of(&s, |_| ());
    let report = rest.checked(0..2);
    let found =
        |f: &shale_check::Finding| f.what.contains("entries") && f.object.contains("file 32");
    assert!(
        !report.complete && report.findings.iter().any(found),
        "{report}"
    );
    let missing = rest.checked(1..2);
    let named = missing.findings.iter().any(|f| f.found.contains("missing"));
    assert!(named, "{missing}");
    let why = rest.refused(1..2);
    assert!(why.contains("missing"), "{why}");
    let (report, found) = rest.mended();
    assert!(report.mended.iter().any(|m| m.lost), "{report}");
    assert_eq!(found[&33], s.content[&33]);
    let names = |all: &[u8]| all.len() / name_in(32, 0).len();
    let (had, has) = (names(&s.content[&32]), names(&found[&32]));
    assert!(has < had && has > had / 3, "{has} of {had}");
}

/// A leaf has a checksum of its own, too, so none is lost with that in NVM; nor with the root block.
#[test]
fn lost_checksums_of_leaves_and_a_lost_root_block_lose_no_names() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    let place = s.daemon.volume().lower_device_infos(TierId::Ssd)[0].place;
    let at = (s.leaves(32)[0].index() - place.first) as usize;
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

#[cfg(feature = "mutants")]
#[test]
fn mistakes_in_moving_directories_are_found() {
    are_found(
        &["directories-flush", "directories-feature"],
        directories_move,
    );
}

/// What came back for one lease does not go for the next.
#[test]
fn what_came_back_stays_for_a_while() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let s = demoted(dir.path());
    let shared = s.daemon.services().clone();
    drop(shared.tiering.promote_inode(32).unwrap());
    assert_eq!(
        shared
            .tiering
            .demote_leaves(Of::Directories, u64::MAX, true)
            .unwrap(),
        0
    );
    assert!(!s.is_below(32));
    assert!(s.demote_dirs() > 0, "later it goes");
    assert!(s.is_below(32));
}
