use super::*;
use crate::test_device;
use shale_emulate::host_managed::{EmulatedZones, ZoneShape};
use shale_format::device_table::device_kind;

fn flash(dir: &Path, size_bytes: u64, zone_bytes: Option<u64>) -> DeviceFile {
    DeviceFile {
        zone_bytes,
        kind: DeviceKind::OpenChannel,
        ..test_device::device(&dir.join("flash.img"), size_bytes)
    }
}

fn at(entry: &DeviceEntry) -> DevicePlace {
    DevicePlace::new(entry, 0, 0)
}

#[test]
fn flash_is_divided_into_zones_of_whole_erase_blocks() {
    let dir = Path::new("/none");
    let entry = divide(&flash(dir, 1 << 30, None)).unwrap().entry;
    assert_eq!(entry.zone_blocks, 8192, "an erase block of each unit");
    assert_eq!(entry.blocks, 31 * 8192, "two erase blocks are for labels");
    let entry = divide(&flash(dir, 64 << 20, None)).unwrap().entry;
    assert_eq!((entry.zone_blocks, entry.blocks), (512, 30 * 512));
    for (size, zone) in [(40 << 20, None), (64 << 20, Some(1 << 20))] {
        let said = divide(&flash(dir, size, zone)).unwrap_err().to_string();
        assert!(
            said.contains("flash.img") && said.contains("multiple"),
            "{said}"
        );
    }
}

#[test]
fn what_is_no_flash_is_not_made_one_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let file = flash(dir.path(), 64 << 20, None);
    let entry = divide(&file).unwrap().entry;
    std::fs::write(&file.path, "a letter").unwrap();
    let said = make(&file, &entry, false).err().unwrap().to_string();
    assert!(said.contains("no image of flash"), "{said}");
    assert_eq!(std::fs::read(&file.path).unwrap(), b"a letter");
    drop(make(&file, &entry, true).unwrap());
    drop(make(&file, &entry, false).unwrap());
    let other = flash(dir.path(), 96 << 20, None);
    assert!(make(&other, &divide(&other).unwrap().entry, false).is_err());
    let opened = open(&file, &at(&entry)).unwrap();
    assert_eq!(opened.write_unit(), 8192);
    let larger = DeviceEntry {
        blocks: entry.blocks * 2,
        ..entry
    };
    drop(opened);
    assert!(open(&file, &at(&larger)).is_err());
}

/// Two conventional zones, two for labels, eight more; 768 KiB of a zone can be used, and of each a piece
/// that does not fill a unit.
const SHAPE: ZoneShape = ZoneShape {
    zones: 12,
    conventional: 2,
    zone_bytes: 1 << 20,
    capacity: (800 << 10) + (8 << 10),
    max_active: 6,
};

fn device(path: &Path, kind: DeviceKind) -> DeviceFile {
    DeviceFile {
        kind,
        ..test_device::device(path, 12 << 20)
    }
}

#[test]
fn a_host_managed_device_is_found_to_be_one_and_divided_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zones.img");
    drop(EmulatedZones::create(&path, SHAPE).unwrap());
    for kind in [DeviceKind::Conventional, DeviceKind::HostManaged] {
        let found = as_found(&device(&path, kind)).unwrap();
        assert_eq!(found.kind, DeviceKind::HostManaged);
        let entry = divide(&found).unwrap().entry;
        assert_eq!((entry.zone_blocks, entry.blocks), (192, 10 * 192));
        assert_eq!(entry.kind, device_kind::HOST_MANAGED);
        let made = make(&found, &entry, false).unwrap();
        assert_eq!(made.bytes(), LABEL_AREA_BYTES + 10 * 192 * BLOCK);
        assert_eq!(made.access(), "emulated zones");
        drop(made);
        assert!(open(&found, &at(&entry)).is_ok() && open_label(&found).is_some());
    }
    let said = |file: &DeviceFile| {
        as_found(file)
            .and_then(|f| divide(&f))
            .unwrap_err()
            .to_string()
    };
    let refused = |change: fn(&mut DeviceFile), words: &[&str]| {
        let mut file = device(&path, DeviceKind::Conventional);
        change(&mut file);
        let said = said(&file);
        let all = words.iter().all(|word| said.contains(word));
        assert!(all && said.contains("zones.img"), "{said}");
    };
    refused(
        |f| f.size_bytes += 1,
        &["12582912 bytes", "expected 12582913"],
    );
    refused(
        |f| f.zone_bytes = Some(1 << 20),
        &["1048576", "786432 that can be used"],
    );
    refused(|f| f.model = Some("disk".to_owned()), &["disk", "in front"]);
    let open_channel = |f: &mut DeviceFile| f.kind = DeviceKind::OpenChannel;
    refused(
        open_channel,
        &["host-managed, with zones of 1048576", "not open-channel"],
    );
    refused(|f| f.size_bytes = 3 << 20, &["no two sequential zones"]);
}

#[test]
fn what_is_not_host_managed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (path, none) = (dir.path().join("plain.img"), dir.path().join("none"));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    for (path, found) in [
        (&path, "a file without zones"),
        (&none, "cannot be found"),
        (
            &dir.path().to_path_buf(),
            "neither a file nor a block device",
        ),
    ] {
        let said = as_found(&device(path, DeviceKind::HostManaged)).unwrap_err();
        let said = said.to_string();
        let named = said.contains(&path.display().to_string());
        assert!(named && said.contains(found), "{said}");
        let usual = device(path, DeviceKind::Conventional);
        assert_eq!(as_found(&usual).unwrap(), usual);
    }
}

