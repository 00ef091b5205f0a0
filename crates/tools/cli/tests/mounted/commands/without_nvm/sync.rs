//! `sync -f` and `sync` under `shale run`, and `shale sync`: what others wrote is durable too.

use super::Ssd;
use crate::volume::{SHALE, can_mount, library, shale, wait_until, with_library};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const LINES: usize = 300;

fn lines(name: &str) -> String {
    (0..LINES).map(|n| format!("{name} {n}\n")).collect()
}

/// A shell script that writes [`lines`] without fsync, each by a call, and then does `more`.
fn writes(path: &Path, name: &str, more: &str) -> String {
    let path = path.display();
    format!(
        "exec 5>{path}; n=0; while [ $n -lt {LINES} ]; do echo {name} $n >&5; n=$((n+1)); done; {more}"
    )
}

/// A program under `shale run` that has written and goes on.
struct Program(Child);

impl Program {
    fn start(volume: &Ssd, name: &str) -> Self {
        let path = volume.path(name);
        let script = writes(&path, name, "read line");
        let child = Command::new(SHALE)
            .args(["run", "--", "sh", "-c", &script])
            .env("SHALE_PRELOAD", library())
            .env("SHALE_WARM_CALLS", "0")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let program = Self(child);
        let bytes = lines(name).len() as u64;
        wait_until("the program has written", || {
            fs::metadata(&path).is_ok_and(|file| file.len() == bytes)
        });
        let pid = u64::from(program.0.id());
        let clients = volume.status()["clients"].clone();
        let direct = |c: &Value| c["kind"] == "direct" && c["pid"] == pid;
        assert!(clients.as_array().unwrap().iter().any(direct), "{clients}");
        program
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_others_wrote_survives_a_power_cut_after_sync() {
    if !can_mount() {
        return;
    }
    let volume = Ssd::new("buffered");
    let place = volume.place.clone();
    let existing = volume.path("existing").to_str().unwrap().to_owned();
    let syncs: [&[&str]; 4] = [
        &["run", "--", "sync", "-f", &place],
        &["run", "--", "sync", "-f", &existing],
        &["run", "--", "sync"],
        &["sync", &place],
    ];
    volume.mount();
    fs::write(&existing, "").unwrap();
    for (n, sync) in syncs.iter().enumerate() {
        let name = |kind: &str| format!("{kind}{n}");
        let runs = Program::start(&volume, &name("runs"));
        let ends = writes(&volume.path(&name("ended")), &name("ended"), "exit 0");
        shale(&["run", "--", "sh", "-c", &ends]).ok();
        fs::write(volume.path(&name("mount")), lines(&name("mount"))).unwrap();
        shale(sync).ok();
        volume.cut_power();
        drop(runs);
        volume.mount();
        for kind in ["mount", "ended", "runs"] {
            let found = fs::read_to_string(volume.path(&name(kind))).unwrap_or_default();
            let bytes = found.len();
            assert!(
                found == lines(&name(kind)),
                "{sync:?}, {kind}: {bytes} bytes are left"
            );
        }
    }
    shale(&["umount", &place]).ok();
    let said = shale(&["fsck", &volume.file]).ok();
    assert!(said.contains("volume is clean"), "{said}");
}

#[test]
fn a_sync_waits_for_the_next_daemon() {
    let Some(volume) = with_library("sync") else {
        return;
    };
    let status: Value =
        serde_json::from_str(&shale(&["status", volume.place(), "--json"]).ok()).unwrap();
    crate::volume::kill(status["daemon_pid"].as_u64().unwrap());
    shale(&["run", "--", "sync", "-f", volume.place()]).ok();
    let said = shale(&["sync", volume.place(), "--json"]).ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["mountpoint"], volume.place());
    assert!(said["seconds"].as_f64() < Some(30.0), "{said}");
    let said = shale(&["sync", volume.place()]).ok();
    assert!(
        said.contains("everything that was written is durable"),
        "{said}"
    );
    volume.umount();
    shale(&["sync", volume.place()]).failed(4);
}
