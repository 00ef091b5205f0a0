//! `shale run`: unmodified programs with the library.

use crate::volume::{Volume, can_mount, wait_until, with_library};
use std::fs;
use std::io::Read;
use std::thread;

#[test]
fn commands_run_are_reported_and_end_with_their_code() {
    let Some(v) = with_library("run") else { return };
    let script = format!(
        "exec 5>>{}/f; for i in 1 2 3 4 5; do echo $i >&5; done; exit 7",
        v.place()
    );
    let output = v.shale(&["run", "--report", "--", "sh", "-c", &script]);
    assert_eq!(output.code, 7, "{}", output.text);
    let write = output.text.lines().find(|l| l.starts_with("write "));
    let fast = write.and_then(|l| l.split_whitespace().nth(1));
    assert_eq!(fast, Some("5"), "{}", output.text);
    let file = v.mountpoint().join("f");
    assert_eq!(fs::read_to_string(&file).unwrap(), "1\n2\n3\n4\n5\n");
    let json = v.dir().join("report");
    let report = format!("--report={}", json.display());
    let cat = file.to_str().unwrap();
    assert_eq!(
        v.shale(&["run", &report, "--", "cat", cat]).ok(),
        "1\n2\n3\n4\n5\n"
    );
    assert!(fs::read_to_string(json).unwrap().contains("\"program\""));
    let missing = v.shale(&["run", "--", "/no/such/command"]);
    assert_eq!(missing.code, 127, "{}", missing.text);
    assert_eq!(v.shale(&["run", "--", v.place()]).code, 126);
    v.umount();
    v.fsck();
}

/// Whether the kernel forgets inodes when it is asked to: from 6.18 on.
fn forgets_when_asked() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    (number(), number()) >= (Some(6), Some(18))
}

/// What a program makes on the mount and removes by itself, with names in the process, is freed although the kernel keeps what it knew of it;
/// what another program has open is not.
#[test]
fn what_a_program_removes_is_freed_once_the_kernel_has_been_asked_to_forget_it() {
    let Some(v) = with_library("removed") else {
        return;
    };
    if !forgets_when_asked() {
        eprintln!("SKIPPED: needs Linux 6.18");
        return;
    }
    let inodes = || {
        let space = rustix::fs::statvfs(v.mountpoint()).unwrap();
        space.f_files - space.f_ffree
    };
    let dir = v.mountpoint().join("d");
    fs::create_dir(&dir).unwrap();
    let before = inodes();
    fs::write(dir.join("held"), "held").unwrap();
    let mut held = fs::File::open(dir.join("held")).unwrap();
    let script = "import os, sys
for n in range(3000):
    open(f'{sys.argv[1]}/{n}', 'w').close()
    if n >= 200:
        os.unlink(f'{sys.argv[1]}/{n - 200}')
for n in range(2800, 3000):
    os.unlink(f'{sys.argv[1]}/{n}')
os.unlink(f'{sys.argv[1]}/held')";
    let dir = dir.to_str().unwrap();
    v.shale(&["run", "--", "python3", "-c", script, dir]).ok();
    wait_until("all but one are freed", || inodes() == before + 1);
    let mut content = String::new();
    held.read_to_string(&mut content).unwrap();
    assert_eq!(content, "held");
    drop(held);
    wait_until("all are freed", || inodes() == before);
    v.umount();
    v.fsck();
}

