//! A client's process opens a file through the mount by its inode number, whatever names it has, or none; nobody else can.

use super::mount_and_library::attach;
use crate::volume::{Volume, can_mount, wait_until};
use rustix::fs::OFlags;
use shale_libfs::{Caller, File as DirectFile, Session, Tree};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// Where the mount has inode `ino` for a client.
fn place(v: &Volume, client: &Session, ino: u64) -> PathBuf {
    let name = client.kernel_name(ino);
    v.mountpoint().join(OsStr::from_bytes(&name))
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

#[track_caller]
fn is_missing(path: &PathBuf) {
    let errno = |e: io::Error| e.raw_os_error();
    assert_eq!(open(path).map_err(errno).err(), Some(Some(libc::ENOENT)));
    assert_eq!(
        fs::symlink_metadata(path).map_err(errno).err(),
        Some(Some(libc::ENOENT))
    );
}

fn names_in(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn inodes(v: &Volume) -> u64 {
    let space = rustix::fs::statvfs(v.mountpoint()).unwrap();
    space.f_files - space.f_ffree
}

/// A client, and a new file that it has open, with these bytes, in a directory of its own.
fn client_with_file(v: &Volume, bytes: &[u8]) -> (Arc<Session>, Tree, DirectFile) {
    let client = attach(v);
    let tree = client.tree(Caller::default());
    tree.mkdir(b"own", 0o700).unwrap();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = tree.open(b"own/file", flags, 0o644).unwrap();
    assert_eq!(file.pwrite(0, bytes), Ok(bytes.len()));
    (client, tree, file)
}

/// The file by its number is the one that the client has open: each sees what the other writes.
#[track_caller]
fn is_same(v: &Volume, client: &Session, file: &DirectFile, links: u64) -> File {
    let through = open(&place(v, client, file.ino())).unwrap();
    let attr = through.metadata().unwrap();
    assert_eq!((attr.ino(), attr.nlink()), (file.ino(), links));
    assert!(attr.is_file());
    for n in [b'a', b'b'] {
        let mut read = [0; 100];
        let by_client = [n ^ 0x55; 100];
        assert_eq!(file.pwrite(1000, &by_client), Ok(100));
        through.read_exact_at(&mut read, 1000).unwrap();
        assert_eq!(read, by_client);
        through.write_all_at(&[n; 100], 1050).unwrap();
        assert_eq!(file.pread(1050, &mut read), Ok(100));
        assert_eq!(read, [n; 100]);
    }
    assert_eq!(
        file.stat().unwrap().size,
        through.metadata().unwrap().size()
    );
    through
}

#[test]
fn an_open_file_is_found_by_its_number_under_every_name_and_none() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("open-by-number");
    v.mount();
    let before = inodes(&v);
    let (client, tree, file) = client_with_file(&v, b"from the client");
    let mut read = [0; 15];
    let first = open(&place(&v, &client, file.ino())).unwrap();
    first.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"from the client");
    drop(first);
    drop(is_same(&v, &client, &file, 1));

    tree.rename(b"own/file", b"own/renamed", 0).unwrap();
    let kept = is_same(&v, &client, &file, 1);
    tree.rename(b"own/renamed", b"moved", 0).unwrap();
    drop(is_same(&v, &client, &file, 1));
    // The name that the kernel knows already, too.
    assert_eq!(
        fs::metadata(v.mountpoint().join("moved")).unwrap().ino(),
        file.ino()
    );
    tree.unlink(b"moved").unwrap();
    assert!(!v.mountpoint().join("moved").exists());
    drop(is_same(&v, &client, &file, 0));
    assert_eq!(kept.metadata().unwrap().nlink(), 0);
    drop(kept);
    drop(is_same(&v, &client, &file, 0));
    assert_eq!(names_in(v.mountpoint()), ["own"]);

    // One that the kernel has never heard of before it lost its name.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let unseen = tree.open(b"own/unseen", flags, 0o600).unwrap();
    tree.unlink(b"own/unseen").unwrap();
    let unnamed = tree.open(b"own", OFlags::RDWR | OFlags::TMPFILE, 0o600);
    let unnamed = unnamed.unwrap();
    drop(is_same(&v, &client, &unseen, 0));
    let through = is_same(&v, &client, &unnamed, 0);

    // The kernel's use alone keeps the inode; nobody's use ends it.
    let places = [&file, &unseen, &unnamed].map(|f| place(&v, &client, f.ino()));
    drop((file, unseen, unnamed));
    through.write_all_at(b"still there", 0).unwrap();
    assert_eq!(through.metadata().unwrap().nlink(), 0);
    drop(through);
    wait_until("they are freed", || inodes(&v) == before + 1);
    places.iter().for_each(is_missing);
    tree.rmdir(b"own").unwrap();
    client.detach().unwrap();
    assert_eq!(inodes(&v), before);
    v.umount();
    v.fsck();
}

