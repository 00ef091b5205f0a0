//! What is left when a backup is cut off, and that nobody waits longer than was said: not after a kill of `shale backup`,
//! nor of the daemon, nor when the time is over.

use super::{backup, of_each_kind, restore, states, text};
use crate::volume::{SHALE, Volume, can_mount, library, shale, wait_until};
use shale_libfs::{Caller, Errno, Recent, Session, SessionOptions};
use shale_proto::SocketChannel;
use shale_sys::SystemClock;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// One more client, as `shale backup` is.
fn client(v: &Volume) -> Arc<Session> {
    let channel = Arc::new(SocketChannel::connect(&v.socket()).unwrap());
    let clock = Arc::new(SystemClock::new());
    Session::attach(channel, clock, Recent::default(), SessionOptions::default()).unwrap()
}

/// Programs that count in a file each, on the mount and under `shale run`, until they are dropped.
/// They say beside the volume how far they are: to read a file on the mount can have to wait for the kernel's lock, which a call holds that waits.
struct Counters {
    beside: TempDir,
    children: Vec<Child>,
}

const NAMES: [&str; 2] = ["on-the-mount", "under-run"];
const SCRIPT: &str = "\
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
said = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
number = 0
while True:
    number += 1
    os.pwrite(file, b'%020d' % number, 0)
    os.pwrite(said, b'%020d' % number, 0)
";

