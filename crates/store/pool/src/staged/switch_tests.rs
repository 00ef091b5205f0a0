//! Volumes that get NVM, and that lose it.

use super::area_place::AreaPlace;
use super::from_nvm::{NvmRemoved, find_place, has_logs, remove_nvm};
use super::to_nvm::{NvmAdded, add_nvm, is_in_checkpoint};
use super::*;
use crate::device_assembly::{self, Expected, Started};
use crate::devices::LowerTiers;
use crate::error::Result;
use crate::growth;
use crate::labels;
use crate::nvm_dir::{NvmLock, open_nvm, volume_files};
use crate::scan::Scan;
use crate::test_device::device;
use crate::volume_file::{NvmEntry, VolumeFile, shared_memory_dir};
use crate::{MakeOptions, StagedSizes, make_volume};
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::superblock::{SUPER_BLOCK, Superblock};
use shale_format::{BlockAddr, Durability, FileBlock, Ino, TierId};
use shale_nvm::{Map, MapOptions, Path as CountPath};
use shale_sys::SystemClock;
use shale_volume::{Extent, Inode, Run, View, Volume, WriteStream};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const SSD_BYTES: u64 = 200 * MIB;
const BLOCK: u64 = BLOCK_BYTES as u64;

struct Place {
    dir: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        // A process that was killed between its last two steps leaves a lock.
        if let Ok(file) = VolumeFile::load(&self.at("V.toml")) {
            let _ = std::fs::remove_dir_all(shared_memory_dir(&file.uuid_bytes()));
        }
    }
}

/// A volume as a daemon starts it, without recovery.
struct Mounted {
    file: VolumeFile,
    map: Arc<Map>,
    started: Started,
    lock: NvmLock,
}

impl Place {
    fn new(nvm: Option<u64>) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let options = MakeOptions {
            file: at("V.toml"),
            name: "v".to_owned(),
            nvm: nvm.map(|bytes| NvmEntry::new(at("nvm"), bytes)),
            staged: StagedSizes {
                memory_bytes: nvm.is_none().then_some(NVM_BYTES_MIN),
                staging_bytes: nvm.is_none().then_some(32 * MIB),
            },
            lower: LowerTiers {
                ssd: vec![device(&at("ssd.img"), SSD_BYTES)],
                hdd: vec![],
            },
            log_bytes: LOG_BYTES_MIN,
            durability: Durability::Buffered,
            owner_uid: 0,
            owner_gid: 0,
            root_mode: 0o755,
            trusted_uids: vec![],
            force: false,
        };
        make_volume(&options, &SystemClock::new()).unwrap();
        Place { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self) -> VolumeFile {
        VolumeFile::load(&self.at("V.toml")).unwrap()
    }

    fn add(&self, bytes: u64) -> Result<NvmAdded> {
        self.add_to("nvm", bytes, &|_| ())
    }

