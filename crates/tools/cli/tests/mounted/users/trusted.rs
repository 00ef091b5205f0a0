//! Users beside the owner and root: those whom the volume trusts are served under `shale run`
//! with their own rights, others by the mount alone.

use crate::volume::{SHALE, Volume, can_mount, library, wait_until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

const TRUSTED: u32 = 1000;
/// Every system has this user, and its group.
const NOBODY: u32 = 65534;
const OTHER: u32 = 1001;

/// What a shell's commands did that a user ran: output, and the report of the shell's process.
struct Ran {
    said: String,
    report: Value,
}

impl Ran {
    fn fast(&self, call: &str) -> u64 {
        self.report["fast"][call].as_u64().unwrap_or(0)
    }

    fn kernel(&self, call: &str) -> u64 {
        let reasons = self.report["kernel"][call].as_object();
        let counts = reasons.into_iter().flat_map(|r| r.values());
        counts.filter_map(Value::as_u64).sum()
    }
}

/// Runs commands as a user, under `shale run`, in the mount.
fn run_as(v: &Volume, uid: u32, script: &str) -> Ran {
    run_with(v, uid, script, ("SHALE_WARM_CALLS", "0"))
}

/// As [`run_as`], with this setting of when files are served.
fn run_with(v: &Volume, uid: u32, script: &str, setting: (&str, &str)) -> Ran {
    let (report, preload) = (v.dir().join("report"), v.dir().join("preload.so"));
    // The user may not reach what was built, nor write a file of root's.
    if !preload.exists() {
        fs::copy(library(), &preload).unwrap();
    }
    fs::write(&report, "").unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o666)).unwrap();
    let id = uid.to_string();
    let done = Command::new("timeout")
        .args(["--signal=KILL", "60", SHALE, "run"])
        .arg(format!("--report={}", report.display()))
        .args(["--", "setpriv", "--reuid", &id, "--regid", &id])
        .args(["--clear-groups", "sh", "-c", script])
        .env("SHALE_PRELOAD", &preload)
        .env(setting.0, setting.1)
        .env("LC_ALL", "C")
        .current_dir(v.mountpoint())
        .output()
        .unwrap();
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert!(done.status.success(), "{said}");
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let lines = fs::read_to_string(&report).unwrap();
    let report = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .rfind(|image| Some(Path::new(image["program"].as_str().unwrap())) == Some(&shell));
    let report = report.unwrap_or_else(|| panic!("the shell reports: {lines}"));
    Ran { said, report }
}

/// Whether programs can be run here as other users.
fn can_run() -> bool {
    let has_setpriv = || Command::new("setpriv").arg("--version").output().is_ok();
    let can = can_mount() && library().exists() && has_setpriv();
    if !can {
        eprintln!("SKIPPED: needs {} and setpriv", library().display());
    }
    can
}

/// A mounted volume that trusts one user, with a directory of each.
fn mounted() -> Option<Volume> {
    if !can_run() {
        return None;
    }
    let v = Volume::trusting("trusted", &[&TRUSTED.to_string()]);
    v.mount();
    for uid in [TRUSTED, OTHER] {
        let dir = v.mountpoint().join(uid.to_string());
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(uid), Some(uid)).unwrap();
    }
    for (name, mode) in [("open", 0o644), ("secret", 0o600)] {
        let file = v.mountpoint().join(name);
        fs::write(&file, "of root\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }
    Some(v)
}

/// Who may not write a file any more writes on by the descriptor that he has. The daemon, which sees a lease asked for only
/// later, would refuse his records: such a file stays with the mount.
#[test]
fn what_was_open_before_a_chmod_is_written_after_it() {
    let Some(v) = mounted() else { return };
    let shared = v.mountpoint().join("shared");
    for (mode, served) in [(0o600, false), (0o666, true)] {
        fs::write(&shared, "").unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o666)).unwrap();
        let script = format!(
            "cd {TRUSTED}; exec 5>>../shared; : >ready; while [ ! -e go ]; do :; done; \
             i=0; while [ $i -lt 5000 ]; do echo $i >&5 || exit 1; i=$((i+1)); done; rm ready"
        );
        let at = |name: &str| v.mountpoint().join(TRUSTED.to_string()).join(name);
        let ran = std::thread::scope(|scope| {
            let run = || run_with(&v, TRUSTED, &script, ("SHALE_WARM_US", "300"));
            let user = scope.spawn(run);
            wait_until("it has opened the file", || at("ready").exists());
            fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
            fs::write(at("go"), "").unwrap();
            user.join().unwrap()
        });
        fs::remove_file(at("go")).unwrap();
        assert_eq!(ran.said, "");
        let lines = fs::read_to_string(&shared).unwrap();
        assert_eq!(lines.lines().count(), 5000, "{mode:o}: {:#}", ran.report);
        assert_eq!(ran.report["sessions_lost"], 0, "{:#}", ran.report);
        // Root, who looks at it, keeps it from growing in the process: a client whose only file goes
        // back to the mount parts from it, and may attach again when the file is served once more.
        let attached = ran.report["attached"].as_u64() >= Some(1);
        assert!(attached || !served, "{mode:o}: {:#}", ran.report);
        assert!(
            served || ran.fast("write") == 0,
            "{mode:o}: {:#}",
            ran.report
        );
    }
    v.umount();
    v.fsck();
}

