//! A program under `shale run` that outlives many daemons, and the size of its log.

use crate::volume::{SHALE, Volume, library, wait_until, with_library};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Reads and writes without a pause, and says so in a file of the host.
const LOAD: &str = "import os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
n = 0
while True:
    at = n % 64 * 8192
    block = b'%08d' % n * 1024
    assert os.pwrite(f, block, at) == 8192 and os.pread(f, 8192, at) == block
    n += 1
    if n % 50 == 0: open(sys.argv[2], 'w').write(str(n))
";

struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process has of the kernel: mappings, kilobytes of addresses, descriptors.
fn has(pid: u32) -> [u64; 3] {
    let of = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    let status = of("status");
    let size = status.lines().find_map(|l| l.strip_prefix("VmSize:"));
    let size = size.and_then(|l| l.split_whitespace().next()).unwrap();
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    [
        of("maps").lines().count() as u64,
        size.parse().unwrap(),
        fds as u64,
    ]
}

fn clients(v: &Volume) -> Vec<Value> {
    v.status()["clients"].as_array().unwrap().clone()
}

/// Waits until the process is a client of the daemon that is there.
fn wait_attached(v: &Volume, pid: u32) {
    wait_until("the program is a client", || {
        clients(v).iter().any(|c| c["pid"] == pid)
    });
}

#[test]
fn a_program_keeps_nothing_of_daemons_that_are_gone() {
    let Some(v) = with_library("lasting") else {
        return;
    };
    const DAEMONS: usize = 12;
    let (file, count) = (v.mountpoint().join("file"), v.dir().join("count"));
    let child = Command::new(SHALE)
        .args(["run", "--", "python3", "-c", LOAD])
        .args([&file, &count])
        .env("SHALE_PRELOAD", library())
        .env("SHALE_WARM_CALLS", "0")
        .stdout(Stdio::null())
        .spawn();
    let mut load = Load(child.unwrap());
    let pid = load.0.id();
    let mut seen = Vec::new();
    for _ in 0..DAEMONS {
        wait_attached(&v, pid);
        let before = fs::read_to_string(&count).unwrap_or_default();
        wait_until("the program goes on", || {
            fs::read_to_string(&count).is_ok_and(|now| now != before)
        });
        std::thread::sleep(Duration::from_millis(100));
        seen.push(has(pid));
        v.kill_daemon();
    }
    assert_eq!(load.0.try_wait().unwrap(), None, "it goes on");
    // At most one session more than the first one: it is freed with the next.
    let [maps, size, fds] = seen[0];
    let most = [maps * 2 + 40, size * 2, fds * 2];
    for (n, now) in seen.iter().enumerate() {
        let flat = now.iter().zip(most).all(|(now, most)| *now <= most);
        assert!(flat, "after {n} daemons: {seen:?}");
    }
    drop(load);
    v.umount();
    v.fsck();
}

fn log_bytes_of(v: &Volume, asked: Option<&str>) -> (u64, String) {
    let file = v.mountpoint().join("file");
    let script = "import os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.write(f, b'x')
os.write(1, b'.'); sys.stdin.read()";
    let mut command = Command::new(SHALE);
    command
        .args(["run", "--", "python3", "-c", script])
        .arg(&file)
        .env("SHALE_PRELOAD", library())
        .env("SHALE_WARM_CALLS", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if let Some(asked) = asked {
        command.env("SHALE_LOG_BYTES", asked);
    }
    let mut child = command.spawn().unwrap();
    let pid = child.id();
    wait_attached(v, pid);
    let all = clients(v);
    let client = all.iter().find(|c| c["pid"] == pid).unwrap();
    let bytes = client["log_bytes"].as_u64().unwrap();
    drop(child.stdin.take());
    let said = child.wait_with_output().unwrap();
    assert!(said.status.success());
    (bytes, String::from_utf8(said.stderr).unwrap())
}

/// The volume says how large logs are; a program may ask for less than the largest.
#[test]
fn logs_are_as_large_as_the_volume_says() {
    let Some(v) = with_library("log-bytes") else {
        return;
    };
    const MIB: u64 = 1 << 20;
    let (bytes, said) = log_bytes_of(&v, None);
    assert_eq!((bytes, said.as_str()), (16 * MIB, ""));
    let (bytes, said) = log_bytes_of(&v, Some("1G"));
    assert_eq!(bytes, 16 * MIB);
    assert!(said.contains("SHALE_LOG_BYTES=1073741824"), "{said}");
    assert!(said.contains("at most 16777216"), "{said}");
    let refused = Command::new(SHALE)
        .args(["run", "--", "true"])
        .env("SHALE_LOG_BYTES", "many")
        .env("SHALE_PRELOAD", library())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    v.umount();
    let text = fs::read_to_string(v.file()).unwrap();
    let larger = "log_bytes = 16777216\nclient_log_bytes = 67108864";
    assert!(!Path::new(v.file()).is_dir() && text.contains("log_bytes = 16777216"));
    fs::write(v.file(), text.replace("log_bytes = 16777216", larger)).unwrap();
    v.mount();
    for (asked, mib) in [(None, 64), (Some("64M"), 64), (Some("32MiB"), 32)] {
        let (bytes, said) = log_bytes_of(&v, asked);
        assert_eq!((bytes, said.as_str()), (mib * MIB, ""), "{asked:?}");
    }
    v.umount();
    v.fsck();
}
