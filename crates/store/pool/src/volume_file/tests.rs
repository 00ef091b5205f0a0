//! Volume files are saved and loaded, and every mistake is named.

use super::*;
use crate::test_device::device;

fn sample(dir: &Path) -> VolumeFile {
    VolumeFile {
        format: FORMAT,
        name: "v".to_owned(),
        uuid: uuid_text(&[7; 16]),
        durability: "strict".to_owned(),
        log_bytes: LOG_BYTES_MIN,
        client_log_bytes: None,
        migrate_at_percent: None,
        digest_at_percent: None,
        write_back_at_percent: None,
        next_mount: None,
        trusted_uids: Vec::new(),
        buffer_dir: None,
        buffering: None,
        buffer_bytes: None,
        staged: None,
        nvm: vec![NvmEntry::new(dir.to_path_buf(), NVM_BYTES_MIN)],
        ssd: vec![],
        hdd: vec![],
    }
}

/// Of a volume without NVM: on the second of its SSDs.
fn staged_sample() -> VolumeFile {
    VolumeFile {
        durability: "buffered".to_owned(),
        nvm: vec![],
        staged: Some(StagedEntry {
            memory_dir: "/dev/shm/shale-x".into(),
            memory_bytes: 64 << 20,
            device: "b.img".into(),
            at_byte: 1 << 30,
            staging_bytes: 32 << 20,
        }),
        ssd: vec![
            device(Path::new("a.img"), 2 << 30),
            device(Path::new("b.img"), 1 << 30),
        ],
        ..sample(Path::new("unused"))
    }
}

#[test]
fn a_staged_volume_is_saved_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("VOLUME.toml");
    let file = staged_sample();
    file.save(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("[staged]") && !text.contains("nvm"), "{text}");
    let loaded = VolumeFile::load(&path).unwrap();
    assert!(loaded.is_staged() && !sample(Path::new("n")).is_staged());
    assert_eq!(loaded.nvm_dir(), Path::new("/dev/shm/shale-x"));
    assert_eq!(loaded.nvm_bytes(), 64 << 20);
    assert_eq!(loaded.staged.unwrap().device, dir.path().join("b.img"));
    for policy in ["strict", "buffered", "ordered"] {
        let durability = policy.to_owned();
        let file = VolumeFile {
            durability,
            ..staged_sample()
        };
        file.save(&path).unwrap();
        assert_eq!(VolumeFile::load(&path).unwrap().durability, policy);
    }
    // Named by another path that is the same.
    let whole = dir.path().join("b.img").display().to_string();
    std::fs::write(
        &path,
        text.replacen("\"b.img\"", &format!("\"{whole}\""), 1),
    )
    .unwrap();
    VolumeFile::load(&path).unwrap();
}

#[test]
fn every_mistake_of_a_staged_volume_names_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("V.toml");
    let good = toml::to_string(&staged_sample()).unwrap();
    let staged = good.split_once("[staged]").unwrap().1;
    let staged = format!("[staged]{}", staged.split_once("[[ssd]]").unwrap().0);
    let nvm = "[[nvm]]\ndir = \"/n\"\nsize_bytes = 33554432\n[[ssd]]";
    for (from, to, key, word) in [
        (staged.as_str(), "", "nvm", "no entry"),
        ("[[ssd]]", nvm, "staged", "either"),
        ("\"b.img\"", "\"c.img\"", "staged.device", "c.img is none"),
        (
            "memory_bytes = 67108864",
            "memory_bytes = 67108865",
            "staged.memory_bytes",
            "4096",
        ),
        (
            "memory_bytes = 67108864",
            "memory_bytes = 4096",
            "staged.memory_bytes",
            "least",
        ),
        (
            "at_byte = 1073741824",
            "at_byte = 1073741825",
            "staged.at_byte",
            "4096",
        ),
        (
            "at_byte = 1073741824",
            "at_byte = 1073737728",
            "staged.at_byte",
            "the tier uses",
        ),
        (
            "staging_bytes = 33554432",
            "staging_bytes = 33554433",
            "staged.staging_bytes",
            "4096",
        ),
        (
            "staging_bytes = 33554432",
            "staging_bytes = 8192",
            "staged.staging_bytes",
            "least",
        ),
        ("staging_bytes", "stage_bytes", "file", "stage_bytes"),
        (
            "path = \"b.img\"",
            "path = \"b.img\"\nkind = \"open-channel\"",
            "staged.device",
            "open-channel",
        ),
        ("\"buffered\"", "\"sloppy\"", "durability", "sloppy"),
    ] {
        assert!(good.contains(from), "{from} not in {good}");
        std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let text = VolumeFile::load(&path).unwrap_err().to_string();
        assert!(
            text.contains("V.toml") && text.contains(key) && text.contains(word),
            "{text}"
        );
    }
}

