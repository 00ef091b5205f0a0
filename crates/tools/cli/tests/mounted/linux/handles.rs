//! File handles (`name_to_handle_at`, `open_by_handle_at`), as NFS servers and backup programs keep
//! them: they outlive the kernel's cache, the daemon and the mount, and end with their inode.

use crate::volume::{Volume, can_mount};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// What the program says of the volume.
fn handles(v: &Volume, what: &str) -> String {
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/mounted/linux/handles.py"
    );
    let kept = v.dir().join("handles");
    let done = Command::new("python3")
        .args([program, what, v.place(), kept.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    said
}

/// Has the kernel forget every inode that nobody uses.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

#[test]
fn file_handles_outlive_cache_daemon_and_mount_but_not_their_inode() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("handles");
    v.mount();
    let at = |name: &str| v.mountpoint().join(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    for name in ["f", "a/b/c/deep", "a/gone", "a/b/moves"] {
        fs::write(at(name), name).unwrap();
    }
    fs::create_dir(at("empty")).unwrap();
    handles(&v, "save");
    let all = handles(&v, "open");
    assert!(!all.contains("ESTALE"), "{all}");
    for line in [" 2 a/b/c deep\n", "f: ", " 1 a/b/c/deep\n"] {
        assert!(all.contains(line), "{line:?} is missing in {all}");
    }
    drop_caches();
    assert_eq!(handles(&v, "open"), all, "after drop_caches");
    v.kill_daemon();
    assert_eq!(handles(&v, "open"), all, "after a kill");
    v.kill_daemon();
    drop_caches();
    assert_eq!(handles(&v, "open"), all, "after a kill without caches");
    v.umount();
    v.mount();
    assert_eq!(handles(&v, "open"), all, "after a new mount");

    // A name more or less, or another one, is the same inode.
    fs::rename(at("a/b/moves"), at("moved")).unwrap();
    drop_caches();
    let line = all.lines().find(|l| l.starts_with("a/b/moves: ")).unwrap();
    let said = handles(&v, "open");
    assert!(
        said.lines().any(|l| l == line),
        "{line:?} is missing in {said}"
    );

    let open = fs::File::open(at("a/gone")).unwrap();
    fs::remove_file(at("a/gone")).unwrap();
    fs::remove_dir(at("empty")).unwrap();
    // Of what the kernel still has it makes a file by itself, as on ext4.
    let said = handles(&v, "open");
    assert!(said.contains("empty: ESTALE\n"), "{said}");
    drop(open);
    drop_caches();
    let gone = |said: &str| said.contains("a/gone: ESTALE\n") && said.contains("empty: ESTALE\n");
    let said = handles(&v, "open");
    assert!(gone(&said), "{said}");
    v.umount();
    v.mount();
    let said = handles(&v, "open");
    assert!(gone(&said), "{said}");

    v.umount();
    v.fsck();
}

#[test]
fn file_handles_of_a_number_that_is_in_use_again_are_stale() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("handles-again");
    v.mount();
    let at = |name: &str| v.mountpoint().join(name);
    fs::create_dir(at("many")).unwrap();
    for n in 0..64 {
        fs::write(at(&format!("many/{n}")), "one of many").unwrap();
    }
    handles(&v, "save");
    // Numbers are granted in runs of 16.
    let numbers = |dir: &str| -> Vec<u64> {
        let entries = fs::read_dir(at(dir)).unwrap();
        entries
            .map(|e| e.unwrap().metadata().unwrap().ino())
            .collect()
    };
    let old = numbers("many");
    fs::remove_dir_all(at("many")).unwrap();
    v.umount();
    v.mount();
    fs::create_dir(at("others")).unwrap();
    for n in 0..600 {
        fs::write(at(&format!("others/{n}")), "another").unwrap();
    }
    let new = numbers("others");
    let again = old.iter().filter(|ino| new.contains(ino)).count();
    assert!(again > 0, "none of {old:?} is used again");
    for cached in [true, false] {
        let said = handles(&v, "open");
        let stale = said
            .lines()
            .filter(|l| l.starts_with("many/") && l.ends_with(": ESTALE"));
        assert_eq!(stale.count(), old.len(), "cached {cached}: {said}");
        drop_caches();
    }
    v.umount();
    v.fsck();
}
