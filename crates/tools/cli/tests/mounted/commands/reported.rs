//! `shale report`, and what a mount logs.

use crate::volume::{SHALE, Volume, can_mount, detach, shale, wait_until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What is in a report, name by name.
fn unpacked(report: &Path, into: &Path) -> Vec<(String, String)> {
    fs::create_dir(into).unwrap();
    let mut tar = Command::new("tar");
    let unpacked = tar.arg("xzf").arg(report).arg("-C").arg(into).status();
    assert!(unpacked.unwrap().success());
    let dir = fs::read_dir(into).unwrap().next().unwrap().unwrap().path();
    let files = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn part<'p>(parts: &'p [(String, String)], name: &str) -> &'p str {
    let found = parts.iter().find(|(other, _)| other == name);
    &found.unwrap_or_else(|| panic!("{name}")).1
}

#[test]
fn a_report_says_what_there_is_and_no_name_of_a_file() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("report");
    v.mount();
    let dir = v.mountpoint().join("secret plans");
    fs::create_dir(&dir).unwrap();
    for n in 0..200 {
        fs::write(dir.join(format!("letter-{n}")), format!("dear {n}")).unwrap();
    }
    let log = v.status()["log"].as_str().unwrap().to_owned();
    let line = format!(
        "{}/secret plans/letter-7: EIO\nname of 'letter-8'\n",
        v.place()
    );
    let text = fs::read_to_string(&log).unwrap() + &line;
    fs::write(&log, text).unwrap();
    let report = v.dir().join("r.tar.gz");
    let output = report.to_str().unwrap();
    v.shale(&["report", v.place(), "-o", output]).ok();
    let mode = fs::metadata(&report).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let said = v.shale(&["report", v.place(), "-o", output]).failed(1);
    assert!(
        said.contains("r.tar.gz: cannot write it: File exists"),
        "{said}"
    );
    let parts = unpacked(&report, &v.dir().join("mounted"));
    let all: String = parts.iter().map(|(_, text)| text.as_str()).collect();
    assert!(
        !all.contains("secret") && !all.contains("letter-") && !all.contains("dear"),
        "{all}"
    );
    assert!(
        part(&parts, "log.txt").contains(" mounted volume="),
        "{all}"
    );
    assert!(part(&parts, "versions.txt").starts_with("shale "));
    assert_eq!(
        part(&parts, "volume.toml"),
        fs::read_to_string(v.file()).unwrap()
    );
    let status: Value = serde_json::from_str(part(&parts, "status.json")).unwrap();
    assert_eq!(status["uuid"], v.status()["uuid"]);
    let mount: Value = serde_json::from_str(part(&parts, "mount.json")).unwrap();
    assert_eq!(mount["state"]["mountpoint"], v.place());
    assert!(mount["options"].as_str().unwrap().contains("allow_other"));

    v.umount();
    // Damage that fsck tells by the names of what it hits.
    for segment in ["nvm/seg-0000", "nvm/seg-0001"] {
        let segment = v.dir().join(segment);
        let mut bytes = fs::read(&segment).unwrap();
        for block in bytes.chunks_mut(4096) {
            let is_leaf = block.starts_with(b"SHLN") && block[32] == 2;
            if is_leaf && block.windows(9).any(|name| name == b"letter-77") {
                block[100] ^= 1;
            }
        }
        fs::write(&segment, bytes).unwrap();
    }
    let found = v.shale(&["fsck", v.file(), "--json"]).failed(3);
    assert!(found.contains("secret plans"), "{found}");
    let report = v.dir().join("u.tar.gz");
    let args = ["report", v.file(), "-o", report.to_str().unwrap(), "--json"];
    let said: Value = serde_json::from_str(&v.shale(&args).ok()).unwrap();
    assert!(
        said["parts"]
            .as_array()
            .unwrap()
            .contains(&"fsck.json".into()),
        "{said}"
    );
    let parts = unpacked(&report, &v.dir().join("unmounted"));
    let fsck = part(&parts, "fsck.json");
    let checked: Value = serde_json::from_str(fsck).unwrap();
    assert!(checked["errors"].as_u64().unwrap() > 0, "{fsck}");
    assert!(
        !fsck.contains("secret") && !fsck.contains("letter-"),
        "{fsck}"
    );
    assert!(fsck.contains("inode "), "{fsck}");
    // Of what is broken there is a report, too.
    fs::write(v.file(), "garbage").unwrap();
    let report = v.dir().join("g.tar.gz");
    v.shale(&["report", v.file(), "-o", report.to_str().unwrap()])
        .ok();
    let parts = unpacked(&report, &v.dir().join("garbage"));
    assert!(part(&parts, "fsck.json").contains("error"));
    shale(&["report", "/nowhere/at/all"]).failed(4);
}

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