#[test]
fn bypassed_programs_run_on_the_mount_and_what_they_start_is_served() {
    let Some(v) = with_library("bypass") else {
        return;
    };
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let name = shell.file_name().unwrap().to_str().unwrap();
    let at = |name: &str| format!("{}/{name}", v.place());
    let fast = |output: &str| {
        let write = output.lines().find(|l| l.starts_with("write "));
        let count = write.and_then(|l| l.split_whitespace().nth(1));
        count.map_or(0, |n| n.parse::<u64>().unwrap())
    };
    // Children by fork and by vfork; the last is started without our variables. Files are new each time: what
    // the mount has read recently is left to it.
    let script = |dir: &str| {
        fs::create_dir(at(dir)).unwrap();
        format!(
            "cd {}; exec 5>f; for i in 1 2 3 4 5; do echo $i >&5; done; (echo 6 >&5); \
             unset LD_PRELOAD SHALE_WARM_CALLS SHALE_REPORT; \
             dd if=/dev/zero of=g bs=1 count=7 2>/dev/null; echo 7 >&5",
            at(dir)
        )
    };
    let run = ["run", "--report", "--bypass", name, "--", "sh", "-c"];
    let output = v.shale(&[&run[..], &[&script("name")]].concat()).ok();
    assert_eq!(fast(&output), 7, "{output}");
    let images = "2 program images, 1 of them clients, 1 file of";
    assert!(output.contains(images), "{output}");
    assert!(output.contains("1 of them are of bypassed"), "{output}");
    let lines = fs::read_to_string(at("name/f")).unwrap();
    assert_eq!(lines, "1\n2\n3\n4\n5\n6\n7\n");
    assert_eq!(fs::read(at("name/g")).unwrap(), [0; 7]);
    // Two of them, by path: the first clears everything and becomes the second.
    let run = [
        "run",
        "--report",
        "--bypass=/bin/sh",
        "--bypass=/usr/bin/env",
    ];
    let start = ["--", "/usr/bin/env", "-i", "sh", "-c", &script("path")];
    let output = v.shale(&[&run[..], &start[..]].concat()).ok();
    assert_eq!(fast(&output), 7, "{output}");
    assert!(output.contains("2 of them are of bypassed"), "{output}");
    // Nobody is bypassed unless it is said.
    let output = v
        .shale(&["run", "--report", "--", "sh", "-c", &script("none")])
        .ok();
    assert!(
        fast(&output) > 7 && !output.contains("bypassed"),
        "{output}"
    );
    let wrong = v.shale(&["run", "--bypass", "a:b", "--", "true"]);
    assert!(wrong.failed(2).contains("colon"));
    v.umount();
    v.fsck();
}

#[test]
fn every_file_says_which_mount_it_lies_on() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("number");
    v.mount();
    let file = v.mountpoint().join("f");
    fs::write(&file, b"").unwrap();
    let number = v.state().unwrap()["connection"].as_u64().unwrap();
    for path in [v.mountpoint(), &file] {
        let mut output = [0u8; 64];
        let got = rustix::fs::getxattr(path, "system.shale.mount", &mut output[..]).unwrap();
        assert_eq!(output[..got], *format!("{number:016x}").as_bytes());
    }
    let mut listed = [0u8; 64];
    assert_eq!(rustix::fs::listxattr(&file, &mut listed[..]).unwrap(), 0);
    v.umount();
}

#[test]
fn a_program_goes_on_when_the_daemon_is_killed_and_loses_nothing() {
    let Some(v) = with_library("runkill") else {
        return;
    };
    const LINES: usize = 60_000;
    let file = v.mountpoint().join("f");
    let script = format!(
        "exec 5>>{}; i=0; while [ $i -lt {LINES} ]; do echo $i >&5 || exit 1; i=$((i+1)); done",
        file.display()
    );
    let run = ["run", "--", "sh", "-c", &script];
    thread::scope(|scope| {
        let writer = scope.spawn(|| v.shale(&run));
        wait_until("it writes", || {
            fs::metadata(&file).is_ok_and(|m| m.len() > 0)
        });
        let mut kills = 0;
        while !writer.is_finished() && kills < 4 {
            v.kill_daemon();
            kills += 1;
            thread::sleep(std::time::Duration::from_millis(40));
        }
        assert!(kills > 0);
        let said = writer.join().unwrap();
        assert_eq!(said.code, 0, "{}", said.text);
    });
    let expected: String = (0..LINES).map(|n| format!("{n}\n")).collect();
    v.umount();
    v.fsck();
    // Mounted again: what the kernel kept of appends that a kill cut off is not what is asked.
    v.mount();
    assert!(fs::read_to_string(&file).unwrap() == expected, "lost");
    v.umount();
}
