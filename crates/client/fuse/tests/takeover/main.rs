//! Daemons that are killed again and again, seen from programs: not at all.
//!
//! The test process is the supervisor: it mounts and keeps the descriptor. Its
//! children (this same program, as its environment says) adopt the mount, serve it
//! and get killed, while threads of the test process use it and check every result.

mod directory_fs;
mod killed_notifier;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use directory_fs::DirectoryFs;
use shale_fuse::{Ended, FuseSession, MountInfo, MountOptions, ServeOptions, unmount};

/// Tells a child where its state is.
const STATE: &str = "SHALE_FUSE_TEST_STATE";
/// Tells a child to hang before the first answer.
const HANG_IN_INIT: &str = "SHALE_FUSE_TEST_HANG_IN_INIT";

const KILLS: u32 = 20;
const WRITERS: u64 = 2;
const BLOCKS: u64 = 32;
const BLOCK: usize = 4096;

/// Not a test: what a child runs. Without its environment it does nothing.
#[test]
fn child_serves() {
    let Ok(state) = std::env::var(STATE) else {
        return;
    };
    let state = Path::new(&state);
    let device: OwnedFd = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let info = match fs::read(state.join("info")) {
        Ok(bytes) => MountInfo::from_bytes(&bytes).unwrap(),
        Err(_) => MountInfo::new(),
    };
    let session = FuseSession::adopt(device, info, true).unwrap();
    let dir = state.to_owned();
    let options = ServeOptions {
        threads: 2,
        // Names and attributes are asked for each time, for more requests to lose.
        entry_timeout: Duration::ZERO,
        attr_timeout: Duration::ZERO,
        on_init: Some(Box::new(move |info| {
            if std::env::var(HANG_IN_INIT).is_ok() {
                fs::write(dir.join("hanging"), b"").unwrap();
                thread::sleep(Duration::from_secs(3600));
            }
            fs::write(dir.join("info.new"), info.to_bytes()).unwrap();
            fs::rename(dir.join("info.new"), dir.join("info")).unwrap();
        })),
        ..ServeOptions::default()
    };
    let reads = killed_notifier::in_child(&session, state);
    let fs = Arc::new(DirectoryFs::new(&state.join("files"), reads));
    assert_eq!(session.serve(fs, &options).unwrap(), Ended::Unmounted);
}

fn start_child(session: &FuseSession, state: &Path, hangs: Option<&str>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["child_serves", "--exact", "--nocapture"])
        .env(STATE, state);
    if let Some(how) = hangs {
        command.env(how, "1");
    }
    command
        .stdin(Stdio::from(session.fd().try_clone_to_owned().unwrap()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a child and gives what is left of it. A thread of it that notified may wait for a page that is locked by a request
/// which the next child answers (`killed_notifier`): until then the child is not there to be waited for.
fn kill(mut child: Child) -> Option<Child> {
    child.kill().unwrap();
    let started = Instant::now();
    loop {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        if only_notifies(child.id()) {
            return Some(child);
        }
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(10), "a child does not end");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Whether all threads of a process have ended but those that notify.
fn only_notifies(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let states =
        threads.map_while(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let states: Vec<_> = states.collect();
    let notifies = |stat: &String| stat.contains("(notify) D ");
    let ended = |stat: &String| stat.contains(") Z ") || stat.contains(") X ");
    states.iter().any(notifies) && states.iter().all(|stat| ended(stat) || notifies(stat))
}

/// What block `block` of file `file` holds in its `version`th form.
fn content(file: u64, block: u64, version: u64) -> [u8; BLOCK] {
    let mut bytes = [(file * 7 + block * 13 + version) as u8; BLOCK];
    bytes[..8].copy_from_slice(&version.to_ne_bytes());
    bytes
}

/// Writes, reads back past the cache, asks for attributes, lists. Any error and any
/// wrong byte ends it.
fn write_and_check(mount: &Path, file: u64, stop: &AtomicBool, done: &AtomicU64) -> io::Result<()> {
    let path = mount.join(format!("f{file}"));
    let cached = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)?;
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)?;
    cached.set_len(BLOCKS * BLOCK as u64)?;
    let mut versions = [0u64; BLOCKS as usize];
    let mut seed = file + 1;
    let mut back = [0u8; BLOCK];
    while !stop.load(Ordering::Relaxed) {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let block = (seed >> 33) % BLOCKS;
        let version = &mut versions[block as usize];
        *version += 1;
        let wanted = content(file, block, *version);
        cached.write_all_at(&wanted, block * BLOCK as u64)?;
        direct.read_exact_at(&mut back, block * BLOCK as u64)?;
        assert!(
            back == wanted,
            "file {file} block {block} version {version}"
        );
        assert_eq!(fs::metadata(&path)?.len(), BLOCKS * BLOCK as u64);
        if seed.is_multiple_of(8) {
            let extra = mount.join(format!("extra{file}"));
            File::create(&extra)?;
            assert!(fs::read_dir(mount)?.count() >= 2);
            fs::remove_file(&extra)?;
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Ends the process if the test fails: its threads may hang in requests that nobody
/// will answer, which only the end of the last descriptor's holder ends.
struct EndOnPanic<'a>(&'a Path);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Aborts the mount: there may be threads in the kernel that wait for an answer and cannot be killed.
            let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::FORCE);
            let _ = unmount(self.0, true);
            std::process::exit(101);
        }
    }
}

