//! Owners of what lies in a zone are found.

use super::*;

#[test]
fn zones_are_emptied_with_one_look_and_with_another_where_an_owner_is_missing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut s = stage(dir.path());
    let shared = s.daemon.services().clone();
    let looks = || {
        let counts = shared.tiering.counts();
        (counts.inode_scans, counts.backref_misses)
    };
    for round in 0..12 {
        for ino in 16..20 {
            s.write(ino, round * 3, 40, ino as u8 + round as u8);
        }
        s.daemon.migrate(None).unwrap();
    }
    assert!(shared.tiering.counts().cleaned_bytes > 0);
    let mut owned = Vec::new();
    for tier in [TierId::Ssd, TierId::Hdd] {
        for zone in s.daemon.volume().lower_zones(tier) {
            let found = shared.tiering.in_zones(tier, &[zone]).unwrap();
            let sum: u64 = found.iter().map(|w| w.blocks).sum();
            assert_eq!(sum, zone.live, "{zone:?}");
            owned.extend((zone.live > 0).then_some((tier, zone)));
        }
    }
    // One for each tier.
    assert_eq!(looks(), (2, 0));
    let &(tier, zone) = owned.first().expect("something is below NVM");
    let place = (tier, zone.place.first);
    shared.tiering.note_owner_of(place, 999, u32::MAX);
    let found = shared.tiering.in_zones(tier, &[zone]).unwrap();
    assert_eq!(found.iter().map(|w| w.blocks).sum::<u64>(), zone.live);
    assert_eq!(looks(), (3, 1));
}
