//! One volume in memory with a mount point; everything goes when it is dropped.

pub use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program under test.
pub const SHALE: &str = env!("CARGO_BIN_EXE_shale");
/// No single step takes longer on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether this machine lets this user mount; says so if not.
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("SKIPPED: needs root and /dev/fuse");
    }
    can
}

/// A mounted volume; `None`, with a word, where there can be none, or no library.
pub fn with_library(name: &str) -> Option<Volume> {
    if !can_mount() {
        return None;
    }
    if !library().exists() {
        eprintln!("SKIPPED: {} is not built", library().display());
        return None;
    }
    let volume = Volume::new(name);
    volume.mount();
    Some(volume)
}

/// So many bytes that differ from file to file.
pub fn pattern(n: usize, bytes: usize) -> Vec<u8> {
    let word = |k: usize| ((n * 7919 + k) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..bytes / 8).flat_map(|k| word(k).to_le_bytes()).collect()
}

/// What a run of the program said.
pub struct Said {
    pub code: i32,
    /// Standard output, then standard error.
    pub text: String,
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.text);
        self.text
    }

    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}", self.text);
        self.text
    }
}

/// The library of `shale run`, which cargo builds beside this test when it builds the
/// workspace, but not with this test alone.
pub fn library() -> PathBuf {
    static NEWER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libshale_preload.so");
    if let Some(newer) = NEWER.get_or_init(|| newer_source(&library)) {
        let (library, newer) = (library.display(), newer.display());
        panic!("{library} is older than {newer}: cargo build -p shale-preload");
    }
    library
}

/// A source file of the library that has changed since it was built.
fn newer_source(library: &Path) -> Option<PathBuf> {
    let changed = |path: &Path| fs::metadata(path)?.modified();
    let built = changed(library).ok()?;
    // Cargo's list of what it read.
    let list = library.parent()?.with_file_name("libshale_preload.d");
    let list = fs::read_to_string(list).ok()?;
    let mut sources = list.split_whitespace().skip(1).map(PathBuf::from);
    sources.find(|path| changed(path).is_ok_and(|then| then > built))
}

/// Runs the program; a run that hangs is killed. Commands of `shale run` become clients
/// at once.
pub fn shale(args: &[&str]) -> Said {
    let output = Command::new("timeout")
        .args(["--signal=KILL", "60", SHALE])
        .args(args)
        .env("SHALE_PRELOAD", library())
        .env("SHALE_WARM_CALLS", "0")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    Said {
        code: output.status.code().unwrap_or(-1),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Kills a process of ours; one that is gone is no error.
pub fn kill(pid: u64) {
    signal(pid, Signal::KILL);
}

/// Sends a signal to a process of ours; one that is gone is no error.
pub fn signal(pid: u64, signal: Signal) {
    let is_ours =
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(SHALE));
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32).filter(|_| is_ours) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Whether a process has not ended: its last thread keeps its files and locks.
pub fn lives(pid: u64) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.any(|thread| {
        fs::read_to_string(thread.path().join("stat"))
            .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
    })
}

pub fn detach(place: &Path) {
    let flags = rustix::mount::UnmountFlags::DETACH;
    let _ = rustix::mount::unmount(place, flags);
}

/// Whether chattr(1) takes these flags.
pub fn chattr(flags: &str, path: &Path) -> bool {
    let status = Command::new("chattr").arg(flags).arg(path).status();
    status.unwrap().success()
}

/// The flags that lsattr(1) shows.
#[track_caller]
pub fn lsattr(path: &Path) -> String {
    let said = Command::new("lsattr").arg("-d").arg(path).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8(said.stdout).unwrap();
    let flags = said.split_whitespace().next().unwrap();
    flags.chars().filter(|&c| c != '-').collect()
}

/// Lets the other threads of a test end when it fails.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub struct Volume {
    dir: TempDir,
    /// Where the devices of lower tiers are.
    below: Option<TempDir>,
    file: String,
    place: String,
}

impl Volume {
    /// Makes a volume of 96 MiB.
    pub fn new(name: &str) -> Self {
        Self::of_nvm(name, "96M")
    }

    /// Makes a volume with NVM alone.
    pub fn of_nvm(name: &str, bytes: &str) -> Self {
        Self::made(name, bytes, None, &[])
    }

    /// Makes a volume whose clients are buffered.
    pub fn buffered(name: &str) -> Self {
        Self::made(name, "96M", None, &["--durability", "buffered"])
    }

