//! `RENAME_WHITEOUT`, and what needs it: an overlay file system whose upper layer is a mount.

use crate::volume::{Volume, can_mount};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An overlay; unmounted when dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(lower: &Path, v: &Volume, at: PathBuf) -> Self {
        let upper = v.mountpoint().join("upper");
        let work = v.mountpoint().join("work");
        let [lower, upper, work] = [lower, &upper, &work].map(Path::display);
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let done = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&at)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        Self(at)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn is_whiteout(path: &Path) -> bool {
    let there = fs::symlink_metadata(path).unwrap();
    there.file_type().is_char_device() && there.rdev() == 0
}

#[test]
fn a_rename_leaves_a_whiteout_in_the_same_step() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("whiteout");
    v.mount();
    let at = |name: &str| v.mountpoint().join(name);
    let rename = |old: &str, new: &str, flags| {
        let done = renameat_with(CWD, at(old), CWD, at(new), flags);
        done.map_err(|e| e.raw_os_error())
    };
    let (whiteout, no_replace) = (RenameFlags::WHITEOUT, RenameFlags::NOREPLACE);
    fs::create_dir_all(at("d/below")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(at(name), name).unwrap();
    }
    // What ext4 says (Linux 6.18), for users without any capability, too.
    assert_eq!(rename("a", "a2", whiteout), Ok(()));
    assert_eq!(rename("b", "c", whiteout), Ok(()));
    assert_eq!(rename("c", "a2", whiteout | no_replace), Err(libc::EEXIST));
    assert_eq!(rename("c", "d/n", whiteout | no_replace), Ok(()));
    let exchange = whiteout | RenameFlags::EXCHANGE;
    assert_eq!(rename("a2", "d/n", exchange), Err(libc::EINVAL));
    assert_eq!(rename("nothing", "x", whiteout), Err(libc::ENOENT));
    assert_eq!(rename("a2", "a2", whiteout), Ok(()));
    assert_eq!(rename("d/below", "moved", whiteout), Ok(()));
    let check = |when: &str| {
        for name in ["a", "b", "c", "d/below"] {
            assert!(is_whiteout(&at(name)), "{name} {when}");
        }
        assert_eq!(fs::read(at("a2")).unwrap(), b"a", "{when}");
        assert_eq!(fs::read(at("d/n")).unwrap(), b"b", "{when}");
        let links = |name: &str| fs::metadata(at(name)).unwrap().nlink();
        assert_eq!((links("d"), links("moved")), (2, 2), "{when}");
    };
    check("at once");
    v.kill_daemon();
    check("after a kill");
    v.umount();
    v.fsck();
    v.mount();
    check("after a mount");
    v.umount();
}

#[test]
fn a_mount_is_the_upper_layer_of_an_overlay() {
    if !can_mount() {
        return;
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    if !known.lines().any(|l| l.ends_with("\toverlay")) {
        eprintln!("SKIPPED: this kernel has no overlay");
        return;
    }
    let v = Volume::new("overlay");
    v.mount();
    let beside = tempfile::tempdir().unwrap();
    let lower = beside.path().join("lower");
    fs::create_dir_all(lower.join("sub/deep")).unwrap();
    for name in ["f", "kept", "sub/g", "sub/deep/h"] {
        fs::write(lower.join(name), format!("lower {name}")).unwrap();
    }
    for name in ["upper", "work"] {
        fs::create_dir(v.mountpoint().join(name)).unwrap();
    }
    let merged = beside.path().join("merged");
    fs::create_dir(&merged).unwrap();
    let at = |name: &str| merged.join(name);
    let check = || {
        assert!(!at("f").exists() && !at("sub/g").exists());
        assert_eq!(fs::read(at("f2")).unwrap(), b"lower f");
        assert_eq!(fs::read(at("kept")).unwrap(), b"lower kept, and more");
        assert_eq!(fs::read_dir(at("sub")).unwrap().count(), 1, "opaque");
        assert_eq!(fs::read(at("sub/new")).unwrap(), b"new");
    };
    {
        let _overlay = Overlay::mount(&lower, &v, merged.clone());
        fs::rename(at("f"), at("f2")).unwrap();
        assert!(is_whiteout(&v.mountpoint().join("upper/f")));
        fs::write(at("kept"), "lower kept, and more").unwrap();
        fs::remove_dir_all(at("sub")).unwrap();
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/new"), "new").unwrap();
        check();
        v.kill_daemon();
        check();
    }
    v.umount();
    v.fsck();
    v.mount();
    {
        let _overlay = Overlay::mount(&lower, &v, merged.clone());
        check();
    }
    v.umount();
}
