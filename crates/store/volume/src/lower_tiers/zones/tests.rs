use super::*;
use crate::lower_tiers::lower::ZonePlace;

/// Zone `n` of some of 64 blocks each, of which the medium has written so many.
fn zone_of_64(n: u64, on_medium: Option<u64>) -> FoundZone {
    FoundZone {
        place: ZonePlace {
            zone: n,
            device: 0,
            first: n * 64,
            blocks: 64,
        },
        entry_byte: 0,
        entry: ZoneEntry::empty(),
        on_medium,
        worn: false,
    }
}

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
            worn: false,
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
fn a_spare_is_never_in_use_and_is_there_for_cleaning() {
    let zones = Zones::new(TierId::Ssd);
    let zone = |n: u64| zone_of_64(n, None);
    zones.add(&[zone(0), zone(1), zone(2), zone(3)], 1, &[0; 4], false);
    // 76 of 256.
    zones.set_spare(0, 30);
    let seen = |zones: &Zones| {
        let space = zones.space();
        (
            zones.possible(None),
            space.available,
            space.reserved,
            zones.cleanable(),
        )
    };
    assert_eq!(seen(&zones), (180, 180, 76, 192));
    for word in 0..2 {
        let run = zones.allocate(WriteStream::Cold, 64, false).unwrap();
        assert_eq!(run.len, 64);
        zones.writing(run).unwrap();
        let (base, now, freed) = (0, u64::MAX, 0);
        let change = WordChange {
            word,
            base,
            now,
            freed,
        };
        zones.apply_committed(TxId(1), &[change]);
    }
    assert_eq!(seen(&zones), (52, 52, 76, 64));
    assert_eq!(
        zones.allocate(WriteStream::Cold, 64, false).unwrap().len,
        52
    );
    let (word, base, now, freed) = (2, 0, u64::MAX >> 12, 0);
    let change = WordChange {
        word,
        base,
        now,
        freed,
    };
    zones.apply_committed(TxId(1), &[change]);
    assert_eq!(seen(&zones), (0, 0, 76, 12));
    let full = zones.allocate(WriteStream::Cold, 1, false);
    assert!(matches!(full, Err(VolumeError::NoSpace { .. })), "{full:?}");
    assert_eq!(zones.allocate(WriteStream::Cold, 64, true).unwrap().len, 12);
    zones.set_emptying(0, true);
    assert_eq!((zones.possible(None), zones.space().available), (0, 0));
}

#[test]
fn a_worn_out_zone_has_space_only_for_what_is_live() {
    let zone = |n: u64| FoundZone {
        worn: n == 3,
        ..zone_of_64(n, Some(if n == 1 { 64 } else { 0 }))
    };
    let zones = Zones::new(TierId::Ssd);
    zones.add(&[0, 1, 2, 3].map(zone), 1, &[0, 0, 0, 0b111], false);
    let erasable = || {
        zones
            .erasable(TxId(0))
            .iter()
            .map(|z| z.0)
            .collect::<Vec<_>>()
    };
    // Zone 3 was found so.
    assert_eq!((zones.possible(None), zones.space().dead), (128, 64));
    assert_eq!((zones.space().total, zones.live_on(0)), (195, (3, 3)));
    assert_eq!(erasable(), [1]);
    zones.set_worn(1);
    let space = zones.space();
    assert_eq!((space.total, space.dead, space.empty_zones), (131, 0, 2));
    assert_eq!((zones.possible(None), zones.infos().len()), (64, 4));
    assert!(erasable().is_empty());
    // One that is being written.
    let run = zones.allocate(WriteStream::Hot, 10, true).unwrap();
    zones.writing(run).unwrap();
    assert!(zones.infos()[0].open);
    zones.set_worn(0);
    let info = zones.infos()[0];
    assert_eq!((info.open, info.worn, info.written), (false, true, 64));
    let next = zones.allocate(WriteStream::Hot, 10, true).unwrap();
    assert_eq!(next.addr.index(), 128);
    assert_eq!(zones.space().total, 64 + 3);
}

#[test]
fn a_pinned_zone_is_not_erased() {
    let zone = |n: u64| zone_of_64(n, Some(64));
    let zones = Zones::new(TierId::Ssd);
    zones.add(&[0, 1, 2, 3].map(zone), 1, &[0; 4], false);
    let erasable = || -> Vec<u64> {
        let found = zones.erasable(TxId(0)).into_iter();
        found.map(|(n, _)| n).collect()
    };
    let run = |first, len| Run {
        addr: BlockAddr::new(TierId::Ssd, first),
        len,
    };
    assert_eq!(erasable(), [0, 1, 2, 3]);
    zones.pin(run(127, 2));
    zones.pin(run(64, 64));
    assert_eq!(erasable(), [0, 3]);
    zones.unpin(run(127, 2));
    assert_eq!(erasable(), [0, 2, 3]);
    zones.unpin(run(64, 64));
    assert_eq!(erasable(), [0, 1, 2, 3]);
}
