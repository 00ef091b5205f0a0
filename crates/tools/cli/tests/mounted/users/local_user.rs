//! What a user of the machine without rights on a volume can do to it: nothing. Modes of every file that Shale makes, locks,
//! names taken beforehand, links planted, a socket flooded.

use crate::volume::{SHALE, Said, Volume, can_mount, library, shale, signal, wait_until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A user who has no rights anywhere.
const NOBODY: u32 = 65534;

/// A command as nobody.
fn as_nobody(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let user = [
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "timeout",
        "60",
        program,
    ];
    command.args(user).args(args).stdin(Stdio::null());
    command
}

/// The program where nobody finds it, too.
fn program(dir: &Path) -> String {
    let place = dir.join("program");
    if fs::hard_link(SHALE, &place).is_err() {
        fs::copy(SHALE, &place).unwrap();
    }
    place.to_str().unwrap().to_owned()
}

fn said(mut command: Command) -> Said {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Said {
        code: output.status.code().unwrap_or(-1),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

/// Has everybody come as far as the files of a volume.
fn open_way(v: &Volume) {
    set_mode(v.dir(), 0o755);
    set_mode(v.below(), 0o755);
}

/// Where the state of a mount is.
fn state_dir(v: &Volume) -> PathBuf {
    v.socket().parent().unwrap().to_owned()
}

/// Every file below these directories, by its name with numbers as N, with its mode.
fn modes(places: &[&Path]) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for place in places {
        for entry in fs::read_dir(place).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let numbered = ["seg-", "log-", "map-"]
                .iter()
                .find(|p| name.starts_with(**p));
            let name = numbered.map_or(name.clone(), |prefix| format!("{prefix}N"));
            // Also one that is about to get its name, and may have it by now.
            let name = match name.strip_suffix(".new") {
                Some("state") => "state.json".to_owned(),
                Some(name) => name.to_owned(),
                None => name,
            };
            if let Ok(meta) = entry.path().symlink_metadata()
                && !meta.is_dir()
            {
                found.insert(name, meta.mode() & 0o7777);
            }
        }
    }
    found
}

/// A program that stays a client until it is dropped.
struct Client(Child);

impl Client {
    fn start(v: &Volume) -> Option<Client> {
        if !library().exists() {
            eprintln!("SKIPPED in part: {} is not built", library().display());
            return None;
        }
        let script = format!("exec 5>{}/client; echo x >&5; read line", v.place());
        let child = Command::new(SHALE)
            .args(["run", "--", "sh", "-c", &script])
            .env("SHALE_PRELOAD", library())
            .env("SHALE_WARM_CALLS", "0")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the program is a client", || {
            v.status()["clients"].as_array().unwrap().len() > 1
        });
        Some(Client(child))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What Shale makes and who may open it (docs/SPEC.md, *Files and their modes*), whatever the umask says.
const MODES: [(&str, u32); 16] = [
    ("VOLUME.toml", 0o644),
    ("lock", 0o600),
    ("seg-N", 0o600),
    ("log-N", 0o600),
    ("ssd.img", 0o600),
    ("hdd.img", 0o600),
    ("flash.img", 0o600),
    ("added.img", 0o600),
    ("state.json", 0o644),
    ("log", 0o600),
    ("socket", 0o666),
    ("control", 0o600),
    ("metrics", 0o644),
    ("limits.json", 0o600),
    ("speed.json", 0o600),
    ("report", 0o644),
];

#[test]
fn every_file_has_the_mode_of_the_table() {
    if !can_mount() {
        return;
    }
    for umask in ["000", "022", "077"] {
        let below = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| below.path().join(name);
        let images = ["ssd.img", "hdd.img", "flash.img"].map(at);
        let v = Volume::with_umask("modes", umask, below, &images);
        let under = |args: &str| {
            let script = format!("umask {umask}; exec {SHALE} {args}");
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            said(command).ok()
        };
        under(&format!(
            "mount --metrics 127.0.0.1:0 {} {}",
            v.file(),
            v.place()
        ));
        let added = v.below().join("added.img");
        under(&format!(
            "device add {} --hdd {}:64M",
            v.place(),
            added.display()
        ));
        under(&format!("limit {} --rate 1G", v.place()));
        under(&format!("migrate {} --limit 1G", v.place()));
        let client = Client::start(&v);
        let state = state_dir(&v);
        let found = modes(&[v.dir(), &v.dir().join("nvm"), v.below(), &state]);
        drop(client);
        let expected = BTreeMap::from(MODES);
        for (name, mode) in &found {
            let most = expected.get(name.as_str());
            let most = most.unwrap_or_else(|| panic!("{name} is not in the table: {found:?}"));
            // A umask may take away what others might read, and gives nothing.
            let public = most & 0o077;
            let is = mode == most || (umask == "077" && public != 0 && mode & !most == 0);
            assert!(is, "{name}: {mode:o}, expected {most:o} with umask {umask}");
        }
        for name in expected.keys().filter(|name| **name != "report") {
            assert!(found.contains_key(*name), "{name} was not made: {found:?}");
        }
        assert_eq!(mode(&v.dir().join("nvm")), 0o700);
        assert_eq!(mode(&state) & 0o022, 0, "nobody else writes there");
        assert_eq!(mode(Path::new("/run/shale/lock")), 0o600);
        assert_eq!(mode(Path::new("/run/shale")) & 0o022, 0);
        v.umount();
        v.fsck();
    }
}

#[test]
fn what_is_more_open_is_closed_by_the_next_mount_or_refused() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("mended", "64M", "64M", "64M");
    open_way(&v);
    v.mount();
    let secret = b"what nobody is to read, digested and moved down";
    fs::write(v.mountpoint().join("secret"), secret.repeat(2000)).unwrap();
    v.shale(&["migrate", v.place()]).ok();
    v.umount();
    let nvm = v.dir().join("nvm");
    set_mode(&nvm, 0o755);
    let files = [
        nvm.join("seg-0000"),
        nvm.join("lock"),
        v.below().join("ssd.img"),
        v.below().join("hdd.img"),
    ];
    for file in &files {
        set_mode(file, 0o644);
    }
    v.mount();
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
        let read = said(as_nobody("cat", &[file.to_str().unwrap()])).failed(1);
        assert!(read.contains("Permission denied"), "{read}");
    }
    v.umount();
    // Who may not change the mode gets an error, and uses nothing that others can read.
    let own = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = program(own.path());
    std::os::unix::fs::chown(own.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let at = |name: &str| own.path().join(name).to_str().unwrap().to_owned();
    let open = v.below().join("open.img");
    fs::File::create(&open).unwrap().set_len(64 << 20).unwrap();
    set_mode(&open, 0o666);
    let (file, nvm) = (at("V.toml"), format!("{}:32M", at("nvm")));
    let image = format!("{}:64M", open.display());
    let args = ["mkfs", &file, "--nvm", &nvm, "--hdd", &image];
    let refused = said(as_nobody(&program, &args)).failed(1);
    assert!(
        refused.contains("open.img") && refused.contains("belongs to user 0"),
        "{refused}"
    );
    // Nor does root take what somebody else has made for him to fill.
    std::os::unix::fs::chown(&open, Some(NOBODY), None).unwrap();
    let refused = shale(&args).failed(1);
    assert!(
        refused.contains("open.img") && refused.contains("belongs to user 65534"),
        "{refused}"
    );
}

