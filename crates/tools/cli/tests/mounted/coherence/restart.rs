//! After a daemon was killed: what the mount has looked at before, and what the kernel keeps of it,
//! is not older than what programs have written past the mount since.

use crate::volume::{Volume, can_mount, with_library};
use shale_libfs::{Caller, OFlags, Session, SessionOptions};
use shale_proto::SocketChannel;
use shale_sys::SystemClock;
use std::fs;
use std::sync::Arc;

const LINES: usize = 200;

#[test]
fn the_mount_reads_what_a_program_wrote_after_the_daemon_was_killed() {
    let Some(v) = with_library("restart") else {
        return;
    };
    v.kill_daemon();
    // The program opens its file on the mount, which makes it and knows that it is empty.
    for n in 0..6 {
        let file = v.mountpoint().join(n.to_string());
        let script = format!(
            "exec 5>>{}; i=0; while [ $i -lt {LINES} ]; do echo line >&5; i=$((i+1)); done",
            file.display()
        );
        let output = v
            .shale(&["run", "--report", "--", "sh", "-c", &script])
            .ok();
        let write = output.lines().find(|l| l.starts_with("write "));
        let fast = write.and_then(|l| l.split_whitespace().nth(1));
        assert_eq!(fast, Some(LINES.to_string().as_str()), "{output}");
        let expected = "line\n".repeat(LINES);
        assert_eq!(fs::metadata(&file).unwrap().len(), expected.len() as u64);
        assert!(fs::read_to_string(&file).unwrap() == expected, "{file:?}");
    }
    v.umount();
    v.fsck();
}

#[test]
fn a_directory_with_a_file_is_not_removed_after_the_daemon_was_killed() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("restart-dir");
    v.mount();
    v.kill_daemon();
    let dir = v.mountpoint().join("dir");
    fs::create_dir(&dir).unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    let channel = SocketChannel::connect(&v.socket()).unwrap();
    let session = Session::attach(
        Arc::new(channel),
        Arc::new(SystemClock::new()),
        Default::default(),
        SessionOptions::default(),
    );
    let session = session.unwrap();
    let made = session.tree(Caller::default()).open(
        b"dir/made",
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        0o644,
    );
    made.unwrap().pwrite(0, b"hello").unwrap();
    session.detach().unwrap();
    let refused = fs::remove_dir(&dir).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(fs::read(dir.join("made")).unwrap(), b"hello");
    fs::remove_file(dir.join("made")).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(fs::read_dir(v.mountpoint()).unwrap().count(), 0);
    v.umount();
    v.fsck();
}