    fn add_to(&self, dir: &str, bytes: u64, reached: &dyn Fn(&'static str)) -> Result<NvmAdded> {
        let entry = NvmEntry::new(self.at(dir), bytes);
        add_nvm(&self.at("V.toml"), &entry, &mut |_, _| (), reached)
    }

    fn remove(&self, reached: &dyn Fn(&'static str)) -> Result<NvmRemoved> {
        let staging = Some(32 * MIB);
        remove_nvm(&self.at("V.toml"), staging, &mut |_, _| (), reached)
    }

    fn area_place(&self) -> AreaPlace {
        assert!(!has_logs(&self.at("V.toml")).unwrap());
        find_place(&self.at("V.toml"), Some(32 * MIB)).unwrap()
    }

    fn mount(&self) -> Mounted {
        growth::resolve(&self.file(), Some(&self.at("V.toml"))).unwrap();
        self.mount_unresolved()
    }

    /// As by a version that knows no notes of areas.
    fn mount_unresolved(&self) -> Mounted {
        let file = self.file();
        let (map, lock) = match file.is_staged() {
            true => {
                let restored = restore(&file, &MapOptions::new()).unwrap();
                (restored.map, restored.lock)
            }
            false => {
                let map = open_nvm(file.nvm_dir(), file.nvm_bytes(), &MapOptions::new());
                (map.unwrap(), NvmLock::take(file.nvm_dir()).unwrap())
            }
        };
        let map = Arc::new(map);
        let starts = labels::check(file.nvm_dir(), &file.uuid_bytes(), map.pieces().len());
        let superblock = *View::open_head(map.clone()).unwrap().0.superblock();
        file.check_superblock(&superblock).unwrap();
        let expected = Expected {
            file: &file,
            path: None,
            degraded: false,
        };
        let started = device_assembly::start(&expected, &map, &superblock, starts.unwrap());
        Mounted {
            started: started.unwrap(),
            file,
            map,
            lock,
        }
    }

    /// Without a volume file one volume is found, on NVM or on the SSD alone.
    fn is_found_once(&self, step: &str) {
        let places = [self.at("nvm"), self.at("ssd.img")];
        let found = Scan::of(&places, &[], None).volumes;
        let count = found[0].nvm.len() + found[0].areas.len();
        assert_eq!((found.len(), count), (1, 1), "{step}: {found:?}");
        assert!(found[0].head().is_some(), "{step}");
    }

    /// Whether all is where it was, on a volume with NVM or without.
    fn holds(&self, runs: &[(u8, Run)], with_nvm: bool) {
        assert_eq!(self.file().is_staged(), !with_nvm);
        let mounted = self.mount();
        for (byte, run) in runs {
            let mut there = vec![0; run.len as usize * BLOCK_BYTES];
            mounted
                .volume()
                .view()
                .read_blocks(run.addr, &mut there)
                .unwrap();
            assert!(there.iter().all(|b| b == byte), "{run:?}");
        }
        mounted.unmount();
    }
}

impl Mounted {
    fn volume(&self) -> &Volume {
        &self.started.volume
    }

    /// As an unmount: without NVM, with a checkpoint.
    fn unmount(self) {
        let txid = self.volume().txid().0;
        if let Some(device) = self.started.area_device.clone() {
            let area = open_area(&self.file, device).unwrap();
            area.compare(&mut |page, into| *into = pages::load(&self.map, page));
            let path = &self.file.staged.as_ref().unwrap().device;
            pages::checkpoint(path, &area, &self.map, &[], (txid, true)).unwrap();
            remove_memory(self.file.nvm_dir(), self.lock).unwrap();
        }
    }

    /// A file of so many blocks on the SSD, which have this byte.
    fn fill(&self, ino: u64, byte: u8, blocks: u64) -> Vec<(u8, Run)> {
        let volume = self.volume();
        let mut inode = Inode::free();
        (inode.ino, inode.mode, inode.nlink) = (ino, 0o100_644, 1);
        (inode.generation, inode.size) = (1, blocks * BLOCK);
        let (mut done, mut runs) = (0, Vec::new());
        while done < blocks {
            let run = volume.allocate_lower(TierId::Ssd, WriteStream::Cold, blocks - done, false);
            let run = run.unwrap();
            let bytes = vec![byte; run.len as usize * BLOCK_BYTES];
            volume.write_lower(run, &bytes).unwrap();
            volume.flush_lower(TierId::Ssd).unwrap();
            let mut txn = volume.begin();
            let extent = Extent {
                file_block: done,
                addr: run.addr.raw(),
                len: run.len as u32,
                flags: 0,
            };
            txn.extent_insert(&mut inode, TierId::Ssd, extent).unwrap();
            txn.put_inode(&inode).unwrap();
            txn.commit().unwrap();
            done += run.len;
            runs.push((byte, run));
        }
        runs
    }

    fn forget(&self, ino: u64) {
        let mut txn = self.volume().begin();
        let mut inode = txn.inode(Ino(ino)).unwrap().unwrap();
        let all = FileBlock(0)..FileBlock(u64::MAX);
        txn.extent_remove(&mut inode, TierId::Ssd, all).unwrap();
        txn.free_inode(Ino(ino)).unwrap();
        txn.commit().unwrap();
    }
}

/// What a process that is killed at a step has done.
fn cut_at(step: &'static str, work: impl FnOnce(&dyn Fn(&'static str))) {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let cut = catch_unwind(AssertUnwindSafe(|| work(&|at| assert!(at != step))));
    std::panic::set_hook(quiet);
    assert!(cut.is_err(), "{step} was not reached");
}

