//! FUSE clients know how long a file is that a client past the mount made longer, and who may read it.

use super::mount_and_library::attach;
use crate::volume::{Volume, can_mount};
use shale_libfs::{Caller, OFlags};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const ROUNDS: u64 = 80;
const PIECE: usize = 100;

/// The kernel drops the answer to its question for a size when somebody's write returns
/// meanwhile. A reader must get what is there all the same, at its first try.
#[test]
fn a_size_is_known_though_others_write_meanwhile() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("sizes");
    v.mount();
    let path = v.mountpoint().join("file");
    let open = || OpenOptions::new().read(true).write(true).open(&path);
    std::fs::write(&path, [b'x'; PIECE]).unwrap();
    let session = attach(&v);
    let tree = session.tree(Caller::default());
    let direct = tree.open(b"file", OFlags::RDWR, 0).unwrap();
    let (file, done) = (open().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for at in 0..2 {
            let (other, done) = (open().unwrap(), &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    other.write_all_at(b"x", at).unwrap();
                }
            });
        }
        let mut short = 0;
        for round in 1..ROUNDS {
            let end = round * PIECE as u64;
            direct.pwrite(end, &[b'x'; PIECE]).unwrap();
            let mut bytes = [0; 2 * PIECE];
            let read = file.read_at(&mut bytes, end).unwrap();
            assert!(bytes[..read].iter().all(|&b| b == b'x'), "round {round}");
            short += u32::from(read != PIECE);
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(short, 0, "reads that ended before what had been written");
    });
}

/// What the kernel learns of a file's size must not keep it from learning its mode: it decides by that.
#[test]
fn a_mode_is_known_when_the_file_comes_back() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("modes");
    v.mount();
    let path = v.mountpoint().join("file");
    let nobody_reads = || {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut cat = Command::new("setpriv");
        cat.args(user).args(["cat", "file"]);
        let cat = cat.current_dir(v.mountpoint()).output().unwrap();
        cat.status.success()
    };
    let mode = |mode| rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(mode)).unwrap();
    std::fs::write(&path, "content").unwrap();
    let session = attach(&v);
    let tree = session.tree(Caller::default());
    let direct = tree.open(b"file", OFlags::RDWR, 0).unwrap();
    for _ in 0..10 {
        mode(0o644);
        assert!(nobody_reads());
        direct.pwrite(7, b"more").unwrap();
        tree.chmod(b"file", 0o600).unwrap();
        assert!(!nobody_reads(), "closed by a client");
        direct.pwrite(7, b"more").unwrap();
        tree.chmod(b"file", 0o644).unwrap();
        assert!(nobody_reads(), "opened by a client");
    }
}
