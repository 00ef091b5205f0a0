//! Emulated raw flash as a tier, on the real programs.

use crate::tiers::pattern;
use crate::volume::{Volume, can_mount};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const FILES: usize = 12;
const FILE_BYTES: usize = 8 << 20;

fn device(v: &Volume) -> Value {
    let text = v.shale(&["device", "list", v.place(), "--json"]).ok();
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

/// Files are written over and over on flash of which most is full; the daemon is killed, the volume
/// mounted again.
#[test]
fn flash_that_is_only_written_in_order_is_a_tier() {
    if !can_mount() {
        return;
    }
    let below = tempfile::tempdir_in("/var/tmp").unwrap();
    let image: PathBuf = below.path().join("flash.img");
    let all = [("--ssd", image.as_path(), "128M:2M,kind=open-channel")];
    let v = Volume::with_devices("flash", "64M", below, &all);
    let made = fs::read_to_string(v.file()).unwrap();
    assert!(made.contains("kind = \"open-channel\""), "{made}");
    v.mount();
    let file = |n: usize| v.mountpoint().join(format!("file-{n:03}"));
    for round in 0..4 {
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..FILES {
                    let bytes = pattern(n + round, FILE_BYTES);
                    fs::write(file(n), bytes).expect("the write saw the kill");
                }
                v.shale(&["migrate", v.place()]).ok();
            });
            if round == 2 {
                thread::sleep(Duration::from_millis(700));
                v.kill_daemon();
            }
        });
        let flash = &device(&v)["flash"];
        assert_eq!(flash["out_of_order"], 0, "{flash}");
        assert_eq!(flash["unreadable"], 0, "{flash}");
    }
    let used = device(&v);
    assert_eq!(used["kind"], "open-channel");
    assert!(used["live_bytes"].as_u64() >= Some(90 << 20), "{used}");
    assert!(used["flash"]["blocks_erased"].as_u64() > Some(20), "{used}");
    let status = v.status();
    assert_eq!(status["tiers"][0]["out_of_order"], 0);
    assert_eq!(status["tiers"][0]["devices"][0]["kind"], "open-channel");
    let same = || {
        for n in 0..FILES {
            assert!(
                fs::read(file(n)).unwrap() == pattern(n + 3, FILE_BYTES),
                "file {n}"
            );
        }
    };
    same();
    let text = v.shale(&["device", "list", v.place()]).ok();
    assert!(text.contains("open-channel"), "{text}");
    v.umount();
    v.fsck();
    v.mount();
    same();
    v.shale(&["scrub", v.place()]).ok();
    v.umount();
    v.fsck();
    // Another start cannot have it as what it is not.
    fs::write(v.file(), made.replace("open-channel", "conventional")).unwrap();
    let said = v.shale(&["mount", v.file(), v.place()]).failed(1);
    assert!(
        said.contains("flash.img") && said.contains("open-channel"),
        "{said}"
    );
}
