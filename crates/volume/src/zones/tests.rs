use super::*;

#[test]
fn a_zone_goes_on_where_its_medium_does() {
    let place = ZonePlace {
        zone: 0,
        device: 0,
        first: 0,
        blocks: 64,
    };
    let entry = ZoneEntry {
        written: 10,
        ..ZoneEntry::empty()
    };
    // Less than was committed: its erasure was cut short.
    for (on_medium, written) in [(None, 10), (Some(10), 10), (Some(13), 13), (Some(9), 64)] {
        let found = FoundZone {
            place,
            entry_byte: 0,
            entry,
            on_medium,
        };
        let zones = Zones::new(TierId::Ssd);
        zones.add(&[found], 2, &[0], false);
        assert_eq!(zones.infos()[0].written, written);
        zones.flushed(0);
        assert_eq!(zones.infos()[0].written, written.next_multiple_of(2));
        assert_eq!(zones.erasable(TxId(0)).len(), usize::from(written == 64));
    }
}

#[test]
fn a_zone_that_is_not_erased_any_more_is_no_room() {
    let zone = |n: u64| FoundZone {
        place: ZonePlace {
            zone: n,
            device: 0,
            first: n * 64,
            blocks: 64,
        },
        entry_byte: 0,
        entry: ZoneEntry::empty(),
        on_medium: Some(if n == 1 { 64 } else { 0 }),
    };
    let zones = Zones::new(TierId::Ssd);
    zones.add(&[zone(0), zone(1), zone(2)], 1, &[0; 3], false);
    let erasable = || {
        zones
            .erasable(TxId(0))
            .iter()
            .map(|z| z.0)
            .collect::<Vec<_>>()
    };
    assert_eq!((zones.possible(None), zones.space().dead), (128, 64));
    assert_eq!(erasable(), [1]);
    zones.set_lost(1);
    let space = zones.space();
    assert_eq!((space.total, space.dead, space.empty_zones), (128, 0, 2));
    assert_eq!((zones.possible(None), zones.infos().len()), (64, 3));
    assert!(erasable().is_empty());
}