/// A volume without NVM, and with a file of 20 MiB.
fn filled() -> (Place, Vec<(u8, Run)>) {
    let place = Place::new(None);
    let mounted = place.mount();
    let runs = mounted.fill(20, 7, 20 * MIB / BLOCK);
    mounted.unmount();
    (place, runs)
}

#[test]
fn a_volume_gets_nvm_and_loses_it_and_keeps_all() {
    let (place, mut runs) = filled();
    let old = std::fs::read_to_string(place.at("V.toml")).unwrap();
    assert!(is_in_checkpoint(&place.file()).unwrap());
    let added = place.add(36 * MIB).unwrap();
    let area = place.area_place().layout();
    assert_eq!(
        (added.memory_bytes, added.size_bytes),
        (NVM_BYTES_MIN, 36 * MIB)
    );
    assert!(added.tier_gained_bytes > 80 * MIB, "{added:?}");
    place.holds(&runs, true);
    assert!(!place.at("nvm/copying").exists());

    // An old volume file leads nowhere.
    let new = std::fs::read_to_string(place.at("V.toml")).unwrap();
    std::fs::write(place.at("V.toml"), old).unwrap();
    let why = restore(&place.file(), &MapOptions::new()).unwrap_err();
    assert!(why.to_string().contains("no header is there"), "{why}");
    let dir = place.file().nvm_dir().to_path_buf();
    remove_memory(&dir, NvmLock::take(&dir).unwrap()).unwrap();
    std::fs::write(place.at("V.toml"), new).unwrap();

    // Zones where the area was hold files.
    let mounted = place.mount();
    runs.extend(mounted.fill(30, 9, 100 * MIB / BLOCK));
    let last = runs.last().unwrap().1.addr.index() * BLOCK;
    assert!(last > 100 * MIB, "{last}");
    drop(mounted);
    place.holds(&runs, true);
    let why = place.remove(&|_| ()).unwrap_err().to_string();
    let need = area.bytes().to_string();
    assert!(why.contains(&format!("needs {need} bytes")), "{why}");
    assert!(why.contains("are free there"), "{why}");
    place.holds(&runs, true);
    let mounted = place.mount();
    mounted.forget(30);
    drop(mounted);
    runs.retain(|(byte, _)| *byte == 7);
    let removed = place.remove(&|_| ()).unwrap();
    assert_eq!(removed.place.memory_bytes, 36 * MIB);
    assert!(removed.tier_lost_bytes > 0 && !place.at("nvm").exists());
    place.holds(&runs, false);
    // And once more.
    place.add(36 * MIB).unwrap();
    place.holds(&runs, true);
}

