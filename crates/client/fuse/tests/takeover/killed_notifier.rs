//! A daemon that is killed while the kernel does what it was notified of, and waits for a request that this daemon has not
//! answered: nothing of it keeps out the next one, whose answer ends what is left of it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use shale_fuse::{FuseSession, Inval, MountOptions, unmount};

use crate::{EndOnPanic, join_soon, start_child};

/// Tells a child to answer no read, and to notify of the file that is read.
const HOLD: &str = "SHALE_FUSE_TEST_HOLD";

/// What a child does before it answers a read. One that is to hold reads locks a file, as a daemon locks its volume.
pub fn in_child(session: &FuseSession, state: &Path) -> Box<dyn Fn(u64) + Send + Sync> {
    if std::env::var(HOLD).is_err() {
        return Box::new(|_| {});
    }
    let lock = File::open(state.join("lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let (sender, reads) = channel();
    let notifier = session.notifier();
    let notify = move || {
        let _lock = lock;
        for ino in reads {
            notifier.inval_inode(ino, Inval::All).unwrap();
        }
    };
    let thread = thread::Builder::new().name("notify".to_owned());
    thread.spawn(notify).unwrap();
    Box::new(move |ino| {
        sender.send(ino).unwrap();
        thread::sleep(Duration::from_secs(3600));
    })
}

/// Whether a thread of a child that notifies is where no signal ends it.
fn waits_in_kernel(child: &Child) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let mut states = threads
        .flatten()
        .filter_map(|t| fs::read_to_string(t.path().join("stat")).ok());
    states.any(|stat| stat.contains("(notify) D "))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(10), "in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_notifier_keeps_nobody_out() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root and /dev/fuse");
        return;
    }
    let mount = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(state.path().join("files")).unwrap();
    fs::write(state.path().join("files/f"), "contents").unwrap();
    let lock = File::create(state.path().join("lock")).unwrap();
    let session = FuseSession::mount(mount.path(), &MountOptions::default()).unwrap();
    let _end = EndOnPanic(mount.path());

    let mut first = start_child(&session, state.path(), Some(HOLD));
    thread::scope(|scope| {
        let _end = EndOnPanic(mount.path());
        // A process of its own: one that has a file of the mount open cannot start the next daemon, since a new program
        // closes it, which asks.
        let reader = scope.spawn(|| Command::new("cat").arg(mount.path().join("f")).output());
        // For a moment any thread may.
        wait_until("it notifies of the page that is read", || {
            (0..10).all(|_| {
                thread::sleep(Duration::from_millis(5));
                waits_in_kernel(&first)
            })
        });
        let taken = || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        assert!(!taken());
        first.kill().unwrap();
        wait_until("its lock is free", taken);
        assert!(first.try_wait().unwrap().is_none(), "its thread waits");
        assert!(!reader.is_finished());

        let mut next = start_child(&session, state.path(), None);
        assert_eq!(join_soon(reader).unwrap().stdout, b"contents");
        wait_until("the first one has ended", || {
            first.try_wait().unwrap().is_some()
        });
        unmount(mount.path(), false).unwrap();
        assert!(next.wait().unwrap().success());
    });
}