#[test]
fn a_device_that_was_host_managed_and_is_not_any_more_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zones.img");
    drop(EmulatedZones::create(&path, SHAPE).unwrap());
    let file = as_found(&device(&path, DeviceKind::Conventional)).unwrap();
    let entry = divide(&file).unwrap().entry;
    let said = |file: &DeviceFile, entry| open(file, &at(entry)).err().unwrap().to_string();
    let usual = device(&path, DeviceKind::Conventional);
    let conventional = DeviceEntry { kind: 0, ..entry };
    let text = said(&usual, &conventional);
    assert!(
        text.contains("zones of 1048576") && text.contains("was conventional"),
        "{text}"
    );
    // A device that is shorter, one with other zones, and one that has none.
    for (shape, word) in [
        (ZoneShape { zones: 11, ..SHAPE }, "expected 7864320"),
        (
            ZoneShape {
                capacity: 512 << 10,
                ..SHAPE
            },
            "zones of 524288 bytes, expected 786432",
        ),
    ] {
        drop(EmulatedZones::create(&path, shape).unwrap());
        let text = said(&file, &entry);
        assert!(text.contains("zones.img") && text.contains(word), "{text}");
    }
    std::fs::write(&path, vec![0; 12 << 20]).unwrap();
    let text = said(&file, &entry);
    assert!(
        text.contains("a file without zones") && text.contains("was host-managed"),
        "{text}"
    );
    std::fs::remove_file(&path).unwrap();
    assert!(said(&file, &entry).contains("No such file"));
}

fn plain(size_bytes: u64, zone_bytes: Option<u64>) -> DeviceFile {
    DeviceFile {
        zone_bytes,
        ..test_device::device(Path::new("/none"), size_bytes)
    }
}

fn unit(bytes: u64, before: u64) -> Unit {
    Unit {
        before,
        ..Unit::said(bytes, "a test")
    }
}

/// Bytes where the zones begin, bytes of each, and their number.
fn zones(size_bytes: u64, zone_bytes: Option<u64>, usual: u64, unit: &Unit) -> (u64, u64, u64) {
    let zones = conventional(&plain(size_bytes, zone_bytes), unit, usual);
    (zones.start, zones.each, zones.bytes / zones.each)
}

#[test]
fn zones_begin_where_their_multiples_begin_on_the_medium() {
    const MIB: u64 = 1 << 20;
    let none = unit(MIB, 0);
    // A device of a round size loses no zone: what lay before the first one lay behind the last one.
    assert_eq!(
        zones(4096 * MIB, None, 64 * MIB, &none),
        (64 * MIB, 64 * MIB, 63)
    );
    assert_eq!(
        zones(64 * MIB, None, 2 * MIB, &none),
        (2 * MIB, 2 * MIB, 31)
    );
    assert_eq!(zones(32 * MIB, None, MIB, &none), (MIB, MIB, 31));
    // Of an array with stripes of 1.5 MiB.
    let stripes = unit(3 * MIB / 2, 0);
    let (start, each, _) = zones(4096 * MIB, None, 64 * MIB, &stripes);
    assert_eq!((start, each), (129 * MIB / 2, 129 * MIB / 2));
    assert_eq!(each % stripes.bytes, 0);
    // Of a partition that begins at 1 MiB, and of one that begins within a unit.
    for before in [MIB, 3 * MIB + 4096] {
        let (start, each, n) = zones(4096 * MIB, None, 64 * MIB, &unit(MIB, before));
        assert_eq!((start + before) % each, 0, "{before}");
        assert!(start >= LABEL_AREA_BYTES && n == 63, "{before}: {start}");
    }
    // What was said counts.
    assert_eq!(
        zones(4096 * MIB, Some(24 * MIB), 24 * MIB, &unit(24 * MIB, 0)),
        (24 * MIB, 24 * MIB, 169)
    );
    // Too small for that: as well as it can be.
    assert_eq!(
        zones(17 * MIB, Some(4 * MIB), 4 * MIB, &none),
        (MIB, 4 * MIB, 4)
    );
    assert_eq!(
        zones(16 * MIB, None, MIB, &unit(8 * MIB, 0)),
        (8 * MIB, MIB, 8)
    );
    assert_eq!(zones(8 * MIB, None, MIB, &unit(8 * MIB, 0)), (MIB, MIB, 7));
}

#[test]
fn a_device_is_divided_and_opened_where_its_zones_begin() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain.img");
    let file = DeviceFile {
        path: path.clone(),
        ..plain(256 << 20, None)
    };
    let Division { entry, start } = divide(&file).unwrap();
    let zone_bytes = u64::from(entry.zone_blocks) * BLOCK;
    assert_eq!((zone_bytes, entry.zones()), (8 << 20, 31));
    let place = DevicePlace {
        start,
        ..at(&entry)
    };
    assert!(place.zones_byte().is_multiple_of(zone_bytes));
    drop(make(&file, &entry, false).unwrap());
    let opened = open(&file, &place).unwrap();
    assert_eq!(opened.bytes(), place.device_bytes());
    assert!(opened.unit().unwrap().bytes > 0);
    // As older versions divided it: zones behind the label.
    drop(opened);
    let old = at(&entry);
    assert_eq!(open(&file, &old).unwrap().bytes(), 256 << 20);
    let short = DevicePlace {
        start: start + 1,
        ..place
    };
    assert!(open(&file, &short).is_err(), "one block less than it needs");
}
