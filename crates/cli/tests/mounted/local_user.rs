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
    let place = dir.join("shale");
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
            if !entry.path().is_dir() {
                found.insert(name, mode(&entry.path()));
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
    // Who may not change the mode is told so, and uses nothing that others can read.
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
