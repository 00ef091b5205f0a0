//! SIGTERM to the processes of a mount, as a service manager sends it to what a login left running when the machine ends.

use crate::volume::{Signal, Volume, can_mount, lives, signal, wait_until};
use std::fs;
use std::io::Read;

#[test]
fn a_mount_that_is_terminated_is_unmounted_in_order() {
    if !can_mount() {
        return;
    }
    let v = Volume::buffered("terminated");
    v.mount();
    fs::write(v.mountpoint().join("file"), b"content").unwrap();
    let status = v.status();
    for process in ["daemon_pid", "supervisor_pid"] {
        signal(status[process].as_u64().unwrap(), Signal::TERM);
    }
    wait_until("every log is in the volume", || v.state().is_none());
    assert!(!v.is_mounted());
    v.fsck();
    v.mount();
    assert_eq!(fs::read(v.mountpoint().join("file")).unwrap(), b"content");
    v.umount();
}

#[test]
fn one_that_is_in_use_is_served_until_its_last_file_is_closed() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("terminated-in-use");
    v.mount();
    let path = v.mountpoint().join("file");
    fs::write(&path, b"content").unwrap();
    let mut open = fs::File::open(&path).unwrap();
    let supervisor = v.status()["supervisor_pid"].as_u64().unwrap();
    signal(supervisor, Signal::TERM);
    wait_until("its name is gone", || !v.is_mounted());
    // Once more changes nothing.
    signal(supervisor, Signal::TERM);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert!(text == "content" && lives(supervisor));
    drop(open);
    wait_until("its processes end", || {
        v.state().is_none() && !lives(supervisor)
    });
    v.fsck();
}
