//! A call under `shale run` that waits for its durability when the daemon is killed is done once: its record is in the log, so neither the
//! kernel nor anybody else makes it again.

use super::Ssd;
use crate::volume::{SHALE, can_mount, kill, library, lives, shale, wait_until};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Appends numbered lines, and makes, renames and removes directories, until a file says to end.
const LOAD: &str = "import os, sys
os.chdir(sys.argv[1])
f = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
n = 0
while not os.path.exists(sys.argv[2]):
    assert os.write(f, b'%09d\\n' % n) == 10
    os.mkdir('d'); os.rename('d', 'e'); os.rmdir('e')
    n += 1
print(n)
";

#[test]
fn a_call_is_done_once_whenever_the_daemon_is_killed() {
    const KILLS: usize = 8;
    if !can_mount() {
        return;
    }
    for names in ["off", "0"] {
        let volume = Ssd::new("strict");
        volume.mount();
        let end = volume.beside("end");
        let child = Command::new(SHALE)
            .args(["run", "--", "python3", "-c", LOAD])
            .arg(&volume.place)
            .arg(&end)
            .env("SHALE_PRELOAD", library())
            .env("SHALE_WARM_CALLS", "0")
            .env("SHALE_NAMES", names)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        for n in 0..KILLS {
            std::thread::sleep(Duration::from_millis(200 + 37 * n as u64));
            let daemon = volume.status()["daemon_pid"].as_u64().unwrap();
            kill(daemon);
            wait_until("the daemon has ended", || !lives(daemon));
            wait_until("another one answers", || {
                volume.status()["daemon_pid"].as_u64() != Some(daemon)
            });
        }
        fs::write(&end, "").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "names {names}: {said}");
        let lines: usize = String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let expected: String = (0..lines).map(|n| format!("{n:09}\n")).collect();
        let found = fs::read_to_string(volume.path("log")).unwrap();
        assert!(
            found == expected,
            "names {names}: {lines} lines, {} bytes",
            found.len()
        );
        shale(&["umount", &volume.place]).ok();
        shale(&["fsck", &volume.file]).ok();
    }
}