#[test]
fn only_files_of_clients_that_are_attached_are_found_by_number() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("open-by-no-number");
    v.mount();
    let (client, tree, file) = client_with_file(&v, b"x");
    tree.symlink(b"target", b"own/link").unwrap();
    let of = |path: &[u8]| tree.lstat(path).unwrap().ino;
    let name = |ino| String::from_utf8(client.kernel_name(ino)).unwrap();
    for ino in [of(b"own"), of(b"own/link"), 0, 1, 2, 3, 1 << 40, u64::MAX] {
        is_missing(&place(&v, &client, ino));
    }
    let right = name(file.ino());
    drop(open(&v.mountpoint().join(&right)).unwrap());
    // Not below another directory, and no other token.
    is_missing(&v.mountpoint().join("own").join(&right));
    let digit = if right.as_bytes()[20] == b'0' {
        "1"
    } else {
        "0"
    };
    let wrong = [&right[..20], digit, &right[21..]].concat();
    is_missing(&v.mountpoint().join(&wrong));
    // There is no such name to be changed.
    let errno = |done: io::Result<()>| done.unwrap_err().raw_os_error();
    let at = |name: &str| v.mountpoint().join(name);
    assert_eq!(errno(fs::remove_file(at(&right))), Some(libc::ENOENT));
    assert_eq!(errno(fs::rename(at(&right), at("new"))), Some(libc::ENOENT));
    // Such names are names.
    fs::write(at(&wrong), "ordinary").unwrap();
    fs::write(at(".shale-open-"), "ordinary, too").unwrap();
    assert_eq!(names_in(v.mountpoint()), [".shale-open-", &wrong, "own"]);
    assert_eq!(fs::read_to_string(at(&wrong)).unwrap(), "ordinary");
    fs::rename(at(&wrong), at("moved")).unwrap();
    is_missing(&at(&wrong));
    fs::remove_file(at("moved")).unwrap();
    fs::remove_file(at(".shale-open-")).unwrap();
    assert_eq!(names_in(v.mountpoint()), ["own"]);

    // Another client has another token; each is good until its client goes.
    let ino = file.ino();
    let other = attach(&v);
    assert_ne!(other.kernel_name(ino), client.kernel_name(ino));
    drop(open(&place(&v, &other, ino)).unwrap());
    drop(file);
    client.detach().unwrap();
    is_missing(&place(&v, &client, ino));
    drop(open(&place(&v, &other, ino)).unwrap());
    v.kill_daemon();
    is_missing(&place(&v, &other, ino));
    let third = attach(&v);
    drop(open(&place(&v, &third, ino)).unwrap());
    drop((other, third));
    v.umount();
    v.fsck();
}

/// A process that watches the root directory learns the name, but is neither of the client's user nor its process.
#[test]
fn the_name_is_of_no_use_to_other_users() {
    let has_setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    if !can_mount() || !has_setpriv {
        return eprintln!("SKIPPED: needs root, /dev/fuse and setpriv");
    }
    let v = Volume::trusting("open-by-others", &[]);
    v.mount();
    let root = fs::Permissions::from_mode(0o755);
    fs::set_permissions(v.mountpoint(), root).unwrap();
    let (client, _, file) = client_with_file(&v, b"nobody else's");
    fs::write(v.mountpoint().join("plain"), "everybody's").unwrap();
    let path = place(&v, &client, file.ino());
    let as_user = |user: &str, path: &PathBuf| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "cat"]);
        let output = command.arg(path).env("LC_ALL", "C").output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert_eq!(
        as_user("0", &path),
        "nobody else's",
        "a process of the same user"
    );
    let plain = v.mountpoint().join("plain");
    assert_eq!(as_user("65534", &plain), "everybody's");
    let refused = as_user("65534", &path);
    assert!(refused.contains("No such file"), "{refused}");
    drop(open(&path).unwrap());
    let refused = as_user("65534", &path);
    assert!(refused.contains("No such file"), "{refused}");
    drop(file);
    client.detach().unwrap();
    v.umount();
    v.fsck();
}