impl Counters {
    fn start(v: &Volume) -> Self {
        let beside = tempfile::tempdir_in("/var/tmp").unwrap();
        let start = |name: &str| {
            let mut command = match name == NAMES[0] {
                true => Command::new("python3"),
                false => Command::new(SHALE),
            };
            if name != NAMES[0] {
                command.args(["run", "--", "python3"]);
            }
            let command = command
                .args(["-c", SCRIPT])
                .arg(v.mountpoint().join(name))
                .arg(beside.path().join(name))
                .env("SHALE_PRELOAD", library())
                .env("SHALE_WARM_CALLS", "0");
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        let counters = Self {
            children: NAMES.map(start).into(),
            beside,
        };
        counters.assert_counting("from the start");
        counters
    }

    /// How far they are.
    fn now(&self) -> Vec<u64> {
        let number = |name: &&str| {
            let text = fs::read_to_string(self.beside.path().join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        NAMES.iter().map(number).collect()
    }

    #[track_caller]
    fn assert_counting(&self, when: &str) {
        let before = self.now();
        wait_until(when, || {
            self.now()
                .iter()
                .zip(&before)
                .all(|(now, before)| now > before)
        });
    }

    /// Whether both have gone on within this time.
    fn count_within(&self, time: Duration) -> bool {
        let before = self.now();
        let begun = Instant::now();
        while begun.elapsed() < time {
            if self
                .now()
                .iter()
                .zip(&before)
                .all(|(now, before)| now > before)
            {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The number in a file, read by a session.
fn count_of(session: &Session, name: &str) -> u64 {
    let caller = Caller::default();
    let ino = session.lookup(&caller, 1, name.as_bytes()).unwrap().ino;
    let mut text = [0; 20];
    assert_eq!(session.read(&caller, ino, 0, &mut text), Ok(20));
    std::str::from_utf8(&text).unwrap().trim().parse().unwrap()
}

#[test]
fn nothing_changes_while_it_is_frozen_and_all_goes_on_afterwards() {
    for v in of_each_kind("freeze") {
        let counters = Counters::start(&v);
        let session = client(&v);
        for _ in 0..5 {
            session.freeze(Duration::from_secs(30)).unwrap();
            let counts = || NAMES.map(|name| count_of(&session, name));
            let first = counts();
            let stats = fs::metadata(v.mountpoint()).unwrap();
            assert!(stats.is_dir(), "who reads does not wait");
            for _ in 0..30 {
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(counts(), first);
            }
            // A client that comes now waits, too.
            let late = client(&v);
            let came = Arc::new(AtomicBool::new(false));
            let (done, name) = (came.clone(), format!("late-{}", first[0]));
            let thread = std::thread::spawn(move || {
                let caller = Caller::default();
                let made = late.create(&caller, 1, name.as_bytes(), 0o644, 0);
                done.store(true, Ordering::Release);
                made
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!came.load(Ordering::Acquire));
            // Only one at a time.
            let other = client(&v);
            assert_eq!(other.freeze(Duration::from_secs(1)), Err(Errno::BUSY));
            assert_eq!(other.thaw(), Err(Errno::TIMEDOUT));
            assert!(session.thaw().unwrap() >= Duration::from_millis(200));
            thread.join().unwrap().unwrap();
            counters.assert_counting("after the thaw");
            let now = counters.now();
            assert!(
                NAMES
                    .iter()
                    .zip(now)
                    .all(|(name, now)| count_of(&session, name) >= now)
            );
        }
        drop(counters);
        drop(session);
        v.umount();
        v.fsck();
    }
}

#[test]
fn a_freeze_ends_with_its_time_its_client_and_its_daemon() {
    for v in of_each_kind("freeze-end") {
        let counters = Counters::start(&v);
        // Its time.
        let session = client(&v);
        session.freeze(Duration::from_millis(300)).unwrap();
        let first = count_of(&session, NAMES[0]);
        counters.assert_counting("after its time");
        assert_eq!(session.thaw(), Err(Errno::TIMEDOUT));
        assert!(
            count_of(&session, NAMES[0]) > first,
            "it reads what is there now"
        );
        // Its client.
        session.freeze(Duration::from_secs(600)).unwrap();
        assert!(!counters.count_within(Duration::from_millis(100)));
        drop(session);
        let begun = Instant::now();
        counters.assert_counting("after its client");
        assert!(begun.elapsed() < Duration::from_secs(10));
        // Its daemon.
        let session = client(&v);
        session.freeze(Duration::from_secs(600)).unwrap();
        assert!(!counters.count_within(Duration::from_millis(100)));
        v.kill_daemon();
        let begun = Instant::now();
        counters.assert_counting("after its daemon");
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert!(session.thaw().is_err());
        drop(counters);
        v.umount();
        v.fsck();
    }
}

/// Killed at any moment, `shale backup` leaves no backup that counts, does not touch those before, and nobody waits.
#[test]
fn a_backup_that_is_killed_is_not_there_and_takes_nothing_away() {
    for v in of_each_kind("backup-killed") {
        let beside = tempfile::tempdir_in("/var/tmp").unwrap();
        let (dest, target) = (beside.path().join("dest"), beside.path().join("target"));
        fs::write(v.mountpoint().join("old"), vec![1; 3 << 20]).unwrap();
        backup(&v, &dest);
        let counters = Counters::start(&v);
        for n in 0..16u64 {
            fs::write(v.mountpoint().join("new"), vec![n as u8; 6 << 20]).unwrap();
            let before = states(&dest).iter().filter(|s| *s == "complete").count();
            let mut taking = Command::new(SHALE)
                .args(["backup", v.place(), text(&dest), "--full"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(n * 7));
            taking.kill().unwrap();
            let ended = taking.wait().unwrap();
            counters.assert_counting("after a kill");
            let after = states(&dest).iter().filter(|s| *s == "complete").count();
            let is_done = usize::from(ended.success());
            // It may have been complete, and not said so.
            assert!(
                (before + is_done..=before + 1).contains(&after),
                "{before} {after}"
            );
            shale(&["backup", "--verify", text(&dest)]).ok();
        }
        drop(counters);
        backup(&v, &dest);
        assert!(states(&dest).iter().all(|state| state == "complete"));
        restore(&dest, &target, &["--at", "0001"]);
        assert_eq!(fs::read(target.join("old")).unwrap(), vec![1; 3 << 20]);
        v.umount();
    }
}

/// A daemon that is killed while a backup is taken: the backup fails, or is whole, and what was complete stays so.
#[test]
fn a_daemon_that_is_killed_meanwhile_makes_no_half_backup() {
    for v in of_each_kind("backup-daemon") {
        let beside = tempfile::tempdir_in("/var/tmp").unwrap();
        let (dest, target) = (beside.path().join("dest"), beside.path().join("target"));
        for n in 0..40 {
            fs::write(v.mountpoint().join(format!("file-{n}")), vec![n; 300_000]).unwrap();
        }
        backup(&v, &dest);
        let counters = Counters::start(&v);
        for n in 0..6u64 {
            let taking = Command::new(SHALE)
                .args(["backup", v.place(), text(&dest), "--full"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let mut taking = taking.unwrap();
            std::thread::sleep(Duration::from_millis(10 + n * 15));
            v.kill_daemon();
            let _ = taking.wait().unwrap();
            counters.assert_counting("after the next daemon has come");
            shale(&["backup", "--verify", text(&dest)]).ok();
        }
        drop(counters);
        backup(&v, &dest);
        for number in 1..=states(&dest).len() {
            let at = format!("{number:04}");
            restore(&dest, &target, &["--in-place", "--at", &at]);
            for n in 0..40 {
                let read = fs::read(target.join(format!("file-{n}"))).unwrap();
                assert!(read == vec![n; 300_000], "file {n} of backup {at}");
            }
        }
        v.umount();
        v.fsck();
    }
}

/// A destination without space: the backup fails and says so, and those before are whole.
#[test]
fn a_full_destination_takes_nothing_away() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("backup-full");
    v.mount();
    let small = tempfile::tempdir_in("/dev/shm").unwrap();
    let options = Some(c"size=12m");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", small.path(), "tmpfs", flags, options).unwrap();
    let done = std::panic::catch_unwind(|| full(&v, small.path()));
    crate::volume::detach(small.path());
    done.unwrap();
    v.umount();
}

fn full(v: &Volume, small: &Path) {
    let dest = small.join("dest");
    fs::write(v.mountpoint().join("file"), vec![1; 4 << 20]).unwrap();
    backup(v, &dest);
    let file = fs::File::create(v.mountpoint().join("large")).unwrap();
    for n in 0..20u64 {
        file.write_all_at(&vec![n as u8; 1 << 20], n << 20).unwrap();
    }
    drop(file);
    let said = shale(&["backup", v.place(), text(&dest)]).failed(1);
    assert!(said.contains("No space left"), "{said}");
    assert_eq!(states(&dest), ["complete"], "what it had written is gone");
    shale(&["backup", "--verify", text(&dest)]).ok();
    fs::remove_file(v.mountpoint().join("large")).unwrap();
    backup(v, &dest);
    assert_eq!(states(&dest), ["complete", "complete"]);
}

/// Where too much changes for the time that is given, nobody waits longer, and it is said.
#[test]
fn too_short_a_freeze_is_no_backup() {
    if !can_mount() {
        return;
    }
    let v = Volume::of_nvm("backup-short", "256M");
    v.mount();
    let beside = tempfile::tempdir_in("/var/tmp").unwrap();
    let dest = beside.path().join("dest");
    // To look at all of them takes longer, whatever the writer does.
    for n in 0..4000 {
        fs::write(v.mountpoint().join(format!("file-{n}")), "").unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let longest = Arc::new(AtomicU64::new(0));
    let (stopped, waited) = (stop.clone(), longest.clone());
    let path = v.mountpoint().join("rewritten");
    let writer = std::thread::spawn(move || {
        let file = fs::File::create(path).unwrap();
        for n in 0u64.. {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            file.write_all_at(&vec![n as u8; 1 << 20], (n % 64) << 20)
                .unwrap();
            waited.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
    });
    std::thread::sleep(Duration::from_millis(500));
    let said = shale(&["backup", v.place(), text(&dest), "--max-freeze", "1ms"]);
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let said = said.failed(1);
    assert!(
        said.contains("in 3 tries") && said.contains("--max-freeze"),
        "{said}"
    );
    assert!(longest.load(Ordering::Relaxed) < 5_000, "{longest:?} ms");
    assert_eq!(states(&dest), Vec::<String>::new());
    v.umount();
}

#[test]
fn mistakes_are_reported() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("backup-mistakes");
    v.mount();
    let beside = tempfile::tempdir_in("/var/tmp").unwrap();
    let dest = beside.path().join("dest");
    let inside = v.mountpoint().join("dest");
    let said = shale(&["backup", v.place(), text(&inside)]).failed(2);
    assert!(said.contains("lies on the volume itself"), "{said}");
    shale(&["backup", text(beside.path()), text(&dest)]).failed(4);
    let said = shale(&["backup", v.file(), text(&dest)]).failed(1);
    assert!(said.contains("in use"), "{said}");
    fs::write(beside.path().join("something"), "").unwrap();
    let said = shale(&["backup", v.place(), text(beside.path())]).failed(1);
    assert!(said.contains("no directory of backups"), "{said}");
    shale(&["backup", v.place(), text(&dest), "--max-freeze", "0s"]).failed(2);
    shale(&["backup", v.place(), text(&dest), "--max-freeze", "11m"]).failed(2);
    shale(&["backup", v.place()]).failed(2);
    backup(&v, &dest);
    let said = shale(&["restore", text(&dest), text(&dest), "--at", "0007"]).failed(1);
    assert!(said.contains("no complete backup 0007"), "{said}");
    shale(&["backup", v.place(), text(&dest), "--base", "0007"]).failed(1);
    v.umount();
}