/// Waits for a thread that has to end within 10 s.
fn join_soon<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let started = Instant::now();
    while !thread.is_finished() {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "a request is never answered"
        );
        thread::sleep(Duration::from_millis(1));
    }
    thread.join().unwrap()
}

#[test]
fn killed_daemons_are_not_seen() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root and /dev/fuse");
        return;
    }
    let mount = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(state.path().join("files")).unwrap();
    let session = FuseSession::mount(mount.path(), &MountOptions::default()).unwrap();
    let _end = EndOnPanic(mount.path());

    // One that has read the first request and never answers it.
    let first = start_child(&session, state.path(), Some(HANG_IN_INIT));
    let started = Instant::now();
    while !state.path().join("hanging").exists() {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "the first request did not come"
        );
        thread::sleep(Duration::from_millis(1));
    }
    assert!(kill(first).is_none());

    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _end = EndOnPanic(mount.path());
        let writers: Vec<_> = (0..WRITERS)
            .map(|file| {
                let (path, stop, done) = (mount.path(), &stop, &done);
                scope.spawn(move || write_and_check(path, file, stop, done))
            })
            .collect();
        let (mut productive, mut left) = (0, Vec::new());
        for round in 0..KILLS {
            let before = done.load(Ordering::Relaxed);
            let child = start_child(&session, state.path(), None);
            // Every second one has served by then, however slow the machine.
            let started = Instant::now();
            while round % 2 == 0
                && done.load(Ordering::Relaxed) == before
                && started.elapsed() < Duration::from_secs(10)
            {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_micros(u64::from(
                15_000 + round * 7_919 % 23_000,
            )));
            left.extend(kill(child));
            productive += u32::from(done.load(Ordering::Relaxed) > before);
            assert!(
                writers.iter().all(|w| !w.is_finished()),
                "a program saw the kill"
            );
        }
        let mut last = start_child(&session, state.path(), None);
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            join_soon(writer).expect("a program saw the kill");
        }
        for mut killed in left {
            killed.wait().unwrap();
        }
        unmount(mount.path(), false).unwrap();
        assert!(last.wait().unwrap().success());
        eprintln!("{KILLS} kills, {productive} under load, {done:?} rounds of operations");
        assert!(
            productive >= KILLS / 2,
            "only {productive} kills hit a daemon that served"
        );
    });
}