const WRITES: &str =
    "exec 5>f 6<f; for i in 1 2 3 4 5; do echo $i >&5; done; read a <&6; read b <&6; echo $a$b;";
const LINES: &str = "1\n2\n3\n4\n5\n";

#[test]
fn trusted_users_are_served_and_others_use_the_mount() {
    let Some(v) = mounted() else { return };
    let own = run_as(&v, TRUSTED, &format!("cd {TRUSTED}; {WRITES}"));
    assert_eq!(own.said, "12\n");
    assert_eq!(own.report["attached"], 1, "{:#}", own.report);
    assert_eq!((own.fast("write"), own.kernel("write")), (5, 0));
    assert!(own.fast("read") > 0, "{:#}", own.report);
    let other = run_as(&v, OTHER, &format!("cd {OTHER}; {WRITES}"));
    assert_eq!(other.said, "12\n");
    assert_eq!(other.report["attached"], 0, "{:#}", other.report);
    let refused = serde_json::json!([libc::EACCES]);
    assert_eq!(other.report["attach_errnos"], refused);
    assert_eq!((other.fast("write"), other.kernel("write")), (0, 5));
    for uid in [TRUSTED, OTHER] {
        let file = v.mountpoint().join(uid.to_string()).join("f");
        assert_eq!(fs::read_to_string(file).unwrap(), LINES);
    }
    v.umount();
    v.fsck();
    v.mount();
    let file = v.mountpoint().join(format!("{TRUSTED}/f"));
    assert_eq!(fs::read_to_string(file).unwrap(), LINES);
    v.umount();
}

/// Names are served of a user, and judged once more when the daemon was killed: by the groups that the user database knows. A process with another
/// group, which would be judged otherwise then, keeps to the mount.
#[test]
fn names_of_a_user_are_served_and_outlive_the_daemon() {
    if !can_run() {
        return;
    }
    let v = Volume::trusting("names", &[&NOBODY.to_string(), &TRUSTED.to_string()]);
    v.mount();
    let dir = v.mountpoint().join("d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    // The shell alone: what it would start has the files opened by the kernel.
    let script = "cd d; umask 027; i=0; while [ $i -lt 50 ]; do echo $i >f$i; i=$((i+1)); done; set -C; echo again >f7; echo $?";
    let names = ("SHALE_NAMES", "0");
    let ran = run_with(&v, NOBODY, script, names);
    assert!(ran.said.starts_with("2\n"), "{}", ran.said);
    assert!(ran.fast("openat") >= 50, "{:#}", ran.report);
    v.kill_daemon();
    for n in 0..50 {
        let file = dir.join(format!("f{n}"));
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("{n}\n"));
        let status = fs::metadata(&file).unwrap();
        let owner = (status.uid(), status.gid());
        assert_eq!((owner, status.mode() & 0o777), ((NOBODY, NOBODY), 0o640));
    }
    let known = is_known(TRUSTED);
    let ran = run_with(&v, TRUSTED, "cd d; echo mine >mine", names);
    assert_eq!(ran.said, "");
    let why = "a group of the process is none of its user's";
    let left = &ran.report["kernel"]["open"][why];
    assert_eq!(left.is_u64(), !known, "{:#}", ran.report);
    v.umount();
    v.fsck();
}

/// Root of a user namespace is another user of the volume: names made by its number would be refused by the daemon, and lost.
#[test]
fn names_in_a_user_namespace_are_left_to_the_mount() {
    if !can_run() {
        return;
    }
    let v = Volume::trusting("namespace", &[&NOBODY.to_string()]);
    v.mount();
    let dir = v.mountpoint().join("d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let script = "cd d; exec unshare -Ur sh -c 'id -u; i=0; while [ $i -lt 50 ]; do echo $i >f$i; i=$((i+1)); done'";
    let may = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["unshare", "-Ur", "true"])
        .status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: users may make no namespaces here");
        return;
    }
    let ran = run_with(&v, NOBODY, script, ("SHALE_NAMES", "0"));
    assert_eq!(ran.said, "0\n");
    let why = "the process is in a user namespace";
    assert!(
        ran.report["kernel"]["open"][why].is_u64(),
        "{:#}",
        ran.report
    );
    v.umount();
    v.mount();
    for n in 0..50 {
        let file = dir.join(format!("f{n}"));
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("{n}\n"));
        assert_eq!(fs::metadata(&file).unwrap().uid(), NOBODY);
    }
    v.umount();
    v.fsck();
}

