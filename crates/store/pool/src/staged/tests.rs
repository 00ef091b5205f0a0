//! Volumes without NVM: made, restored, taken as they are, removed.

use super::area::AreaDevice;
use super::*;
use crate::device_assembly::{self, Expected, Started};
use crate::devices::{LowerTiers, label_of, write_label};
use crate::error::PoolError;
use crate::nvm_dir::{segment_name, volume_files};
use crate::test_device::device;
use crate::volume_file::{DeviceFile, VolumeFile, uuid_text};
use crate::{DeviceKind, MakeOptions, StagedSizes, make_volume};
use shale_format::limits::{LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_format::{Durability, LogPos};
use shale_nvm::{Map, MapOptions, Path as CountPath};
use shale_persist::staged::{LogIdentity, PAGE_BYTES, Piece};
use shale_sys::SystemClock;
use shale_volume::View;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const SSD_BYTES: u64 = 128 * MIB;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn options(&self) -> MakeOptions {
        MakeOptions {
            file: self.at("V.toml"),
            name: "v".to_owned(),
            nvm: None,
            staged: StagedSizes {
                memory_bytes: Some(NVM_BYTES_MIN),
                staging_bytes: Some(32 * MIB),
            },
            lower: LowerTiers {
                ssd: vec![device(&self.at("ssd.img"), SSD_BYTES)],
                hdd: vec![],
            },
            log_bytes: LOG_BYTES_MIN,
            durability: Durability::Buffered,
            owner_uid: 0,
            owner_gid: 0,
            root_mode: 0o755,
            trusted_uids: vec![],
            force: false,
        }
    }

    fn make(&self) -> VolumeFile {
        make_volume(&self.options(), &SystemClock::new()).unwrap();
        VolumeFile::load(&self.at("V.toml")).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn refused(options: &MakeOptions) -> String {
    let made = make_volume(options, &SystemClock::new());
    made.unwrap_err().to_string()
}

/// A mount as a daemon does it, without batches and recovery.
struct Mounted {
    restored: bool,
    clean: bool,
    map: Arc<Map>,
    started: Started,
    lock: crate::NvmLock,
}

fn mount(file: &VolumeFile) -> Mounted {
    let restored = restore(file, &MapOptions::new()).unwrap();
    let map = Arc::new(restored.map);
    let starts = crate::labels::check(file.nvm_dir(), &file.uuid_bytes(), map.pieces().len());
    let superblock = *View::open_head(map.clone()).unwrap().0.superblock();
    file.check_superblock(&superblock).unwrap();
    let expected = Expected {
        file,
        path: None,
        degraded: false,
    };
    let started = device_assembly::start(&expected, &map, &superblock, starts.unwrap()).unwrap();
    Mounted {
        restored: restored.restored,
        clean: restored.checkpoint.clean,
        map,
        started,
        lock: restored.lock,
    }
}

impl Mounted {
    fn area(&self, file: &VolumeFile) -> shale_persist::staged::StagedArea {
        open_area(file, self.started.area_device.clone().unwrap()).unwrap()
    }

    /// The last page that no structure has: before the second superblock.
    fn free_page(&self) -> u64 {
        (self.map.bytes() / PAGE_BYTES) as u64 - 2
    }

    fn store(&self, byte: u8) {
        let at = self.free_page() as usize * PAGE_BYTES;
        self.map.on(CountPath::Structure).store(at, &[byte; 100]);
    }

    fn loaded(&self) -> u8 {
        let at = self.free_page() as usize * PAGE_BYTES;
        self.map.on(CountPath::Structure).load_array::<1>(at)[0]
    }

    /// All as it lies in memory.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.map.bytes()];
        self.map.on(CountPath::Structure).load(0, &mut bytes);
        bytes
    }
}

#[test]
fn a_volume_lies_on_its_ssd_alone_and_is_restored_byte_for_byte() {
    let place = Place::new();
    let file = place.make();
    let staged = file.staged.clone().unwrap();
    let dir = file.nvm_dir();
    let name = format!("shale-{}", uuid_text(&file.uuid_bytes()));
    assert_eq!(dir, Path::new("/dev/shm").join(name));
    assert!(!dir.exists(), "nothing is in memory");
    assert_eq!(place.names(), ["V.toml", "ssd.img"]);
    let image = std::fs::metadata(place.at("ssd.img")).unwrap();
    assert_eq!(image.len(), SSD_BYTES, "as large as was said");
    assert_eq!(file.ssd[0].size_bytes, staged.at_byte);
    let end = staged.at_byte + layout(&staged).bytes();
    assert!((SSD_BYTES - MIB..=SSD_BYTES).contains(&end), "{end}");

    let first = mount(&file);
    assert!(first.restored && first.clean);
    assert_eq!(
        first.started.volume.txid().0,
        first.area(&file).last_checkpoint().txid
    );
    // A checkpoint of what was stored meanwhile, and the next mount.
    let area = first.area(&file);
    first.store(77);
    let lacking = pages::written(&first.map).unwrap();
    pages::checkpoint(&staged.device, &area, &first.map, &lacking, (5, true)).unwrap();
    let before = first.bytes();
    finish_restore(dir).unwrap();
    drop((area, first.started));
    remove_memory(dir, first.lock).unwrap();
    assert!(!dir.exists());
    let again = restore(&file, &MapOptions::new()).unwrap();
    assert!(again.restored && again.checkpoint.clean);
    assert_eq!((again.checkpoint.number, again.checkpoint.txid), (2, 5));
    let mut after = vec![0; before.len()];
    again.map.on(CountPath::Structure).load(0, &mut after);
    assert!(before == after);
    remove_memory(dir, again.lock).unwrap();
}

#[test]
fn a_memory_tier_is_taken_only_if_it_is_whole_and_not_older_than_the_device() {
    let place = Place::new();
    let file = place.make();
    let dir = file.nvm_dir();
    let first = mount(&file);
    first.store(1);
    drop(first);
    let second = mount(&file);
    assert!(second.restored, "it was never finished");
    assert_eq!(second.loaded(), 0);
    second.store(2);
    finish_restore(dir).unwrap();
    drop(second);
    let third = mount(&file);
    assert!(!third.restored, "its daemon was killed");
    assert_eq!(third.loaded(), 2);
    let starts = third.started.starts;
    drop(third);
    // The device was used elsewhere meanwhile.
    let opened = AreaDevice::open(&file).unwrap();
    assert_eq!(opened.starts, starts);
    let mut label = label_of(&*opened.device).unwrap().unwrap();
    label.count += 2;
    write_label(&*opened.device, &label).unwrap();
    drop(opened);
    let stale = mount(&file);
    assert!(stale.restored);
    assert_eq!(stale.loaded(), 0);
    finish_restore(dir).unwrap();
    drop(stale);
    // A segment is gone; another volume's lies there.
    std::fs::remove_file(dir.join(segment_name(0))).unwrap();
    let missing = mount(&file);
    assert!(missing.restored);
    finish_restore(dir).unwrap();
    missing.map.on(CountPath::Structure).store(0, &[0; 4096]);
    let last = missing.map.bytes() - 4096;
    missing.map.on(CountPath::Structure).store(last, &[0; 4096]);
    drop(missing);
    let blank = mount(&file);
    assert!(blank.restored, "no superblock can be read");
    remove_memory(dir, blank.lock).unwrap();
}

#[test]
fn a_memory_tier_has_one_daemon_and_one_owner() {
    let place = Place::new();
    let mut file = place.make();
    let first = restore(&file, &MapOptions::new()).unwrap();
    let busy = restore(&file, &MapOptions::new()).unwrap_err();
    assert!(busy.is_busy(), "{busy}");
    remove_memory(file.nvm_dir(), first.lock).unwrap();

    let shared = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut moved = |dir: &Path| {
        file.staged.as_mut().unwrap().memory_dir = dir.to_path_buf();
        restore(&file, &MapOptions::new())
    };
    let link = shared.path().join("link");
    std::os::unix::fs::symlink(place.dir.path(), &link).unwrap();
    let text = moved(&link).unwrap_err().to_string();
    assert!(
        text.contains("rm ") && text.contains("no directory"),
        "{text}"
    );
    let text = moved(&shared.path().join("x/y")).unwrap_err().to_string();
    assert!(text.contains("x is missing"), "{text}");
    // One that is more open is closed.
    let open = shared.path().join("open");
    std::fs::create_dir(&open).unwrap();
    let taken = moved(&open).unwrap();
    use std::os::unix::fs::PermissionsExt;
    let mode = open.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    remove_memory(&open, taken.lock).unwrap();
    assert!(!open.exists());
}

#[test]
fn nothing_is_left_of_a_volume_that_is_not_made() {
    let place = Place::new();
    let good = place.options();
    let ssd = |size_bytes| LowerTiers {
        ssd: vec![device(&place.at("ssd.img"), size_bytes)],
        hdd: vec![],
    };
    let sizes = |memory_bytes, staging_bytes| StagedSizes {
        memory_bytes: Some(memory_bytes),
        staging_bytes: Some(staging_bytes),
    };
    let raw = DeviceFile {
        kind: DeviceKind::OpenChannel,
        ..device(&place.at("ssd.img"), 64 * MIB)
    };
    let with = |lower, staged| MakeOptions {
        lower,
        staged,
        ..good.clone()
    };
    let raw = LowerTiers {
        ssd: vec![raw],
        hdd: vec![],
    };
    for (options, word) in [
        (
            with(LowerTiers::default(), good.staged),
            "--ssd /dev/nvme0n1p3:200G",
        ),
        (with(raw, good.staged), "not implemented yet"),
        (with(ssd(72 * MIB), good.staged), "too little for files"),
        (with(ssd(SSD_BYTES), sizes(MIB, 4 * MIB)), "--memory"),
        (with(ssd(SSD_BYTES), sizes(NVM_BYTES_MIN, MIB)), "--staging"),
        (
            with(ssd(SSD_BYTES), sizes(NVM_BYTES_MIN, 1 << 30)),
            "--staging",
        ),
        (
            with(ssd(1 << 50), sizes(1 << 44, 64 * MIB)),
            "make it smaller",
        ),
        (
            with(ssd(1 << 50), sizes(NVM_BYTES_MIN, 64 * MIB)),
            "more with --memory",
        ),
    ] {
        let text = refused(&options);
        assert!(text.contains(word), "{text}");
        assert_eq!(place.names(), Vec::<String>::new(), "{text}");
    }
    // The last step fails: the volume file cannot be written.
    std::fs::create_dir_all(place.at("V.toml.new/x")).unwrap();
    let text = refused(&good);
    assert!(text.contains("V.toml"), "{text}");
    assert_eq!(place.names(), ["V.toml.new"]);
    std::fs::remove_dir_all(place.at("V.toml.new")).unwrap();
    // An image that is there is left, without a label, and one that ends too early as it was.
    let image = std::fs::File::create(place.at("ssd.img")).unwrap();
    image.set_len(SSD_BYTES - 4096).unwrap();
    let text = refused(&good);
    assert!(text.contains(&SSD_BYTES.to_string()), "{text}");
    image.set_len(SSD_BYTES).unwrap();
    drop(image);
    let file = place.make();
    let text = refused(&MakeOptions {
        file: place.at("W.toml"),
        ..good.clone()
    });
    assert!(text.contains(&file.uuid), "{text}");
    assert_eq!(place.names(), ["V.toml", "ssd.img"]);
}

#[test]
fn a_volume_that_is_destroyed_takes_its_memory_tier_along() {
    let place = Place::new();
    let old = place.make();
    let killed = mount(&old);
    finish_restore(old.nvm_dir()).unwrap();
    drop(killed);
    assert!(old.nvm_dir().is_dir());
    let forced = MakeOptions {
        force: true,
        ..place.options()
    };
    make_volume(&forced, &SystemClock::new()).unwrap();
    assert!(!old.nvm_dir().exists());
    assert_ne!(
        VolumeFile::load(&place.at("V.toml")).unwrap().uuid,
        old.uuid
    );
}

#[test]
fn a_volume_that_is_not_mounted_is_examined_and_mended_in_a_copy() {
    let place = Place::new();
    let file = place.make();
    let dir = file.nvm_dir().to_path_buf();
    let copy = |found| match found {
        Found::Copy(copy) => copy,
        Found::Memory => panic!("nothing is in memory"),
    };
    let first = copy(examine(&file).unwrap());
    assert_eq!((first.batches, first.checkpoint.number), (0, 1));
    let busy = restore(&file, &MapOptions::new()).unwrap_err();
    assert!(busy.is_busy(), "nobody mounts it meanwhile: {busy}");
    // A repair changes a page.
    let page = first.map.bytes() / PAGE_BYTES - 2;
    let view = first.map.on(CountPath::Structure);
    view.store(page * PAGE_BYTES, &[9; 100]);
    let written = first.write_back(&file, 8).unwrap();
    assert_eq!((written.number, written.txid, written.clean), (2, 8, true));
    drop(first);
    assert!(!dir.exists(), "nothing is left");

    let mounted = mount(&file);
    assert_eq!(mounted.loaded(), 9);
    let area = mounted.area(&file);
    let log = LogIdentity {
        slot: 0,
        uid: 0,
        salt: 1,
        ring_bytes: LOG_BYTES_MIN,
        connection: 1,
    };
    let piece = Piece {
        log,
        from: LogPos(0),
        bytes: &[5; 128],
        placed: &[],
    };
    area.append(&[piece]).unwrap();
    drop((area, mounted));
    let second = copy(examine(&file).unwrap());
    assert_eq!(second.batches, 1);
    let text = second.write_back(&file, 9).unwrap_err().to_string();
    assert!(text.contains("mount it once"), "{text}");
    drop(second);
    assert_eq!(
        volume_files(&dir).unwrap().len(),
        1,
        "what was there is left"
    );

    let killed = mount(&file);
    finish_restore(&dir).unwrap();
    drop(killed);
    assert!(matches!(examine(&file).unwrap(), Found::Memory));
    std::fs::remove_file(place.at("ssd.img")).unwrap();
    let gone = examine(&file).unwrap_err();
    assert!(matches!(gone, PoolError::Device(_)), "{gone}");
    remove_memory(&dir, crate::NvmLock::take(&dir).unwrap()).unwrap();
}
