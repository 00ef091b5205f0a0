//! Settings that change while a volume is mounted, and those that wait for the next mount.

use crate::commands::without_nvm::Ssd;
use crate::volume::{
    SHALE, Volume, can_mount, kill, library, pattern, shale, wait_until, with_library,
};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// All settings of a mount or a volume file.
fn settings(of: &str) -> Value {
    serde_json::from_str(&shale(&["tune", of, "--json"]).ok()).unwrap()
}

/// One of them.
fn setting(of: &str, name: &str) -> Value {
    let all = settings(of);
    let rows = all["settings"].as_array().unwrap();
    rows.iter()
        .find(|row| row["setting"] == name)
        .cloned()
        .unwrap()
}

#[test]
fn what_can_change_at_once_does_and_outlives_the_daemon() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("tune", "64M", "64M", "128M");
    let text = fs::read_to_string(v.file()).unwrap();
    fs::write(v.file(), format!("# Mine.\n{text}")).unwrap();
    v.mount();
    let at_percent = || v.status()["migration"]["at_percent"].as_u64();
    let reserved = || {
        let status = v.status();
        let tiers = status["tiers"].as_array().unwrap();
        let ssd = tiers.iter().find(|tier| tier["tier"] == "ssd").unwrap();
        ssd["reserved_bytes"].as_u64().unwrap()
    };
    assert_eq!(at_percent(), Some(95));
    let before = reserved();
    let row = setting(v.place(), "migrate_at_percent");
    assert_eq!(
        (&row["value"], &row["from"]),
        (&95.into(), &"default".into())
    );
    assert_eq!(
        (&row["range"], &row["holds"]),
        (&"1 to 100".into(), &"at_once".into())
    );

    // One that is bad keeps the others from being changed.
    let unchanged = fs::read_to_string(v.file()).unwrap();
    let said = v
        .shale(&[
            "tune",
            v.place(),
            "migrate_at_percent=70",
            "digest_at_percent=91",
        ])
        .failed(2);
    assert!(
        said.contains("digest_at_percent") && said.contains("1 to 90"),
        "{said}"
    );
    assert_eq!(at_percent(), Some(95));
    assert_eq!(fs::read_to_string(v.file()).unwrap(), unchanged);

    let ssd = format!("overprovision:{}=40", v.below().join("ssd.img").display());
    let said = v
        .shale(&[
            "tune",
            v.place(),
            "migrate_at_percent=70",
            &ssd,
            "migration_limit=50M",
        ])
        .ok();
    assert!(said.contains("migrate_at_percent: 70% (at once)"), "{said}");
    let check = || {
        assert_eq!(at_percent(), Some(70));
        assert!(reserved() > before + (16 << 20), "{} {before}", reserved());
        assert_eq!(v.status()["migration"]["limit_bytes_per_s"], 50 << 20);
    };
    check();
    assert!(
        fs::read_to_string(v.file())
            .unwrap()
            .starts_with("# Mine.\n")
    );
    v.kill_daemon();
    check();
    // By the name of the file it is the same mount.
    shale(&[
        "tune",
        v.file(),
        "migrate_at_percent=default",
        &ssd.replace("=40", "=default"),
    ])
    .ok();
    assert_eq!((at_percent(), reserved()), (Some(95), before));
    assert_eq!(setting(v.file(), "migration_limit")["from"], "mount");
    v.umount();
    v.fsck();
    assert_eq!(fs::read_to_string(v.file()).unwrap(), unchanged);
    let said = v.shale(&["tune", v.place()]).failed(4);
    assert!(said.contains("no shale volume is mounted"), "{said}");
}

#[test]
fn a_program_gets_the_log_that_was_set_before_it_started() {
    let Some(v) = with_library("tune-log") else {
        return;
    };
    let log_bytes = |v: &Volume| {
        let script = format!(
            "echo 1 >{0}/file; timeout 50 sh -c 'until [ -e {0}/go ]; do sleep 0.05; done' <{0}/file",
            v.place()
        );
        let mut run = Command::new(SHALE)
            .args(["run", "--", "sh", "-c", &script])
            .env("SHALE_PRELOAD", library())
            .env("SHALE_WARM_CALLS", "0")
            .spawn()
            .unwrap();
        let mut found = None;
        wait_until("the program is a client", || {
            let status = v.status();
            let clients = status["clients"].as_array().unwrap();
            let direct = clients.iter().find(|c| c["kind"] == "direct");
            found = direct.and_then(|c| c["log_bytes"].as_u64());
            found.is_some()
        });
        fs::write(v.mountpoint().join("go"), b"").unwrap();
        assert!(run.wait().unwrap().success());
        fs::remove_file(v.mountpoint().join("go")).unwrap();
        found
    };
    let usual = setting(v.place(), "client_log_bytes")["value"].as_u64();
    assert_eq!(log_bytes(&v), usual);
    v.shale(&["tune", v.place(), "client_log_bytes=20M"]).ok();
    assert_eq!(log_bytes(&v), Some(20 << 20));
    v.umount();
    v.fsck();
}

/// What is on the media changes with the next mount, not with a daemon that is started again.
fn policy_and_log_change(file: &str, place: &str, status: &dyn Fn() -> Value, kill: &dyn Fn()) {
    let mount = || drop(shale(&["mount", file, place]).ok());
    let umount = || drop(shale(&["umount", place]).ok());
    let policy = || status()["durability"].as_str().unwrap().to_owned();
    let log = || status()["clients"][0]["log_bytes"].as_u64();
    let now = setting(file, "durability")["value"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = std::path::Path::new(place);
    mount();
    fs::write(path.join("before"), pattern(1, 1 << 20)).unwrap();
    let other = if now == "buffered" {
        "strict"
    } else {
        "buffered"
    };
    shale(&[
        "tune",
        place,
        &format!("durability={other}"),
        "log_bytes=24M",
    ])
    .ok();
    let waits = setting(place, "durability");
    assert_eq!(
        (&waits["value"], &waits["from_next_mount_on"]),
        (&now.clone().into(), &other.into())
    );
    kill();
    assert_eq!(policy(), now, "a daemon that is started again is no mount");
    umount();
    shale(&["fsck", file]).ok();
    for policy_now in [other, "ordered", &*now] {
        if policy_now != other {
            shale(&["tune", file, &format!("durability={policy_now}")]).ok();
        }
        mount();
        assert_eq!((&*policy(), log()), (policy_now, Some(24 << 20)));
        assert!(!fs::read_to_string(file).unwrap().contains("next_mount"));
        assert!(fs::read(path.join("before")).unwrap() == pattern(1, 1 << 20));
        fs::write(path.join(policy_now), pattern(2, 1 << 20)).unwrap();
        kill();
        assert_eq!(policy(), policy_now);
        assert!(fs::read(path.join(policy_now)).unwrap() == pattern(2, 1 << 20));
        umount();
        shale(&["fsck", file]).ok();
    }
}

#[test]
fn policy_and_log_change_with_the_next_mount() {
    if !can_mount() {
        return;
    }
    let v = Volume::new("tune-policy");
    policy_and_log_change(v.file(), v.place(), &|| v.status(), &|| v.kill_daemon());
}

#[test]
fn policy_and_log_change_without_nvm_too() {
    if !can_mount() {
        return;
    }
    let v = Ssd::new("buffered");
    policy_and_log_change(&v.file, &v.place, &|| v.status(), &|| {
        let old = v.status()["daemon_pid"].as_u64().unwrap();
        kill(old);
        wait_until("another daemon answers", || v.status()["daemon_pid"] != old);
    });
}
