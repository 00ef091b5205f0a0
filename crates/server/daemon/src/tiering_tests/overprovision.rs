//! A device with a spare: that much of it is never in use.

use super::*;

/// Half of flash is spare: 160 blocks of 320.
fn half_spare(dir: &Path) -> Stage {
    let s = stage(dir);
    let volume = s.daemon.volume();
    volume.set_spare(TierId::Ssd, 0, 50).unwrap();
    s
}

fn live(s: &Stage, tier: TierId) -> u64 {
    s.daemon.volume().lower_device_infos(tier)[0].live
}

#[test]
fn what_a_spare_leaves_no_space_for_goes_further_down() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = half_spare(dir.path());
    let space = |s: &Stage| s.daemon.volume().lower_space(TierId::Ssd).unwrap();
    assert_eq!((space(&s).available, space(&s).reserved), (160, 160));
    for ino in 16..22 {
        s.write(ino, 0, 40, ino as u8);
    }
    s.daemon.migrate(None).unwrap();
    let (above, below) = (live(&s, TierId::Ssd), live(&s, TierId::Hdd));
    assert_eq!(above + below, 240);
    // What was oldest there was moved on to free space for the rest.
    assert!((100..=160).contains(&above), "{above}");
    // Rewritten over and over, it needs no more.
    for round in 0..40 {
        s.write(16 + round % 6, round % 30, 10, 100 + round as u8);
        s.daemon.migrate(None).unwrap();
        assert!(live(&s, TierId::Ssd) <= 160, "{round}");
    }
    let space = space(&s);
    assert!(space.erased > 5 && space.out_of_order == 0, "{space:?}");
    assert_eq!(contents(s.daemon.volume()).unwrap(), s.content);
}

#[test]
fn a_spare_takes_nothing_when_no_disk_is_below_and_is_used_to_clean() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = half_spare(dir.path());
    let volume = s.daemon.volume().clone();
    volume
        .set_device_state(TierId::Hdd, &entry(1).uuid, 1)
        .unwrap();
    let statfs = || s.daemon.services().space.statfs();
    let (total, free) = (statfs().total, statfs().free);
    volume.set_spare(TierId::Ssd, 0, 0).unwrap();
    let zone = volume.lower_space(TierId::Ssd).unwrap().reserved;
    assert_eq!(statfs().total - total, 160 - zone);
    assert_eq!(statfs().free - free, 160 - zone);
    volume.set_spare(TierId::Ssd, 0, 50).unwrap();
    for ino in 16..22 {
        s.write(ino, 0, 40, ino as u8);
    }
    for round in 0..40 {
        s.write(16 + round % 6, round % 30, 10, 100 + round as u8);
        s.daemon.migrate(None).unwrap();
        assert_eq!(live(&s, TierId::Hdd), 0);
        assert!(live(&s, TierId::Ssd) <= 160, "{round}");
    }
    assert!(live(&s, TierId::Ssd) > 140);
    assert!(volume.lower_space(TierId::Ssd).unwrap().erased > 3);
    assert_eq!(contents(&volume).unwrap(), s.content);
}