#[test]
fn nobody_holds_a_lock() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("locks", "64M", "64M", "64M");
    open_way(&v);
    // Not the directory keeps him out, but the files.
    set_mode(&v.dir().join("nvm"), 0o755);
    v.mount();
    let locks = [
        v.dir().join("nvm/lock"),
        v.dir().join("nvm/seg-0000"),
        v.below().join("ssd.img"),
        v.below().join("hdd.img"),
        PathBuf::from("/run/shale/lock"),
        state_dir(&v).join("log"),
    ];
    for how in ["-x", "-s"] {
        for lock in &locks {
            let lock = lock.to_str().unwrap();
            let tried = said(as_nobody("flock", &[how, "-n", lock, "true"]));
            assert!(
                tried.code != 0 && tried.text.contains("Permission denied"),
                "{lock}: {}",
                tried.text
            );
        }
    }
    // As for orders and the state that others would believe.
    let state = state_dir(&v);
    for file in ["control", "state.json", "limits.json", "log", "socket"] {
        let place = state.join(file).display().to_string();
        let script = format!("echo x > {place} || rm -f {place}");
        said(as_nobody("sh", &["-c", &script]));
        assert!(
            file == "limits.json" || Path::new(&place).exists(),
            "{place}"
        );
    }
    v.kill_daemon();
    v.umount();
    v.fsck();
}