    /// Makes a volume whose clients are ordered.
    pub fn ordered(name: &str) -> Self {
        Self::made(name, "96M", None, &["--durability", "ordered"])
    }

    /// Makes a volume that trusts users with mapping it. Everybody may go to its mount point.
    pub fn trusting(name: &str, users: &[&str]) -> Self {
        Self::trusting_with(name, "96M", users)
    }

    /// As [`Self::trusting`], of this size.
    pub fn trusting_with(name: &str, nvm_bytes: &str, users: &[&str]) -> Self {
        let trust: Vec<&str> = users.iter().flat_map(|user| ["--trust", user]).collect();
        let volume = Self::made(name, nvm_bytes, None, &trust);
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(volume.dir(), all).unwrap();
        volume
    }

    /// Makes a volume on three tiers of these sizes; those below NVM are image files.
    pub fn tiered(name: &str, nvm: &str, ssd: &str, hdd: &str) -> Self {
        let below = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = |n: &str, bytes| format!("{}:{bytes}", below.path().join(n).display());
        let (ssd, hdd) = (image("ssd.img", ssd), image("hdd.img", hdd));
        Self::made(name, nvm, Some(below), &["--ssd", &ssd, "--hdd", &hdd])
    }

    /// Makes a volume without NVM, on an SSD of this size.
    pub fn of_ssd(name: &str, bytes: &str) -> Self {
        let below = tempfile::tempdir_in("/var/tmp").unwrap();
        let ssd = format!("{}:{bytes}", below.path().join("ssd.img").display());
        Self::made_by(name, "0", Some(below), |mkfs| {
            shale(&[&mkfs[..2], &["--ssd", &ssd]].concat()).ok();
        })
    }

