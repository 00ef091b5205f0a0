//! `shale bench policy`: what it measures is there, and nothing else is left, however it ends.

use crate::volume::{SHALE, Signal, can_mount, library, shale, signal, wait_until};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

fn place() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Whether nothing is below a directory, and nothing mounted there.
fn is_clean(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_mounted = mounts.contains(dir.to_str().unwrap());
    !is_mounted && fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn both_policies_are_measured_on_both_ways_and_beside_others() {
    if !can_mount() || !library().exists() {
        return;
    }
    let (dir, out) = (place(), place());
    let path = |name: &str| out.path().join(name).to_str().unwrap().to_owned();
    let (json, svg) = (path("policy.json"), path("svg"));
    let loops = Path::new("/dev/loop-control").exists();
    let said = shale(&[
        "bench",
        "policy",
        "--quick",
        "--loads=tpcc,kernel-grep",
        "--seconds=0.1",
        "--files=20",
        "--volume=128M",
        "--log-bytes=16M",
        if loops {
            "--beside=tmpfs,ext4"
        } else {
            "--beside=tmpfs"
        },
        &format!("--dir={}", dir.path().display()),
        &format!("--json={json}"),
        &format!("--svg={svg}"),
    ])
    .ok();
    assert!(is_clean(dir.path()), "{said}");
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let ext4 = usize::from(loops && !said.contains("left out: ext4"));
    assert_eq!(rows.len(), 2 * (5 + ext4), "{said}");
    for row in rows {
        assert!(row["operations_per_s"]["median"].as_f64() > Some(0.0));
        let each = row["medium_bytes_for_each"]["median"].as_f64();
        let is_ours = row["system"]["shale"].is_array();
        match row["cell"]["load"].as_str() {
            // Every byte reached NVM once at least: what was written last was synced.
            Some("tpcc") if is_ours => assert!(each > Some(0.9), "{said}"),
            Some("kernel-grep") => assert_eq!(each, None, "{said}"),
            _ => {}
        }
    }
    assert!(said.contains("run buffered") && said.contains("mount strict"));
    assert!(said.contains("note: tpcc: the pattern of syncs"), "{said}");
    let plots: Vec<_> = fs::read_dir(&svg).unwrap().collect();
    assert_eq!(plots.len(), 1, "two programs in one picture");
}

#[test]
fn a_measurement_that_fails_or_is_killed_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let dir = place();
    let in_dir = format!("--dir={}", dir.path().display());
    let quick = ["bench", "policy", "--quick", "--ways=mount", &in_dir];
    // No volume is this small.
    let said = shale(&[&quick[..], &["--volume=4K"]].concat()).failed(1);
    assert!(
        said.contains("fileserver") && said.contains("mkfs"),
        "{said}"
    );
    assert!(is_clean(dir.path()), "{said}");
    // No file fits: the load fails, on a volume that is mounted.
    let said = shale(&[&quick[..], &["--volume=96M", "--files=100000"]].concat()).failed(1);
    assert!(said.contains("load fileserver"), "{said}");
    assert!(is_clean(dir.path()), "{said}");

    for beside in ["--policies=strict", "--policies=buffered"] {
        let mut run = Command::new(SHALE)
            .args(quick)
            .args(["--seconds=60", "--volume=256M", beside])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
        wait_until("a volume is mounted", || {
            mounts().contains(dir.path().to_str().unwrap())
        });
        std::thread::sleep(Duration::from_millis(300));
        signal(run.id().into(), Signal::KILL);
        run.wait().unwrap();
        wait_until("nothing is left", || is_clean(dir.path()));
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (option, known) in [
        ("--loads=fly", "varmail"),
        ("--models=fly", "hinfs"),
        ("--ways=fly", "mount"),
        ("--seconds=0", "--seconds"),
        ("--rounds=0", "--rounds"),
    ] {
        let said = shale(&["bench", "policy", option]).failed(2);
        assert!(said.contains(known), "{option}: {said}");
    }
    assert!(
        shale(&["bench", "policy", "--help"])
            .ok()
            .contains("  shale bench policy")
    );
}