/// A lock that this process holds.
fn hold(path: &Path) -> fs::File {
    let file = fs::File::open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}

#[test]
fn a_lock_that_is_busy_while_a_daemon_is_started_again_ends_no_mount() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("busy-lock");
    v.mount();
    let file = v.mountpoint().join("file");
    fs::write(&file, b"before").unwrap();
    let status = v.status();
    let pid = |who: &str| status[who].as_u64().unwrap();
    thread::scope(|scope| {
        // The supervisor starts no daemon before the lock is taken.
        signal(pid("supervisor_pid"), Signal::STOP);
        signal(pid("daemon_pid"), Signal::KILL);
        let held = hold(&v.dir().join("nvm/lock"));
        signal(pid("supervisor_pid"), Signal::CONT);
        let writer = scope.spawn(|| fs::write(&file, b"after"));
        let begun = Instant::now();
        let status = v.shale(&["status", v.place()]).failed(1);
        let pid = format!("process {}", std::process::id());
        assert!(
            status.contains("in use") && status.contains(&pid),
            "{status}"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{:?}",
            begun.elapsed()
        );
        // A daemon that fails in other ways is given up after some 5 s.
        thread::sleep(Duration::from_secs(10).saturating_sub(begun.elapsed()));
        assert!(!writer.is_finished(), "it waits");
        drop(held);
        writer.join().unwrap().unwrap();
    });
    assert_eq!(fs::read(&file).unwrap(), b"after");
    assert!(
        v.status()["restarts"].as_u64().unwrap() < 5,
        "tries are no deaths"
    );
    v.umount();
    v.fsck();
}

#[test]
fn a_mount_says_which_process_it_waits_for() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("waits");
    v.mount();
    v.umount();
    let said = thread::scope(|scope| {
        let held = hold(Path::new("/run/shale/lock"));
        let mount = scope.spawn(|| v.shale(&["mount", v.file(), v.place()]));
        thread::sleep(Duration::from_millis(2500));
        assert!(!mount.is_finished());
        drop(held);
        mount.join().unwrap().ok()
    });
    let waits = format!(
        "/run/shale/lock: waiting for process {}",
        std::process::id()
    );
    assert!(said.contains(&waits) && said.contains("mounted"), "{said}");
    v.umount();
}

