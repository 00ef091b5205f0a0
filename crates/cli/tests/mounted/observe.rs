//! What a mount tells about itself: `df`, `status`.

use crate::volume::{Volume, can_mount};
use serde_json::Value;
use std::fs;

const MIB: u64 = 1 << 20;

fn rows(v: &Volume) -> Vec<Value> {
    let text = v.shale(&["df", v.place(), "--files", "--json"]).ok();
    serde_json::from_str(&text).unwrap()
}

fn row<'r>(rows: &'r [Value], tier: &str, device: bool) -> &'r Value {
    let mut of_tier = rows.iter().filter(|r| r["tier"] == tier);
    let found = of_tier.find(|r| r["device"].is_string() == device);
    found.unwrap_or_else(|| panic!("no {tier} in {rows:?}"))
}

#[test]
fn df_says_what_each_device_holds() {
    if !can_mount() {
        return;
    }
    let v = Volume::tiered("df", "64M", "64M", "128M");
    v.mount();
    for n in 0..3 {
        let path = v.mountpoint().join(format!("file-{n}"));
        fs::write(path, vec![n; 2 << 20]).unwrap();
    }
    let before = rows(&v);
    let dirty = row(&before, "nvm", true)["dirty_bytes"].as_u64().unwrap();
    let used = row(&before, "nvm", true)["used_bytes"].as_u64().unwrap();
    assert!(dirty > 0 && used >= 6 * MIB, "{before:?}");
    assert_eq!(row(&before, "ssd", true)["files"], 0);
    v.shale(&["migrate", v.place()]).ok();
    let after = rows(&v);
    let ssd = row(&after, "ssd", true);
    assert_eq!(
        (&ssd["files"], &ssd["live_bytes"]),
        (&3.into(), &(6 * MIB).into())
    );
    assert_eq!(row(&after, "ssd", false)["live_bytes"], 6 * MIB);
    assert_eq!(row(&after, "nvm", true)["files"], 0);
    assert_eq!(row(&after, "nvm", true)["dirty_bytes"], 0);
    fs::remove_file(v.mountpoint().join("file-1")).unwrap();
    v.shale(&["digest", v.place()]).ok();
    let gone = rows(&v);
    let ssd = row(&gone, "ssd", true);
    assert_eq!(
        (&ssd["files"], &ssd["live_bytes"]),
        (&2.into(), &(4 * MIB).into())
    );
    assert_eq!(ssd["used_bytes"], 6 * MIB, "dead until its zone is cleaned");
    let text = v.shale(&["df", v.place(), "--files"]).ok();
    assert!(
        text.contains("2 files") && text.contains("ssd.img"),
        "{text}"
    );
    let status = v.shale(&["status", v.place(), "--files"]).ok();
    assert!(status.contains("device 0: 4 MiB of 2 files"), "{status}");
    println!("{text}{status}");
    let migration = &v.status()["migration"];
    assert_eq!(migration["moved_bytes"], 6 * MIB);
    assert!(migration["recent_bytes_per_s"].as_u64().unwrap() > 0);
    v.umount();
    v.fsck();
}