#[test]
fn save_and_load() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("VOLUME.toml");
    let mut file = sample(Path::new("nvm"));
    file.save(&path).unwrap();
    let without = std::fs::read_to_string(&path).unwrap();
    assert!(!without.contains("trusted_uids"), "{without}");
    assert!(VolumeFile::load(&path).unwrap().trusted_uids.is_empty());
    assert!(!without.contains("client_log_bytes"), "{without}");
    file.trusted_uids = vec![1000, 1001];
    file.client_log_bytes = Some(64 << 20);
    file.save(&path).unwrap();
    VolumeFile::forget_device(&path, Path::new("/none")).unwrap();
    let loaded = VolumeFile::load(&path).unwrap();
    assert_eq!(loaded.trusted_uids, [1000, 1001]);
    assert_eq!(loaded.client_log_bytes, Some(64 << 20));
    assert_eq!(loaded.nvm_dir(), dir.path().join("nvm"));
    assert_eq!(loaded.uuid_bytes(), [7; 16]);
    assert_eq!(loaded.name, "v");
}

#[test]
fn a_path_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("VOLUME.toml");
    let mut file = sample(Path::new("nvm"));
    file.ssd = vec![device(Path::new("a"), 1), device(Path::new("b"), 2)];
    file.save(&path).unwrap();
    let again = device(&dir.path().join("a"), 3);
    VolumeFile::name_device(&path, TierId::Hdd, &again).unwrap();
    let loaded = VolumeFile::load(&path).unwrap();
    assert_eq!(loaded.ssd, [device(&dir.path().join("b"), 2)]);
    assert_eq!(loaded.hdd, [again]);
}

#[test]
fn the_old_key_of_over_provisioning_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("VOLUME.toml");
    let good = toml::to_string(&sample(Path::new("/nvm"))).unwrap();
    for key in ["overprovision_percent", "spare_percent"] {
        let device = format!("[[ssd]]\npath = \"/s\"\nsize_bytes = 1\n{key} = 7\n[[nvm]]");
        std::fs::write(&path, good.replacen("[[nvm]]", &device, 1)).unwrap();
        let loaded = VolumeFile::load(&path).unwrap();
        assert_eq!(loaded.ssd[0].overprovision_percent, Some(7), "{key}");
    }
}

#[test]
fn every_mistake_names_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("V.toml");
    let good = toml::to_string(&sample(Path::new("/nvm"))).unwrap();
    for (from, to, key, word) in [
        ("format = 1", "format = 2\nnew_key = 1", "format", "newer"),
        ("\"strict\"", "\"sloppy\"", "durability", "sloppy"),
        ("\"v\"", "\"\\u001b[31mv\"", "name", "control character"),
        (
            "log_bytes = 16777216",
            "log_bytes = 5",
            "log_bytes",
            "16777216",
        ),
        (
            "size_bytes = 33554432",
            "size_bytes = 1",
            "nvm.size_bytes",
            "least",
        ),
        ("0707", "07", "uuid", "hexadecimal"),
        ("name = \"v\"", "nam = \"v\"", "file", "nam"),
        (
            "log_bytes",
            "trusted_uids = [4294967295]\nlog_bytes",
            "trusted_uids",
            "no user",
        ),
        (
            "log_bytes",
            "trusted_uids = [\"ann\"]\nlog_bytes",
            "trusted_uids",
            "u32",
        ),
        (
            "[[nvm]]",
            "[[ssd]]\npath = \"s\"\nsize_bytes = 1\nmodel = \"tape\"\n[[nvm]]",
            "ssd.model",
            "tape",
        ),
    ] {
        assert!(good.contains(from), "{from} not in {good}");
        std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let text = VolumeFile::load(&path).unwrap_err().to_string();
        assert!(
            text.contains("V.toml") && text.contains(key) && text.contains(word),
            "{text}"
        );
    }
    let missing = VolumeFile::load(&dir.path().join("none")).unwrap_err();
    assert!(missing.to_string().contains("none"));
}

#[test]
fn uuid_text_and_back() {
    let uuid = *b"0123456789abcdef";
    assert_eq!(parse_uuid(&uuid_text(&uuid)), Some(uuid));
    assert_eq!(parse_uuid("12"), None);
}