#[test]
fn a_mount_ends_when_a_lock_stays_busy() {
    if !can_mount() {
        return;
    }
    // With a directory of states of its own, since others mount beside this test.
    let own = tempfile::tempdir_in("/dev/shm").unwrap();
    set_mode(own.path(), 0o700);
    let at = |name: &str| own.path().join(name).to_str().unwrap().to_owned();
    let program = program(own.path());
    fs::create_dir(at("mount")).unwrap();
    fs::create_dir(at("shale")).unwrap();
    fs::write(at("shale/lock"), b"").unwrap();
    for path in [at(""), at("mount"), at("shale"), at("shale/lock")] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (file, nvm) = (at("V.toml"), format!("{}:32M", at("nvm")));
    said(as_nobody(&program, &["mkfs", &file, "--nvm", &nvm])).ok();
    let _held = hold(Path::new(&at("shale/lock")));
    let mut mount = as_nobody(&program, &["mount", &file, &at("mount")]);
    mount.env("XDG_RUNTIME_DIR", own.path());
    let text = said(mount).failed(1);
    let pid = format!("process {}", std::process::id());
    for part in ["waiting for", &pid, "kept it locked for 30 s"] {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}

#[test]
fn names_taken_beforehand_and_links_lead_nowhere() {
    if !can_mount() {
        return;
    }
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    set_mode(shared.path(), 0o1777);
    let at = |name: &str| shared.path().join(name).to_str().unwrap().to_owned();
    let victim = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    let content = vec![b'v'; 65 << 20];
    fs::write(victim.path(), &content).unwrap();
    let victim_name = victim.path().to_str().unwrap();
    let plant = |name: &str| {
        said(as_nobody("ln", &["-s", victim_name, &at(name)])).ok();
    };
    let own = tempfile::tempdir_in("/dev/shm").unwrap();
    let nvm = format!("{}:32M", own.path().join("nvm").display());
    // An image whose name is a link of somebody else's.
    plant("hdd.img");
    let (file, image) = (at("V.toml"), format!("{}:64M", at("hdd.img")));
    let text = shale(&["mkfs", &file, "--nvm", &nvm, "--hdd", &image]).failed(1);
    assert!(text.contains("symbolic link of user 65534"), "{text}");
    // What is written beside the volume file before it gets its name.
    plant("V.toml.new");
    shale(&["mkfs", &file, "--nvm", &nvm]).ok();
    // The lock of the NVM directory.
    let lock = own.path().join("nvm/lock");
    fs::remove_file(&lock).unwrap();
    symlink(victim_name, &lock).unwrap();
    fs::create_dir(own.path().join("mount")).unwrap();
    let place = own.path().join("mount");
    let mount = ["mount", &file, place.to_str().unwrap()];
    let text = shale(&mount).failed(1);
    assert!(
        text.contains("nvm/lock") && text.contains("symbolic link"),
        "{text}"
    );
    let text = shale(&["fsck", &file]).failed(1);
    assert!(text.contains("nvm/lock"), "{text}");
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, b"").unwrap();
    std::os::unix::fs::chown(&lock, Some(NOBODY), None).unwrap();
    let text = shale(&mount).failed(1);
    assert!(
        text.contains("nvm/lock") && text.contains("belongs to user 65534"),
        "{text}"
    );
    fs::remove_file(&lock).unwrap();
    // The place for the states of a user's mounts.
    let run = at("shale");
    fs::create_dir(&run).unwrap();
    set_mode(Path::new(&run), 0o777);
    let program = program(shared.path());
    let theirs = tempfile::tempdir_in("/dev/shm").unwrap();
    std::os::unix::fs::chown(theirs.path(), Some(1), Some(1)).unwrap();
    let of = |name: &str| theirs.path().join(name).to_str().unwrap().to_owned();
    let as_daemon = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=1", "--regid=1", "--clear-groups", &program])
            .args(args)
            .env("XDG_RUNTIME_DIR", shared.path());
        said(command)
    };
    let nvm = format!("{}:32M", of("nvm"));
    as_daemon(&["mkfs", &of("V.toml"), "--nvm", &nvm]).ok();
    fs::create_dir(of("mount")).unwrap();
    for (owner, why) in [(0, "may write to it"), (NOBODY, "belongs to user 65534")] {
        std::os::unix::fs::chown(&run, Some(owner), None).unwrap();
        let text = as_daemon(&["mount", &of("V.toml"), &of("mount")]).failed(1);
        assert!(text.contains(&run) && text.contains(why), "{text}");
    }
    assert!(
        fs::read(victim.path()).unwrap() == content,
        "nothing was written through a link"
    );
}

#[test]
fn garbage_on_the_socket_fills_no_log() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("flood");
    open_way_to_the_mount(&v);
    v.mount();
    let log = state_dir(&v).join("log");
    let before = fs::metadata(&log).unwrap().len();
    let script = format!(
        "import socket\n\
         for n in range(20000):\n\
         \x20   s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
         \x20   try:\n\
         \x20       s.connect('{}'); s.send(b'garbage' * 20)\n\
         \x20   except OSError: pass\n\
         \x20   s.close()\n",
        v.socket().display()
    );
    let flood = as_nobody("python3", &["-c", &script]);
    thread::scope(|scope| {
        let flood = scope.spawn(|| said(flood).ok());
        // Everybody else is served meanwhile.
        while !flood.is_finished() {
            v.status();
            fs::write(v.mountpoint().join("f"), b"served").unwrap();
        }
        flood.join().unwrap();
    });
    wait_until("the last connections have ended", || {
        v.status()["clients"].as_array().unwrap().len() == 1
    });
    let after = fs::metadata(&log).unwrap().len();
    assert!(after - before < 64 << 10, "{before} {after}");
    let output = fs::read_to_string(&log).unwrap();
    assert!(output.contains("(user 65534) ends"), "{output}");
    v.umount();
}

/// Has everybody come as far as the mount.
fn open_way_to_the_mount(v: &Volume) {
    set_mode(v.dir(), 0o755);
}
