//! The shutdown ioctl (`XFS_IOC_GOINGDOWN`, ext4's too), as crash tests and administrators use it: the volume stops
//! for everybody until it is unmounted, and what had returned is there after the next mount.

use crate::volume::{SHALE, Volume, library, with_library};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

/// Shuts down what lies at a path: with flags, as a user; says `done` or the error's name.
const GO_DOWN: &str = "import array, errno, fcntl, os, sys
path, flags, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(path, os.O_RDONLY)
if uid: os.setuid(uid)
try:
    fcntl.ioctl(fd, 0x8004587d, array.array('I', [flags]), True)
    print('done')
except OSError as e:
    print(errno.errorcode[e.errno])
";

/// Has files open, from before; for each line that it gets it tries everything and prints what it got.
const USER: &str = "import errno, mmap, os, sys
os.chdir(sys.argv[1])
cached = os.open('cached', os.O_RDWR | os.O_CREAT)
served = os.open('served', os.O_RDWR | os.O_CREAT)
os.write(cached, b'c' * 8192)
os.pread(cached, 8192, 0)
for n in range(20): os.write(served, b'%4d' % n)
mapping = mmap.mmap(cached, 8192)
mapping[:5] = b'dirty'
def said(what):
    try:
        what()
        return 'ok'
    except OSError as e:
        return errno.errorcode[e.errno]
tries = {
    'read': lambda: os.pread(cached, 100, 0),
    'write': lambda: os.pwrite(cached, b'x', 0),
    'read served': lambda: os.pread(served, 100, 0),
    'write served': lambda: os.pwrite(served, b'x', 0),
    'truncate': lambda: os.ftruncate(served, 0),
    'fsync': lambda: os.fsync(cached),
    'stat': lambda: os.stat('cached'),
    'open': lambda: os.close(os.open('cached', os.O_RDONLY)),
    'create': lambda: os.close(os.open('new', os.O_CREAT | os.O_WRONLY)),
    'list': lambda: os.listdir('.'),
    'mkdir': lambda: os.mkdir('dir'),
    'rename': lambda: os.rename('cached', 'x'),
    'unlink': lambda: os.unlink('cached'),
    'chmod': lambda: os.chmod('cached', 0o600),
}
print('ready', flush=True)
for line in sys.stdin:
    print(*(f'{name}={said(what)}' for name, what in tries.items()), flush=True)
";

fn go_down(v: &Volume, flags: u32, uid: u32) -> String {
    let done = Command::new("python3")
        .args(["-c", GO_DOWN, v.place(), &flags.to_string()])
        .arg(uid.to_string())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Whether all that a line tells of is `EIO`.
fn all_refused(line: &str) -> bool {
    let words: Vec<_> = line.split('=').skip(1).collect();
    words.len() == 14 && words.iter().all(|w| w.starts_with("EIO"))
}

fn stops(served: bool, flags: u32) {
    let Some(v) = with_library(&format!("stopped-{served}-{flags}")) else {
        return;
    };
    let mut command = match served {
        true => {
            let mut command = Command::new(SHALE);
            command.args(["run", "--", "python3"]);
            command.env("SHALE_PRELOAD", library());
            command.env("SHALE_WARM_CALLS", "0");
            command
        }
        false => Command::new("python3"),
    };
    let mut user = command
        .args(["-c", USER, v.place()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asks = user.stdin.take().unwrap();
    let mut tells = BufReader::new(user.stdout.take().unwrap());
    let mut line = String::new();
    tells.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    assert_eq!(go_down(&v, flags, 1000), "EPERM", "without the capability");
    assert_eq!(go_down(&v, 3, 0), "EINVAL");
    fs::write(v.mountpoint().join("still"), "here").unwrap();
    assert_eq!(go_down(&v, flags, 0), "done");
    let mut again = || {
        line.clear();
        asks.write_all(b"again\n").unwrap();
        tells.read_line(&mut line).unwrap();
        line.clone()
    };
    let said = again();
    assert!(all_refused(&said), "served {served}, flags {flags}: {said}");
    // The next daemon does not serve it either.
    let old = v.status()["daemon_pid"].as_u64().unwrap();
    crate::volume::kill(old);
    crate::volume::wait_until("another daemon answers", || v.status()["daemon_pid"] != old);
    let said = again();
    assert!(all_refused(&said), "served {served}, after a kill: {said}");
    assert_eq!(v.status()["shut_down"], true);
    let text = v.shale(&["status", v.place()]).ok();
    assert!(text.contains("was shut down"), "{text}");
    let more = v.shale(&["run", "--", "cat", &format!("{}/still", v.place())]);
    assert_ne!(more.code, 0, "{}", more.text);
    drop(asks);
    let mut rest = String::new();
    tells.read_to_string(&mut rest).unwrap();
    user.wait().unwrap();
    v.umount();
    v.fsck();

    v.mount();
    let at = |name: &str| fs::read(v.mountpoint().join(name)).unwrap();
    let numbers: String = (0..20).map(|n| format!("{n:4}")).collect();
    assert_eq!(at("served"), numbers.as_bytes());
    assert_eq!(at("still"), b"here");
    let cached = at("cached");
    assert_eq!(cached.len(), 8192);
    assert!(cached[5..].iter().all(|&b| b == b'c'));
    let mapped = &cached[..5];
    match flags {
        // Everything was written first.
        0 => assert_eq!(mapped, b"dirty"),
        _ => assert!(mapped == b"dirty" || mapped == b"ccccc"),
    }
    assert_eq!(fs::read_dir(v.mountpoint()).unwrap().count(), 3);
    v.umount();
}

#[test]
fn a_shutdown_stops_programs_on_the_mount() {
    for flags in [0, 1, 2] {
        stops(false, flags);
    }
}

#[test]
fn a_shutdown_stops_programs_that_are_served() {
    for flags in [0, 2] {
        stops(true, flags);
    }
}
