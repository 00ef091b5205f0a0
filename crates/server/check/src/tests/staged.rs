//! Volumes without NVM that are not mounted: checked and repaired in a copy of the newest image.

use super::assert_clean;
use super::logs::{SLOT, set_slot, slot};
use crate::{CheckOptions, Severity, check_copy, repair_copy};
use shale_format::Durability;
use shale_format::limits::{BLOCK_BYTES, LOG_BYTES_MIN, NVM_BYTES_MIN};
use shale_pool::staged::{Found, StagedCopy, examine};
use shale_pool::volume_file::{DeviceFile, VolumeFile};
use shale_pool::{DeviceKind, LowerTiers, MakeOptions, StagedSizes, make_volume};
use shale_sys::SystemClock;
use std::path::Path;

fn make(dir: &Path) -> VolumeFile {
    let ssd = DeviceFile {
        path: dir.join("ssd.img"),
        size_bytes: 128 << 20,
        zone_bytes: None,
        model: None,
        kind: DeviceKind::Conventional,
        overprovision_percent: None,
    };
    let options = MakeOptions {
        file: dir.join("V.toml"),
        name: "v".to_owned(),
        nvm: None,
        staged: StagedSizes {
            memory_bytes: Some(NVM_BYTES_MIN),
            staging_bytes: Some(32 << 20),
        },
        lower: LowerTiers {
            ssd: vec![ssd],
            hdd: vec![],
        },
        log_bytes: LOG_BYTES_MIN,
        durability: Durability::Buffered,
        owner_uid: 0,
        owner_gid: 0,
        root_mode: 0o755,
        trusted_uids: vec![],
        force: false,
    };
    make_volume(&options, &SystemClock::new()).unwrap().file
}

fn copy(file: &VolumeFile) -> StagedCopy {
    match examine(file).unwrap() {
        Found::Copy(copy) => copy,
        Found::Memory => panic!("nothing is in memory"),
    }
}

#[test]
fn a_new_volume_is_clean_and_what_waits_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let file = make(dir.path());
    let options = CheckOptions::of(&file);
    let mut copy = copy(&file);
    let report = check_copy(&copy, &options, &mut |_| ());
    assert_clean(&report);
    assert!(report.findings.is_empty(), "{report}");
    assert_eq!(report.uuid.as_ref(), Some(&file.uuid));
    // A log was in use at the checkpoint, and what it held was staged.
    set_slot(&copy.map, &slot());
    copy.batches = 3;
    let report = check_copy(&copy, &options, &mut |_| ());
    assert_clean(&report);
    let infos = { report.findings.iter() }.filter(|f| f.severity == Severity::Info);
    let infos: Vec<String> = infos.map(ToString::to_string).collect();
    for words in ["log-003", "staging area: batches wait to be replayed"] {
        assert!(infos.iter().any(|i| i.contains(words)), "{infos:?}");
    }
    let text = repair_copy(&copy, &file, &options, &mut |_| ());
    let text = text.unwrap_err().to_string();
    assert!(
        text.contains("3 staged batches") && text.contains("mount it once"),
        "{text}"
    );
}

#[test]
fn damage_of_an_image_is_mended_by_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let file = make(dir.path());
    let options = CheckOptions::of(&file);
    // A log that is used, and a slot of the log table that is damaged.
    let first = copy(&file);
    set_slot(&first.map, &slot());
    first.map.store(2 * BLOCK_BYTES + 5, &[7]);
    first.write_back(&file, 1).unwrap();
    drop(first);

    let second = copy(&file);
    let report = check_copy(&second, &options, &mut |_| ());
    assert!(!report.clean(), "{report}");
    let other = VolumeFile {
        uuid: "00000000-0000-0000-0000-000000000000".to_owned(),
        ..file.clone()
    };
    let text = repair_copy(&second, &other, &options, &mut |_| ());
    let text = text.unwrap_err().to_string();
    assert!(text.contains("nothing was changed"), "{text}");
    assert_eq!(second.checkpoint.number, 2);
    let report = repair_copy(&second, &file, &options, &mut |_| ()).unwrap();
    assert!(report.clean(), "{report}");
    assert_eq!(
        report.mended.len(),
        1,
        "the log that is staged is left: {report}"
    );
    drop(second);

    let third = copy(&file);
    assert_eq!(third.checkpoint.number, 3);
    let report = check_copy(&third, &options, &mut |_| ());
    assert_clean(&report);
    assert_eq!(report.totals.logs, 1, "slot {SLOT}: {report}");
    // Where nothing is wrong nothing is written.
    repair_copy(&third, &file, &options, &mut |_| ()).unwrap();
    drop(third);
    assert_eq!(copy(&file).checkpoint.number, 3);
}
