//! Volumes without NVM, as `mkfs` and `fsck` have them.

use crate::volume::shale;
use serde_json::Value;
use std::path::Path;

#[test]
fn a_volume_without_nvm_is_made_and_checked() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, image) = (at("V.toml"), at("ssd.img"));
    let ssd = format!("{image}:160M");
    let said = shale(&["mkfs", &file]).failed(2);
    assert!(said.contains("--ssd /dev/nvme0n1p3:200G"), "{said}");
    let args = ["mkfs", &file, "--ssd", &ssd, "--staging", "8M", "--json"];
    let made: Value = serde_json::from_str(&shale(&args).ok()).unwrap();
    assert_eq!(made["durability"], "buffered");
    assert_eq!(made["persistence"], "staged");
    let lost = made["power_cut"].as_str().unwrap();
    assert!(lost.contains("not followed by fsync"), "{lost}");
    let staged = &made["staged"];
    assert_eq!(staged["memory_bytes"], 64 << 20);
    assert_eq!(staged["staging_bytes"], 8 << 20);
    assert_eq!(staged["device"], image);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 160 << 20);
    let memory_dir = staged["memory_dir"].as_str().unwrap();

    let said = shale(&["fsck", &file]).ok();
    assert!(said.contains("volume is clean"), "{said}");
    shale(&["fsck", &file, "--repair"]).ok();
    let said = shale(&["log", "show", &file]).failed(1);
    assert!(said.contains("shale mount"), "{said}");
    assert!(!Path::new(memory_dir).exists(), "nothing is left in memory");
    // Both header blocks of the area are gone: that is damage, and is named.
    let at_byte = staged["at_byte"].as_u64().unwrap();
    let image = std::fs::OpenOptions::new().write(true).open(&image);
    std::os::unix::fs::FileExt::write_all_at(&image.unwrap(), &[0; 8192], at_byte).unwrap();
    let said = shale(&["fsck", &file]).failed(3);
    assert!(said.contains("ssd.img: no staging area"), "{said}");
    assert!(!Path::new(memory_dir).exists());
}
