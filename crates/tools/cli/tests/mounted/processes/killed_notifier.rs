//! A daemon that is killed while the kernel does what it was notified of: drops a page that a read has locked which this daemon
//! has not answered. No signal ends that thread, and only the next daemon's answer does.
//!
//! The read waits for a device whose image is in a file system of this test, which holds it up.

use crate::directory_fs::DirectoryFs;
use crate::volume::{Volume, can_mount, kill, pattern, wait_until};
use parking_lot::{Condvar, Mutex};
use shale_fuse::{MountOptions, ServeOptions};
use shale_libfs::{Caller, OFlags, Session, SessionOptions};
use shale_proto::SocketChannel;
use shale_sys::SystemClock;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 64 << 20;
const BYTES: usize = 1 << 20;

/// Whether reads wait, and how many do.
#[derive(Default)]
struct Latch {
    state: Mutex<(bool, usize)>,
    moved: Condvar,
}

impl Latch {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        while state.0 {
            self.moved.wait(&mut state);
        }
        state.1 -= 1;
    }

    fn close(&self, closed: bool) {
        self.state.lock().0 = closed;
        self.moved.notify_all();
    }

    fn holds(&self) -> bool {
        self.state.lock().1 > 0
    }
}

/// A file system with an image in it, served by this process.
struct SlowFs {
    place: TempDir,
    _backing: TempDir,
    latch: Arc<Latch>,
}

impl SlowFs {
    fn start() -> Self {
        let backing = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut options = fs::OpenOptions::new();
        let image = options.write(true).create_new(true).mode(0o600);
        let image = image.open(backing.path().join("image")).unwrap();
        image.set_len(IMAGE_BYTES).unwrap();
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let mount = shale_fuse::FuseSession::mount(place.path(), &MountOptions::default()).unwrap();
        let latch = Arc::new(Latch::default());
        let latch_of_reads = latch.clone();
        let reads = Box::new(move |_| latch_of_reads.pass());
        let files = Arc::new(DirectoryFs::new(backing.path(), reads));
        thread::spawn(move || mount.serve(files, &ServeOptions::default()).unwrap());
        Self {
            place,
            _backing: backing,
            latch,
        }
    }

    fn image(&self) -> PathBuf {
        self.place.path().join("image")
    }
}

impl Drop for SlowFs {
    fn drop(&mut self) {
        self.latch.close(false);
        let _ = shale_fuse::unmount(self.place.path(), true);
    }
}

/// If the test fails, reads are answered, and the mount is aborted: threads in the kernel may wait for an answer that nobody gives.
struct Ends<'a>(&'a Latch, &'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.close(false);
        if thread::panicking() {
            let _ = rustix::mount::unmount(self.1, rustix::mount::UnmountFlags::FORCE);
        }
    }
}

/// Whether the kernel waits in a notification of this process.
fn waits_in_notification(pid: u64) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let mut stats = threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|t| fs::read_to_string(t.path().join("stat")).ok());
    stats.any(|stat| stat.contains("(notify) D "))
}

/// A client that takes the file from the kernel. What becomes of it when the daemon is killed is its own matter.
fn take_file(session: &Arc<Session>) {
    let opened = session
        .tree(Caller::default())
        .open(b"file", OFlags::WRONLY, 0);
    let _ = opened.map(|file| file.pwrite(0, b"x"));
}

/// A volume whose file `file` lies on a slow device, and is not in the kernel's pages.
fn with_slow_file(name: &str, slow: &SlowFs) -> Volume {
    let below = tempfile::tempdir_in("/var/tmp").unwrap();
    let devices: [(&str, &Path, &str); 1] = [("--force --ssd", &slow.image(), "64M")];
    let v = Volume::with_devices(name, "64M", below, &devices);
    v.mount();
    let path = v.mountpoint().join("file");
    fs::write(&path, pattern(0, BYTES)).unwrap();
    v.shale(&["pin", path.to_str().unwrap(), "--tier", "ssd"])
        .ok();
    v.shale(&["migrate", v.place()]).ok();
    v.umount();
    v.mount();
    v
}

/// Has the daemon notify of a page that a program reads and gets no answer about, calls `then`, and gives what the program
/// read if that was no error.
fn read_while(v: &Volume, slow: &SlowFs, then: impl FnOnce(u64)) -> Option<Vec<u8>> {
    let channel = SocketChannel::connect(&v.socket()).unwrap();
    let client = Session::attach(
        Arc::new(channel),
        Arc::new(SystemClock::new()),
        Default::default(),
        SessionOptions::default(),
    );
    let client = client.unwrap();
    let path = v.mountpoint().join("file");
    let daemon = v.status()["daemon_pid"].as_u64().unwrap();
    slow.latch.close(true);
    let read = thread::scope(|scope| {
        let _ends = Ends(&slow.latch, v.mountpoint());
        // A process of its own: this one could start no program while it has a file of the mount open, since a new
        // program closes it, which asks the daemon.
        let reader = scope.spawn(|| Command::new("cat").arg(&path).output());
        wait_until("the read has come to the device", || slow.latch.holds());
        scope.spawn(|| take_file(&client));
        // For a moment any thread may.
        wait_until("the kernel is to drop the page", || {
            (0..10).all(|_| {
                thread::sleep(Duration::from_millis(5));
                waits_in_notification(daemon)
            })
        });
        then(daemon);
        wait_until("the read ends", || reader.is_finished());
        reader.join().unwrap().unwrap()
    });
    wait_until("nothing is left of the daemon", || {
        !Path::new(&format!("/proc/{daemon}")).exists()
    });
    read.status.success().then_some(read.stdout)
}

#[test]
fn a_daemon_that_is_killed_while_it_notifies_is_followed_by_another() {
    if !can_mount() {
        return;
    }
    let slow = SlowFs::start();
    let v = with_slow_file("killed-notifier", &slow);
    let mut old = 0;
    let read = read_while(&v, &slow, |daemon| {
        kill(daemon);
        slow.latch.close(false);
        old = daemon;
    });
    let read = read.expect("the read saw the kill");
    assert!(read[1..] == pattern(0, BYTES)[1..]);
    assert_ne!(v.status()["daemon_pid"], old);
    v.umount();
    v.fsck();
}

#[test]
fn a_mount_whose_notifier_and_supervisor_were_killed_is_taken_away() {
    if !can_mount() {
        return;
    }
    let slow = SlowFs::start();
    let v = with_slow_file("killed-both", &slow);
    let supervisor = v.status()["supervisor_pid"].as_u64().unwrap();
    let read = read_while(&v, &slow, |daemon| {
        kill(supervisor);
        kill(daemon);
        slow.latch.close(false);
        wait_until("the daemon is dead", || {
            fs::read_to_string(format!("/proc/{daemon}/stat"))
                .unwrap()
                .contains(") Z ")
        });
        // Nobody will ever answer: a caller that waits gets an error, and the mount goes as soon as he has.
        wait_until("it is unmounted", || {
            v.shale(&["umount", v.place()]).code == 0
        });
    });
    assert!(read.is_none(), "nobody can have answered");
    assert!(!v.is_mounted());
    v.mount();
    let read = fs::read(v.mountpoint().join("file")).unwrap();
    assert!(read[1..] == pattern(0, BYTES)[1..]);
    v.umount();
    v.fsck();
}
