//! Stores through a shared mapping on a full volume: it is too late to refuse them.

use crate::volume::{SHALE, Volume, can_mount, library};
use std::path::Path;
use std::process::Command;

#[test]
fn what_a_mapping_stores_on_a_full_volume_is_not_lost() {
    if !can_mount() || !library().exists() {
        return;
    }
    let v = Volume::tiered("full-mapping", "64M", "64M", "64M");
    v.mount();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounted/tiers/full_mapping.py");
    let said = Command::new("python3")
        .arg(script)
        .args([v.place(), SHALE])
        .env("SHALE_PRELOAD", library())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert_eq!(
        text,
        "stored\n",
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    v.umount();
    v.fsck();
}
