//! How many requests the kernel sends for common operations: what a call through the mount
//! costs on every machine.

use crate::volume::{Volume, can_mount};
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// Requests of a kind since the daemon started.
fn count(v: &Volume, kind: &str) -> u64 {
    v.status()["mount_requests"][kind].as_u64().unwrap_or(0)
}

/// Requests of all kinds.
fn all(v: &Volume) -> u64 {
    let status = v.status();
    let kinds = status["mount_requests"].as_object().unwrap();
    kinds.values().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn fsync_of_a_strict_volume_is_asked_for_once() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("requests");
    v.mount();
    let mut file = fs::File::create(v.mountpoint().join("file")).unwrap();
    let directory = fs::File::open(v.mountpoint()).unwrap();
    // Whole pages: an append that ends within one that is not cached is two requests.
    file.write_all(&[0; 4096]).unwrap();
    file.sync_all().unwrap();
    directory.sync_all().unwrap();
    let (writes, before) = (count(&v, "WRITE"), all(&v));
    for _ in 0..100 {
        file.write_all(&[1; 4096]).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        directory.sync_all().unwrap();
    }
    let sent = all(&v) - before;
    assert_eq!(count(&v, "WRITE") - writes, 100);
    assert!(sent <= 102, "{sent} requests for 100 synchronous appends");
    assert!(count(&v, "FSYNC") <= 1 && count(&v, "FSYNCDIR") <= 1);

    // The kernel answers for a daemon that it knows nothing of, too.
    v.kill_daemon();
    file.sync_all().unwrap();
    assert_eq!(count(&v, "FSYNC"), 0);
    drop((file, directory));
    v.umount();
}

/// Stores a page through a shared mapping, calls fsync(2), and stays until its input ends.
const MAPPED: &str = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(fd, bytes(8192), 0)
os.fsync(fd)
pages = mmap.mmap(fd, 8192)
pages[4096:4102] = b'mapped'
os.fsync(fd)
print('synced', flush=True)
sys.stdin.read()
";

#[test]
fn fsync_still_sends_what_was_stored_through_a_mapping() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("fsync-mapped");
    v.mount();
    let path = v.mountpoint().join("file");
    let mut program = Command::new("python3")
        .args(["-c", MAPPED])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 7];
    let mut output = program.stdout.take().unwrap();
    output.read_exact(&mut said).unwrap();
    // The mapping is still there: what the kernel has not sent, it keeps. One write of 8 KiB, one of the page.
    assert_eq!(count(&v, "WRITE"), 2);
    program.kill().unwrap();
    program.wait().unwrap();
    v.umount();
    v.mount();
    assert_eq!(&fs::read(&path).unwrap()[4096..4102], b"mapped");
    v.umount();
}
