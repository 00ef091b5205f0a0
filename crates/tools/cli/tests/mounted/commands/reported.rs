//! What a mount logs.

use crate::volume::{SHALE, Volume, can_mount, detach, wait_until};
use std::fs;
use std::process::Command;

#[test]
fn a_mount_logs_its_events_a_line_each() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("events");
    v.mount();
    let log = v.status()["log"].as_str().unwrap().to_owned();
    fs::write(v.mountpoint().join("file"), b"content").unwrap();
    v.kill_daemon();
    let text = || fs::read_to_string(&log).unwrap();
    wait_until("the next daemon is logged", || {
        text().contains("another daemon serves")
    });
    let said = text();
    for event in [
        "INFO mounted volume=",
        "WARN the daemon died (signal: 9 (SIGKILL)",
        "INFO recovered batches=0 logs=1 records=",
        "INFO another daemon serves the mount restarts=1",
    ] {
        assert_eq!(said.matches(event).count(), 1, "{event}: {said}");
    }
    assert!(!said.contains("client attached"), "{said}");
    v.umount();
    for (given, attached, mounted) in [
        (["--log-level", "debug"], true, true),
        (["-o", "log_level=warn"], false, false),
        (["--log-level", "error"], false, false),
    ] {
        let args = [&["mount", v.file(), v.place()], &given[..]].concat();
        v.shale(&args).ok();
        let said = fs::read_to_string(v.status()["log"].as_str().unwrap()).unwrap();
        let has = (
            said.contains("client attached"),
            said.contains("mounted volume="),
        );
        assert_eq!(has, (attached, mounted), "{given:?}: {said}");
        v.umount();
    }
    for given in [["--log-level", "loud"], ["-o", "log_level=loud"]] {
        let args = [&["mount", v.file(), v.place()], &given[..]].concat();
        let said = v.shale(&args).failed(2);
        assert!(said.contains("error, warn, info, debug"), "{said}");
    }
}

/// A variable that was left by somebody else's journal does not send messages there.
#[test]
fn without_a_journal_the_foreground_logs_to_standard_error() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("foreground");
    let log = v.dir().join("stderr");
    let mut child = Command::new(SHALE)
        .args(["mount", "--foreground", v.file(), v.place()])
        .env("JOURNAL_STREAM", "8:1")
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || v.is_mounted());
    wait_until("its log is there", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("mounted volume=")
    });
    let said = v.shale(&["umount", v.place()]);
    if said.code != 0 {
        detach(v.mountpoint());
    }
    said.ok();
    assert!(child.wait().unwrap().success());
}
