//! What is in use while it is to be unmounted or moved: who holds a volume is named, and what clients go on
//! writing keeps no command from ending.

use crate::volume::{StopOnDrop, Volume, can_mount, lives, wait_until};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn umount_names_a_bind_mount_and_leaves_the_mount_alone() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("bound");
    v.mount();
    fs::write(v.mountpoint().join("file"), b"there").unwrap();
    let other = tempfile::tempdir().unwrap();
    let other = other.path().to_str().unwrap();
    let mount =
        |args: &[&str]| assert!(Command::new("mount").args(args).status().unwrap().success());
    mount(&["--bind", v.place(), other]);
    let begun = Instant::now();
    let said = v.shale(&["umount", v.place()]).failed(1);
    assert!(
        said.contains(other) && begun.elapsed() < Duration::from_secs(10),
        "{said}"
    );
    assert_eq!(fs::read(v.mountpoint().join("file")).unwrap(), b"there");
    assert!(
        Command::new("umount")
            .arg(other)
            .status()
            .unwrap()
            .success()
    );
    v.umount();
    v.fsck();
}

#[test]
fn umount_waits_for_another_mount_namespace() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("follows");
    v.mount();
    let mut other = Command::new("unshare")
        .args(["--mount", "sleep", "3"])
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    v.umount();
    other.wait().unwrap();
    v.fsck();
}

#[test]
fn umount_names_another_mount_namespace() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("elsewhere");
    v.mount();
    let mut other = Command::new("unshare")
        .args(["--mount", "sleep", "60"])
        .spawn()
        .unwrap();
    let in_its_own = || {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap();
        of(&other.id().to_string()) != of("self")
    };
    wait_until("it has a namespace of its own", in_its_own);
    let supervisor = v.status()["supervisor_pid"].as_u64().unwrap();
    let pid = format!("in the mount namespace of process {}", other.id());
    let said = v.shale(&["umount", "--lazy", "--json", v.place()]).ok();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["still_served"], true);
    assert!(said["text"].as_str().unwrap().contains(&pid), "{said}");
    other.kill().unwrap();
    other.wait().unwrap();
    wait_until("the last user has gone", || !lives(supervisor));
    v.fsck();
}

#[test]
fn migrate_ends_while_programs_write() {
    const FILE_BYTES: u64 = 24 << 20;
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("busy-migrate", "64M", "256M", "512M");
    v.mount();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for n in 0..2u64 {
            let path = v.mountpoint().join(format!("written-{n}"));
            let file = fs::File::create(path).unwrap();
            let stop = &stop;
            scope.spawn(move || {
                let mut at = n;
                while !stop.load(Ordering::Relaxed) {
                    at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n + 1);
                    let offset = (at >> 20) % FILE_BYTES / 65_536 * 65_536;
                    file.write_all_at(&[n as u8; 65_536], offset).unwrap();
                }
            });
        }
        thread::sleep(Duration::from_secs(2));
        for _ in 0..3 {
            let begun = Instant::now();
            let moved = v.shale(&["migrate", "--json", v.place()]).ok();
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(60), "{took:?}: {moved}");
            let moved: serde_json::Value = serde_json::from_str(&moved).unwrap();
            let bytes = moved["moved_bytes"].as_u64().unwrap();
            assert!((1..=64 << 20).contains(&bytes), "{moved}");
        }
        // So does what brings logs into the volume.
        let begun = Instant::now();
        v.shale(&["digest", v.place()]).ok();
        assert!(begun.elapsed() < Duration::from_secs(60));
    });
    v.umount();
    v.fsck();
}

/// The kernel closes files in the middle of execve(2), and waits for the mount there the first time: nothing that the mount
/// asks the system about a process may wait for the end of that. One request in eight was looked at.
#[test]
fn a_program_that_is_the_first_to_close_a_file_and_does_so_by_exec_goes_on() {
    const PROGRAM: &str = r#"
import os, subprocess, sys
place, requests = sys.argv[1], int(sys.argv[2])
# Python opens files so that exec closes them.
file = open(f"{place}/file", "w")
for n in range(requests):
    assert not os.path.exists(f"{place}/missing-{n}")
subprocess.run(["true"], close_fds=False, check=True)
"#;
    if !can_mount() {
        return;
    }
    for requests in 0..8 {
        let v = Volume::new("exec-closes");
        v.mount();
        let program = Command::new("timeout")
            .args(["--signal=KILL", "20", "python3", "-c", PROGRAM, v.place()])
            .arg(requests.to_string())
            .status()
            .unwrap();
        assert!(program.success(), "after {requests} requests: {program}");
        v.umount();
        v.fsck();
    }
}

#[test]
fn fsck_right_after_the_systems_umount_waits_for_the_daemon() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("fsck-after");
    for n in 0..3 {
        v.mount();
        for file in 0..200 {
            let path = v.mountpoint().join(format!("{n}-{file}"));
            fs::write(path, vec![n; 20_000]).unwrap();
        }
        let limits = v.shale(&["limit", "--json", v.place()]).ok();
        let limits: serde_json::Value = serde_json::from_str(&limits).unwrap();
        assert_eq!(limits["each"], 0);
        let umount = Command::new("umount").arg(v.place()).status().unwrap();
        assert!(umount.success());
        v.shale(&["fsck", v.file()]).ok();
    }
}
