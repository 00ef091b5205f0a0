//! NVM directories grow, whole or not at all.

use super::*;
use crate::nvm_dir::{strangers, volume_files};
use crate::volume_file::NvmEntry;
use crate::{MakeOptions, make_volume};
use shale_format::Durability;
use shale_format::limits::LOG_BYTES_MIN;
use shale_sys::SystemClock;
use shale_volume::{View, Volume};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MIB: u64 = 1 << 20;
const FROM: u64 = 33 * MIB;
const TO: u64 = 100 * MIB;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place {
            dir: tempfile::tempdir_in("/dev/shm").unwrap(),
        };
        let options = MakeOptions {
            file: place.file(),
            name: "v".to_owned(),
            nvm: Some(NvmEntry::new(place.nvm(), FROM)),
            staged: Default::default(),
            lower: Default::default(),
            log_bytes: LOG_BYTES_MIN,
            durability: Durability::Strict,
            owner_uid: 0,
            owner_gid: 0,
            root_mode: 0o755,
            trusted_uids: vec![],
            force: false,
        };
        make_volume(&options, &SystemClock::new()).unwrap();
        place
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("V.toml")
    }

    fn nvm(&self) -> PathBuf {
        self.dir.path().join("nvm")
    }

    fn grow(&self, bytes: u64) -> Result<Grown> {
        grow_nvm(&self.file(), bytes, &|_| ())
    }

    fn resolve(&self) -> Result<Option<Resolved>> {
        resolve(&VolumeFile::load(&self.file()).unwrap(), Some(&self.file()))
    }

    /// The volume as its file says it is: so many bytes, nothing growing, no more segments than it has.
    fn is_of(&self, bytes: u64) {
        let file = VolumeFile::load(&self.file()).unwrap();
        assert_eq!(file.nvm_bytes(), bytes);
        let map = Arc::new(open_nvm(&self.nvm(), bytes, &MapOptions::new()).unwrap());
        let segments = segment_sizes(bytes).len();
        assert_eq!(volume_files(&self.nvm()).unwrap().len(), segments);
        assert!(strangers(&self.nvm()).unwrap().is_empty());
        assert!(!note_path(&self.nvm()).exists());
        let view = View::open(map.clone()).unwrap().0;
        assert_eq!(view.superblock().tier[0].blocks * BLOCK, bytes);
        let volume = Volume::open(map).unwrap();
        assert!(volume.space().total > bytes / BLOCK * 9 / 10);
    }
}

#[test]
fn a_directory_grows() {
    let place = Place::new();
    let grown = place.grow(TO + 5).unwrap();
    assert_eq!((grown.from_bytes, grown.to_bytes), (FROM, TO));
    assert_eq!(grown.segments, 2);
    place.is_of(TO);
    assert_eq!(place.resolve().unwrap(), None);
    place.grow(TO + MIB).unwrap();
    place.is_of(TO + MIB);
}

#[test]
fn what_is_refused_changes_nothing() {
    let place = Place::new();
    for (bytes, part) in [
        (FROM, "does not shrink"),
        (MIB, "does not shrink"),
        (1 << 50, "are free there"),
        (u64::MAX, "at most"),
    ] {
        let why = place.grow(bytes).unwrap_err().to_string();
        assert!(why.contains(part), "{bytes}: {why}");
        place.is_of(FROM);
    }
    let lock = NvmLock::take(&place.nvm()).unwrap();
    assert!(place.grow(TO).unwrap_err().is_busy());
    drop(lock);
    place.is_of(FROM);
    // A segment that is in the way.
    std::fs::write(place.nvm().join(segment_name(1)), b"x").unwrap();
    let why = place.grow(TO).unwrap_err().to_string();
    assert!(why.contains("seg-0001"), "{why}");
    std::fs::remove_file(place.nvm().join(segment_name(1))).unwrap();
    place.is_of(FROM);
}

/// As if killed at a step: nothing is put in order.
fn cut_at(place: &Place, step: &str) {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let cut = catch_unwind(AssertUnwindSafe(|| {
        grow_nvm(&place.file(), TO, &|reached| {
            assert!(reached != step, "cut");
        })
    }));
    std::panic::set_hook(quiet);
    assert!(cut.is_err(), "{step} is not reached");
}

#[test]
fn the_next_one_takes_it_back_or_finishes_it() {
    for (step, is_grown) in [
        ("grow-noted", false),
        ("grow-last", false),
        ("grow-segments", false),
        ("grow-written", true),
    ] {
        let bytes = if is_grown { TO } else { FROM };
        let place = Place::new();
        cut_at(&place, step);
        assert_eq!(
            place.resolve().unwrap(),
            Some(Resolved { bytes, is_grown }),
            "{step}"
        );
        place.is_of(bytes);
        let place = Place::new();
        cut_at(&place, step);
        let grown = place.grow(TO + 8 * MIB).unwrap();
        assert_eq!(grown.from_bytes, bytes, "{step}");
        place.is_of(TO + 8 * MIB);
    }
}

#[test]
fn a_first_superblock_that_was_being_written_is_written_from_the_second_one() {
    let place = Place::new();
    cut_at(&place, "grow-written");
    let first = File::options()
        .write(true)
        .open(place.nvm().join(segment_name(0)));
    first.unwrap().write_all_at(&[0xee; 8], 80).unwrap();
    let now = place.resolve().unwrap();
    assert_eq!(now.map(|s| (s.bytes, s.is_grown)), Some((TO, true)));
    place.is_of(TO);
    // Without either it is damage, which is named and left as it is.
    let place = Place::new();
    cut_at(&place, "grow-segments");
    let first = File::options()
        .write(true)
        .open(place.nvm().join(segment_name(0)));
    first.unwrap().write_all_at(&[0xee; 8], 80).unwrap();
    assert!(place.resolve().is_err());
    assert!(note_path(&place.nvm()).exists());
}