    /// Makes a volume with these devices: `--ssd` or `--hdd`, which other options may stand before; path in `below`, size.
    pub fn with_devices(
        name: &str,
        nvm: &str,
        below: TempDir,
        devices: &[(&str, &Path, &str)],
    ) -> Self {
        let mut args = Vec::new();
        for (tier, path, size) in devices {
            args.extend(tier.split(' ').map(str::to_owned));
            args.push(format!("{}:{size}", path.display()));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Self::made(name, nvm, Some(below), &args)
    }

    /// Makes a volume with these images (flash tier, disk tier, raw flash), under a umask.
    pub fn with_umask(name: &str, umask: &str, below: TempDir, images: &[PathBuf; 3]) -> Self {
        let [ssd, hdd, flash] = images.each_ref().map(|image| image.display());
        let devices =
            format!("--ssd {ssd}:64M --hdd {hdd}:64M --ssd {flash}:64M,kind=open-channel");
        let umask = umask.to_owned();
        Self::made_by(name, "96M", Some(below), |mkfs| {
            let script = format!("umask {umask}; exec {SHALE} {} {devices}", mkfs.join(" "));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        })
    }

    fn made(name: &str, nvm_bytes: &str, below: Option<TempDir>, more: &[&str]) -> Self {
        Self::made_by(name, nvm_bytes, below, |mkfs| {
            shale(&[mkfs, more].concat()).ok();
        })
    }

    fn made_by(
        name: &str,
        nvm_bytes: &str,
        below: Option<TempDir>,
        make: impl FnOnce(&[&str]),
    ) -> Self {
        let dir = tempfile::Builder::new()
            .prefix(&format!("shale-cli-{name}-"))
            .tempdir_in("/dev/shm")
            .unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (file, place, nvm) = (path("VOLUME.toml"), path("mount"), path("nvm"));
        fs::create_dir(&place).unwrap();
        let nvm = format!("{nvm}:{nvm_bytes}");
        make(&["mkfs", &file, "--nvm", &nvm, "--log-bytes", "16M"]);
        Self {
            dir,
            below,
            file,
            place,
        }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the devices of lower tiers are.
    pub fn below(&self) -> &Path {
        self.below.as_ref().expect("tiers").path()
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn mountpoint(&self) -> &Path {
        Path::new(&self.place)
    }

    pub fn shale(&self, args: &[&str]) -> Said {
        shale(args)
    }

    #[track_caller]
    pub fn mount(&self) {
        self.shale(&["mount", &self.file, &self.place]).ok();
        assert!(self.is_mounted());
    }

    #[track_caller]
    pub fn umount(&self) {
        self.shale(&["umount", &self.place]).ok();
        assert!(!self.is_mounted());
        assert!(self.state().is_none(), "its state is gone");
    }

    /// The volume is as it should be.
    #[track_caller]
    pub fn fsck(&self) {
        let text = self.shale(&["fsck", &self.file]).ok();
        assert!(text.contains("volume is clean"), "{text}");
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        let text = self.shale(&["status", &self.place, "--json"]).ok();
        serde_json::from_str(&text).unwrap()
    }

    /// Kills the daemon and waits for the next one.
    #[track_caller]
    pub fn kill_daemon(&self) {
        let old = self.status()["daemon_pid"].as_u64().unwrap();
        kill(old);
        wait_until("another daemon answers", || {
            self.status()["daemon_pid"] != old
        });
    }

    /// Directory in memory of the logs of its buffered and ordered clients.
    #[track_caller]
    pub fn buffer_dir(&self) -> PathBuf {
        let uuid = self.status()["uuid"].as_str().unwrap().to_owned();
        Path::new("/dev/shm").join(format!("shale-{uuid}"))
    }

    /// Kills the daemon and what would start another one.
    #[track_caller]
    pub fn kill_all(&self) {
        let status = self.status();
        for who in ["supervisor_pid", "daemon_pid"] {
            let pid = status[who].as_u64().unwrap();
            kill(pid);
            wait_until("the process has ended", || !lives(pid));
        }
        detach(self.mountpoint());
    }

    /// What a power cut does to a volume with NVM: processes end, and what was in memory is gone.
    #[track_caller]
    pub fn cut_power(&self) {
        let dir = self.buffer_dir();
        self.kill_all();
        fs::remove_dir_all(dir).unwrap();
    }

    pub fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        table.contains(&format!(" {} ", self.place))
    }

    /// What the supervisor has written down of this mount.
    pub fn state(&self) -> Option<Value> {
        let files = fs::read_dir("/run/shale").ok()?.flatten();
        files
            .filter_map(|entry| fs::read(entry.path().join("state.json")).ok())
            .filter_map(|text| serde_json::from_slice::<Value>(&text).ok())
            .find(|state| state["mountpoint"] == self.place)
    }

    /// Where direct clients reach the daemon.
    pub fn socket(&self) -> PathBuf {
        let dirs = fs::read_dir("/run/shale").unwrap().flatten();
        dirs.map(|entry| entry.path())
            .find(|dir| {
                let text = fs::read(dir.join("state.json")).unwrap_or_default();
                serde_json::from_slice::<Value>(&text)
                    .is_ok_and(|state| state["mountpoint"] == self.place)
            })
            .expect("the mount has a state")
            .join("socket")
    }

    pub fn recorded_daemon(&self) -> Option<u64> {
        self.state()?["daemon"]["pid"].as_u64()
    }

    /// Where the daemon's log is, for a test that fails.
    fn show_log(&self) {
        for entry in fs::read_dir("/run/shale").into_iter().flatten().flatten() {
            let state = fs::read_to_string(entry.path().join("state.json")).unwrap_or_default();
            if state.contains(&self.place) {
                let log = fs::read_to_string(entry.path().join("log")).unwrap_or_default();
                eprintln!("log of {}:\n{log}", self.place);
            }
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if thread::panicking() {
            self.show_log();
        }
        let pids: Vec<u64> = self.state().map_or(Vec::new(), |state| {
            ["supervisor", "daemon"]
                .iter()
                .filter_map(|who| state[who]["pid"].as_u64())
                .collect()
        });
        for pid in &pids {
            kill(*pid);
        }
        while self.is_mounted() {
            detach(self.mountpoint());
            thread::sleep(Duration::from_millis(10));
        }
        // The memory tier of a volume without NVM, and logs in memory, of a daemon that was killed.
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let uuid = text.lines().find_map(|line| line.strip_prefix("uuid = "));
        if let Some(uuid) = uuid
            .map(|uuid| uuid.trim_matches('"'))
            .filter(|u| u.len() >= 32)
        {
            let _ = fs::remove_dir_all(Path::new("/dev/shm").join(format!("shale-{uuid}")));
        }
        // What is left in the state directory is taken away by the next mount of anybody.
        for entry in fs::read_dir("/run/shale").into_iter().flatten().flatten() {
            let state = fs::read_to_string(entry.path().join("state.json")).unwrap_or_default();
            if state.contains(&self.place) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// The whole name of a test `function` of a module, for a run of that test alone.
pub fn test_named(module: &str, function: &str) -> String {
    let (_, path) = module.split_once("::").expect("a module below the crate");
    format!("{path}::{function}")
}