/// A thread that is another user for files than the process it is in (setfsuid(2)), as in servers of files.
const OTHER_THREAD: &str = "
import ctypes, os, threading
libc = ctypes.CDLL(None)
def make():
    libc.setfsgid(65534)
    libc.setfsuid(65534)
    for n in range(4000):
        os.close(os.open(f'd/f{n}', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
thread = threading.Thread(target=make)
thread.start()
thread.join()
";

#[test]
fn what_a_thread_makes_is_of_the_user_that_it_is() {
    let Some(v) = mounted() else { return };
    let dir = v.mountpoint().join("d");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let done = Command::new("timeout")
        .args(["60", SHALE, "run", "--", "python3", "-c", OTHER_THREAD])
        .env("SHALE_PRELOAD", library())
        .current_dir(v.mountpoint())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    let made = fs::read_dir(&dir).unwrap();
    let owners = made.map(|file| file.unwrap().metadata().unwrap().uid());
    assert_eq!(owners.filter(|&uid| uid == NOBODY).count(), 4000);
    v.umount();
    v.fsck();
}

/// Two threads, each with a working directory of its own.
const OWN_DIRECTORIES: &str = "
import ctypes, os, threading
libc = ctypes.CDLL(None)
os.mkdir('one'); os.mkdir('two')
both = threading.Barrier(2)
def make(name):
    if name == 'one': assert libc.unshare(0x200) == 0
    both.wait(); os.chdir(name); both.wait()
    for n in range(3000):
        os.close(os.open(f'{name}{n}', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
thread = threading.Thread(target=make, args=('one',))
thread.start()
make('two')
thread.join()
";

#[test]
fn what_a_thread_makes_is_in_the_directory_where_it_is() {
    let Some(v) = mounted() else { return };
    let done = Command::new("timeout")
        .args(["60", SHALE, "run", "--", "python3", "-c", OWN_DIRECTORIES])
        .env("SHALE_PRELOAD", library())
        .current_dir(v.mountpoint())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    for name in ["one", "two"] {
        let made = fs::read_dir(v.mountpoint().join(name)).unwrap();
        let names = made.map(|file| file.unwrap().file_name().into_string().unwrap());
        let (own, others): (Vec<_>, Vec<_>) = names.partition(|made| made.starts_with(name));
        assert_eq!((own.len(), others.len()), (3000, 0), "{name}");
    }
    v.umount();
    v.fsck();
}

/// Whether the user database has a user.
fn is_known(uid: u32) -> bool {
    let found = Command::new("getent")
        .args(["passwd", &uid.to_string()])
        .output();
    found.unwrap().status.success()
}

#[test]
fn a_trusted_user_has_the_rights_that_modes_give() {
    let Some(v) = mounted() else { return };
    let script = format!(
        "cd {TRUSTED}; {WRITES} cd ..; for f in secret open; do cat $f; (echo x >>$f); rm -f $f; done; \
         (echo x >new); (: >{OTHER}/f); mv {TRUSTED}/f {OTHER}/f; chmod 666 open"
    );
    let ran = run_as(&v, TRUSTED, &format!("{script}; exit 0"));
    assert_eq!(ran.report["attached"], 1, "{:#}", ran.report);
    let refusals = [
        "cat: secret: Permission denied",
        "cannot create secret: Permission denied",
        "cannot remove 'secret': Permission denied",
        "cannot create open: Permission denied",
        "cannot remove 'open': Permission denied",
        "cannot create new: Permission denied",
        &format!("cannot create {OTHER}/f: Permission denied"),
        &format!("cannot move '{TRUSTED}/f' to '{OTHER}/f': Permission denied"),
        "changing permissions of 'open': Operation not permitted",
    ];
    for refusal in refusals {
        assert!(ran.said.contains(refusal), "{refusal}: {}", ran.said);
    }
    let refused = ran.said.matches("denied").count() + ran.said.matches("not permitted").count();
    assert_eq!(refused, refusals.len(), "{}", ran.said);
    assert!(ran.said.contains("of root\n"), "{}", ran.said);
    for name in ["open", "secret"] {
        let file = v.mountpoint().join(name);
        assert_eq!(fs::read_to_string(file).unwrap(), "of root\n");
    }
    // What the daemon hands over for reading opens for nothing else, and nothing of it is mapped writable.
    let script = format!(
        "cd {TRUSTED}; exec 5>g; for i in 1 2 3 4 5; do echo $i >&5; done; cd ..; \
         for fd in /proc/$$/fd/*; do \
           case $(readlink $fd) in */seg-*|*/log-*) (: 3<>$fd) && echo writable $fd;; esac; \
         done; while read -r at rights rest; do \
           case $rights$rest in rw-s*/seg-*) echo mapped $at;; r--s*/seg-*) echo tier;; esac; \
         done </proc/$$/maps"
    );
    let ran = run_as(&v, TRUSTED, &script);
    assert_eq!(ran.fast("write"), 5, "{:#}", ran.report);
    assert!(
        !ran.said.contains("writable") && !ran.said.contains("mapped"),
        "{}",
        ran.said
    );
    assert!(
        ran.said.contains("tier\n") && ran.said.contains("Permission denied"),
        "{}",
        ran.said
    );
    v.umount();
    v.fsck();
}