#[test]
fn what_is_refused_changes_nothing() {
    let (place, runs) = filled();
    std::fs::create_dir(place.at("full")).unwrap();
    std::fs::write(place.at("full/mine"), b"x").unwrap();
    std::fs::write(place.at("a-file"), b"x").unwrap();
    for (to, bytes, part) in [
        ("full", 64 * MIB, "mine"),
        ("a-file", 64 * MIB, "not a directory"),
        ("none/new", 64 * MIB, "make the NVM directory"),
        ("new", 16 * MIB, "is too small"),
        (
            "new",
            NVM_BYTES_MIN + BLOCK,
            "the least that it can grow to",
        ),
        ("new", 1 << 50, "are free there"),
    ] {
        let why = place.add_to(to, bytes, &|_| ()).unwrap_err().to_string();
        assert!(why.contains(part), "{to}: {why}");
        place.holds(&runs, false);
        assert!(!place.at("new").exists());
    }
    assert_eq!(std::fs::read(place.at("full/mine")).unwrap(), b"x");
    let why = place.remove(&|_| ()).unwrap_err().to_string();
    assert!(why.contains("has no NVM"), "{why}");

    let mounted = place.mount();
    assert!(place.add(64 * MIB).unwrap_err().is_busy(), "it is mounted");
    // As a kill leaves it.
    let dir = mounted.file.nvm_dir().to_path_buf();
    finish_restore(&dir).unwrap();
    drop(mounted);
    assert!(!is_in_checkpoint(&place.file()).unwrap());
    let why = place.add(64 * MIB).unwrap_err().to_string();
    assert!(
        why.contains("not all of it is in its last checkpoint"),
        "{why}"
    );
    remove_memory(&dir, NvmLock::take(&dir).unwrap()).unwrap();
    std::fs::rename(place.at("ssd.img"), place.at("away")).unwrap();
    assert!(place.add(64 * MIB).is_err(), "the device is missing");
    std::fs::rename(place.at("away"), place.at("ssd.img")).unwrap();
    place.holds(&runs, false);
    place.add(NVM_BYTES_MIN).unwrap();
    let why = place.add(64 * MIB).unwrap_err().to_string();
    assert!(why.contains("device grow"), "{why}");
    let mounted = place.mount();
    assert!(
        place.remove(&|_| ()).unwrap_err().is_busy(),
        "it is mounted"
    );
    drop(mounted);
    std::fs::rename(place.at("ssd.img"), place.at("away")).unwrap();
    assert!(place.remove(&|_| ()).is_err(), "the device is missing");
    std::fs::rename(place.at("away"), place.at("ssd.img")).unwrap();
    place.holds(&runs, true);
}

#[test]
fn blocks_in_use_at_the_end_of_the_ssd_are_named() {
    let place = Place::new(Some(NVM_BYTES_MIN));
    let mounted = place.mount();
    mounted.fill(20, 1, 60 * MIB / BLOCK);
    let runs = mounted.fill(30, 2, 70 * MIB / BLOCK);
    mounted.forget(20);
    drop(mounted);
    assert!(place.area_place().live_blocks > 0);
    let why = place.remove(&|_| ()).unwrap_err().to_string();
    assert!(why.contains("blocks are in use where"), "{why}");
    place.holds(&runs, true);
}

#[test]
fn what_was_written_otherwise_is_no_copy() {
    let (place, runs) = filled();
    let damage = |step: &'static str| {
        if step == "add-written" {
            let file = std::fs::File::options()
                .write(true)
                .open(place.at("nvm/seg-0000"));
            file.unwrap().write_all_at(&[1], 4096 + 100).unwrap();
        }
    };
    let why = place
        .add_to("nvm", 64 * MIB, &damage)
        .unwrap_err()
        .to_string();
    assert!(why.contains("is not what was written there"), "{why}");
    assert!(!place.at("nvm").exists());
    place.holds(&runs, false);
}

#[test]
fn getting_nvm_that_was_cut_short_is_undone_or_finished() {
    for (step, with_nvm) in [
        ("add-noted", false),
        ("add-written", false),
        ("grow-last", false),
        ("add-grown", false),
        ("add-made", false),
        ("add-named", true),
        ("add-wiped", true),
    ] {
        let (place, runs) = filled();
        cut_at(step, |reached| {
            let _ = place.add_to("nvm", 80 * MIB, reached);
        });
        let wiped = || {
            let device = shale_block::BlockFile::open(&place.at("ssd.img"), 0).unwrap();
            let at = 0..SSD_BYTES;
            let uuid = place.file().uuid_bytes();
            let found = shale_persist::staged::find_areas(&device, uuid, at, SSD_BYTES).unwrap();
            found.is_empty()
        };
        place.is_found_once(step);
        if step == "add-named" {
            place.mount_unresolved().unmount();
        }
        place.holds(&runs, with_nvm);
        place.is_found_once(step);
        assert_eq!(wiped(), with_nvm, "{step}");
        if !with_nvm {
            place.add(80 * MIB).unwrap();
        }
        place.holds(&runs, true);
        assert!(wiped() && !place.at("nvm/copying").exists(), "{step}");
    }
}

