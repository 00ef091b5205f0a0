//! Access control lists on the mount and under `shale run`, compared with what ext4 (Linux 6.18) returned to the same program; that
//! programs which copy and restore them do so here; and that lists outlive daemon and mount and decide afterwards.

use super::beside_ext4::{compare, done, program};
use crate::volume::{Volume, with_library};
use std::fs;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mounted/linux/acls.py");
/// What the kernel hands to a mount is one page at most; ext4 has less space.
const OTHERS: [(&str, &str); 1] = [("600 users: ENOSPC", "600 users: E2BIG")];

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED in part: there is no {program}");
    }
    found
}

/// The lists of everything below `top`, by name.
fn lists(top: &Path) -> String {
    let mut command = Command::new("getfacl");
    done(command.args(["-R", "-n", "."]).current_dir(top))
}

#[test]
fn lists_do_what_they_do_on_ext4() {
    let Some(v) = with_library("acls") else {
        return;
    };
    fs::set_permissions(v.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    compare(&v, PROGRAM, include_str!("acls.ext4"), &OTHERS);
    v.umount();
    v.fsck();
}

/// A tree with lists of both kinds.
fn plant(top: &Path) {
    fs::create_dir_all(top.join("a/b")).unwrap();
    for name in ["f", "a/g", "a/b/h"] {
        fs::write(top.join(name), name).unwrap();
    }
    let set = |how: &[&str], name: &str| {
        done(Command::new("setfacl").args(how).arg(top.join(name)));
    };
    set(&["-m", "u:1001:rw,g:2002:r,m::rwx"], "f");
    set(&["-d", "-m", "u:1001:rwx,g:2002:rx,o::-"], "a");
    set(&["-m", "g:2002:-,u:1002:x"], "a/b");
    fs::create_dir(top.join("a/made")).unwrap();
    fs::write(top.join("a/made/file"), "inherits").unwrap();
    let all = lists(top);
    for line in ["user:1001:rw-", "default:group:2002:r-x", "group:2002:---"] {
        assert!(all.contains(line), "{line}:\n{all}");
    }
}

#[test]
fn programs_copy_lists_and_put_them_back() {
    let Some(v) = with_library("acls-copied") else {
        return;
    };
    if !has("setfacl") {
        return;
    }
    for served in [false, true] {
        let at = |name: &str| v.mountpoint().join(format!("{name}-{served}"));
        let top = at("top");
        plant(&top);
        let expected = lists(&top);
        done(program("cp", served).arg("-a").arg(&top).arg(at("copied")));
        assert_eq!(lists(&at("copied")), expected, "cp -a");
        let archive = v.dir().join("archive.tar");
        let tar = |args: &[&str], at: &Path| {
            let mut tar = program("tar", served);
            done(tar.args(args).arg(&archive).arg("-C").arg(at).arg("."));
        };
        tar(&["--acls", "-cf"], &top);
        fs::create_dir(at("unpacked")).unwrap();
        tar(&["--acls", "-xf"], &at("unpacked"));
        assert_eq!(lists(&at("unpacked")), expected, "tar --acls");
        if has("rsync") {
            let from = top.join("");
            done(
                program("rsync", served)
                    .arg("-aA")
                    .arg(from)
                    .arg(at("synced")),
            );
            assert_eq!(lists(&at("synced")), expected, "rsync -A");
        }
        let kept = v.dir().join("kept.acl");
        fs::write(&kept, &expected).unwrap();
        done(program("setfacl", served).args(["-R", "-b"]).arg(&top));
        assert!(!lists(&top).contains("1001"), "{}", lists(&top));
        let mut restore = program("setfacl", served);
        let restore = restore.arg(format!("--restore={}", kept.display()));
        done(restore.current_dir(&top));
        assert_eq!(lists(&top), expected, "setfacl --restore");
    }
    v.umount();
    v.fsck();
}

/// Whether this user may read and write the file.
fn rights(path: &Path, uid: u32) -> (bool, bool) {
    let may = |test: &str| {
        let mut command = Command::new("setpriv");
        let user = [format!("--reuid={uid}"), "--regid=3000".to_owned()];
        command.args(user).args(["--clear-groups", "test", test]);
        command.arg(path).status().unwrap().success()
    };
    (may("-r"), may("-w"))
}

#[test]
fn lists_outlive_the_daemon_and_the_mount() {
    let Some(v) = with_library("acls-stay") else {
        return;
    };
    if !has("setfacl") {
        return;
    }
    fs::set_permissions(v.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let top: &Path = v.mountpoint();
    fs::set_permissions(top, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    plant(&top.join("top"));
    let (expected, file) = (lists(&top.join("top")), top.join("top/f"));
    let check = |v: &Volume, when: &str| {
        let found = lists(&v.mountpoint().join("top"));
        assert_eq!(found, expected, "{when}");
        let may = [1001, 1002].map(|uid| rights(&file, uid));
        assert_eq!(may, [(true, true), (true, false)], "{when}");
    };
    check(&v, "at once");
    v.kill_daemon();
    check(&v, "after a kill");
    v.shale(&["digest", v.place()]).ok();
    v.kill_daemon();
    check(&v, "digested, after a kill");
    // Of what the kernel keeps, a change takes effect.
    done(Command::new("chmod").arg("g-w").arg(&file));
    assert_eq!(rights(&file, 1001), (true, false), "the mask");
    done(Command::new("chmod").arg("g+w").arg(&file));
    check(&v, "changed and back");
    v.umount();
    v.fsck();
    v.mount();
    check(&v, "after a mount");
    v.umount();
    v.fsck();
}