#[test]
fn losing_nvm_that_was_cut_short_is_undone_or_finished() {
    for (step, with_nvm) in [
        ("remove-copied", true),
        ("remove-noted", true),
        ("remove-area", true),
        ("remove-written", true),
        ("remove-named", false),
        ("remove-cleared", false),
    ] {
        let place = Place::new(Some(40 * MIB));
        let mounted = place.mount();
        let runs = mounted.fill(20, 7, 20 * MIB / BLOCK);
        drop(mounted);
        let old = std::fs::read_to_string(place.at("V.toml")).unwrap();
        cut_at(step, |reached| drop(place.remove(reached)));
        place.is_found_once(step);
        place.holds(&runs, with_nvm);
        place.is_found_once(step);
        if with_nvm {
            assert!(!place.at("nvm/copying").exists(), "{step}");
            place.remove(&|_| ()).unwrap();
            place.holds(&runs, false);
            continue;
        }
        if step == "remove-named" {
            // An old volume file does not take the area of the volume, which was mounted since.
            let new = std::fs::read_to_string(place.at("V.toml")).unwrap();
            std::fs::write(place.at("V.toml"), old).unwrap();
            let old = growth::resolve(&place.file(), Some(&place.at("V.toml")));
            let why = old.unwrap_err().to_string();
            assert!(why.contains("is the volume file an old one"), "{why}");
            std::fs::write(place.at("V.toml"), new).unwrap();
            place.holds(&runs, false);
            // What is left belongs to nobody, and is taken for that.
            assert_eq!(volume_files(&place.at("nvm")).unwrap(), ["seg-0000"]);
        }
        place.add(40 * MIB).unwrap();
        place.holds(&runs, true);
    }
}

#[test]
fn a_ssd_keeps_its_contents_when_its_end_comes_and_goes() {
    let place = Place::new(Some(NVM_BYTES_MIN));
    let mounted = place.mount();
    let runs = mounted.fill(20, 5, 30 * MIB / BLOCK);
    let before = mounted.volume().view().device_table().unwrap();
    let (uuid, blocks) = (before.of(0)[0].uuid, before.of(0)[0].blocks);
    let each = u64::from(before.of(0)[0].zone_blocks);
    let map = mounted.map.clone();
    let last = BlockAddr::new(TierId::Ssd, blocks - 1);
    drop(mounted);
    let is_free = |volume: &Volume| {
        assert!(!volume.is_live(last));
        let mut bytes = [0; Superblock::BYTES];
        map.on(CountPath::Structure)
            .load(SUPER_BLOCK as usize * BLOCK_BYTES, &mut bytes);
        volume.space().free
    };
    let free = is_free(&Volume::open(map.clone()).unwrap());
    for wanted in [blocks - 3 * each, blocks, blocks - each, blocks] {
        resize::resize_ssd(&map, &uuid, wanted).unwrap();
        let volume = Volume::open(map.clone()).unwrap();
        let table = volume.view().device_table().unwrap();
        assert_eq!((table.of(0)[0].blocks, table.end[0]), (wanted, blocks));
        let zones = volume.lower_zones(TierId::Ssd);
        let live: u64 = zones.iter().map(|z| z.live).sum();
        assert_eq!(
            (zones.len() as u64, live),
            (wanted / each, 30 * MIB / BLOCK)
        );
    }
    let tables = before.of(0)[0].tables();
    let taken = free - is_free(&Volume::open(map.clone()).unwrap());
    // Those that mkfs made stay, so one copy more is in use.
    assert_eq!(taken, tables.end_block - tables.zone_block);
    for wrong in [0, each - 1, each] {
        let why = resize::resize_ssd(&map, &uuid, wrong).unwrap_err();
        let why = why.to_string();
        assert!(
            why.contains("in zones of") || why.contains("in use"),
            "{why}"
        );
    }
    place.holds(&runs, true);
}
